package main

import (
	"context"
	"fmt"
	"slices"
)

// sides are this runner and the one of --against, in the order in which they measure a round. The order changes from round
// to round, so that neither is always the first.
func (r *runner) sides(round int) []*runner {
	switch {
	case r.other == nil:
		return []*runner{r}
	case round%2 == 0:
		return []*runner{r, r.other}
	default:
		return []*runner{r.other, r}
	}
}

// onSides calls prepare for each side before a measurement, one after the other.
func (r *runner) onSides(prepare func(*runner) error) error {
	for _, side := range r.sides(0) {
		if err := prepare(side); err != nil {
			return err
		}
	}
	return nil
}

// repeat measures a figure once per round and side, and reports the summaries of the sides and their ratio.
// A round during which the context ended is not reported, because its figures are of a shorter run.
func (r *runner) repeat(ctx context.Context, measure func(context.Context, *runner) (figure, error)) error {
	figures := map[*runner][]figure{}
	for round := range r.cfg.Rounds {
		for _, side := range r.sides(round) {
			f, err := measure(ctx, side)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
			f.Params = append(side.label(), f.Params...)
			figures[side] = append(figures[side], f)
		}
	}
	for _, side := range r.sides(0) {
		if err := r.out.report(summarize(figures[side])); err != nil {
			return err
		}
	}
	if r.other == nil {
		return nil
	}
	return r.out.report(summarize(ratios(figures[r], figures[r.other])))
}

// label tells the two sides of --against apart.
func (r *runner) label() []param {
	if r.name == "" {
		return nil
	}
	return []param{{"server", r.name}}
}

// ratios divides the metrics of this side by those of the other one, round by round: both ran within seconds, so that a
// machine that others use disturbs the ratio less than the metrics. A metric that is 0 on the other side is left out.
func ratios(these, others []figure) []figure {
	var result []figure
	for i, f := range these {
		ratio := figure{Name: f.Name + ".ratio", Params: f.Params[1:], Jobs: f.Jobs + others[i].Jobs}
		for j, m := range f.Metrics {
			if !slices.ContainsFunc(others, func(f figure) bool { return f.Metrics[j].Value == 0 }) {
				ratio.Metrics = append(ratio.Metrics, metric{m.Name + "_ratio", m.Value / others[i].Metrics[j].Value})
			}
		}
		result = append(result, ratio)
	}
	return result
}

// connect starts the runner's private server, if it is to have one, and opens the database.
func (r *runner) connect(ctx context.Context, ojsd string) error {
	if r.cfg.Private {
		server, err := startPrivateServer(ctx, ojsd, r.cfg.executable)
		if err != nil {
			return fmt.Errorf("start a private server: %w", err)
		}
		r.private = server
		r.cfg.URL, r.cfg.DatabaseURL = server.url(), server.databaseURL
	}
	var err error
	if r.target, err = parseTarget(r.cfg.URL); err != nil {
		return err
	}
	if r.cfg.DatabaseURL != "" {
		r.db, err = openDatabase(ctx, r.cfg.DatabaseURL)
	}
	return err
}

func (r *runner) close() {
	if r.db != nil {
		r.db.close()
	}
	if r.private != nil {
		r.private.stop()
	}
}
