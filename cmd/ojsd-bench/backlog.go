package main

import (
	"context"
	"fmt"
	"time"
)

func runBacklog(ctx context.Context, r *runner) error {
	return r.measureBacklog(ctx, "backlog", func() error { return nil })
}

// runPinned runs backlog while a transaction is open that began before the first job. PostgreSQL then can remove no dead
// row or index entry of the whole run. The transaction is released before the rest is drained: the check of all jobs need not
// take as long as the figures.
func runPinned(ctx context.Context, r *runner) error {
	var pins []*pin
	defer func() {
		for _, p := range pins {
			p.close()
		}
	}()
	err := r.onSides(func(r *runner) error {
		p, err := r.db.pin(ctx)
		if err == nil {
			pins = append(pins, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.measureBacklog(ctx, "pinned", func() error {
		for _, p := range pins {
			if err := p.release(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// measureBacklog fills one queue so that at least --backlog jobs wait at any time, and drains parts of it in every style.
// Then it calls release and drains the rest, because only then all jobs can be checked. All rounds drain the same queue, so the
// backlog shrinks from one to the next, down to --backlog at the last.
func (r *runner) measureBacklog(ctx context.Context, name string, release func() error) error {
	loads := map[*runner]*load{}
	drains := len(drainStyles) * len(r.cfg.Workers) * r.cfg.Rounds
	err := r.onSides(func(r *runner) error {
		loads[r] = r.newLoad(name)
		return r.fillBacklog(ctx, loads[r], r.cfg.Backlog+drains*r.cfg.Drain)
	})
	if err != nil {
		return err
	}
	err = r.eachDrain(drainStyles, r.cfg.Drain, func(p drainPlan) error {
		return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return loads[r].drainPart(ctx, name, p) })
	})
	if err != nil {
		return err
	}
	if err := release(); err != nil {
		return err
	}
	return r.onSides(func(r *runner) error { return r.drainRest(ctx, loads[r], name) })
}

// SQL fills faster than HTTP. The pause and the fresh statistics keep the work of filling out of the first round.
func (r *runner) fillBacklog(ctx context.Context, l *load, n int) error {
	start := time.Now()
	bySQL, err := l.fillBySQL(ctx, n)
	if err != nil {
		return err
	}
	how := "ojs.enqueue()"
	if !bySQL {
		how = "batch enqueue"
		if err := l.preload(ctx, n); err != nil {
			return err
		}
	}
	r.out.printf("%s: %s jobs waiting, filled in %.1f s by %s", l.bodies.queue, numberText(float64(n)), time.Since(start).Seconds(), how)
	if bySQL {
		if err := r.db.waitPublished(ctx); err != nil {
			return err
		}
		if err := r.db.analyze(ctx); err != nil { // plans are made anew, with the backlog in the statistics
			return err
		}
	}
	r.pause(ctx)
	return nil
}

// fillBySQL returns false if it cannot: no connection, or a server without ojs.enqueue().
func (l *load) fillBySQL(ctx context.Context, n int) (bool, error) {
	if l.db == nil {
		return false, nil
	}
	ids, err := l.db.enqueue(ctx, l.bodies, n)
	if isUndefinedFunction(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fill by SQL: %w", err)
	}
	l.jobs.enqueued = append(l.jobs.enqueued, ids...)
	return true, nil
}

// drainPart is one round. Jobs are still waiting, so the only problems that show here are failed calls.
func (l *load) drainPart(ctx context.Context, name string, p drainPlan) (figure, error) {
	before := l.failures.count.Load()
	metrics, err := l.drain(ctx, p)
	if err != nil {
		return figure{}, err
	}
	f := figure{
		Name: name, Params: append([]param{{"backlog", l.cfg.Backlog}}, p.params()...),
		Metrics: metrics, Jobs: p.jobs, Errors: int(l.failures.count.Load() - before),
	}
	if f.Errors > 0 {
		f.Problems = []string{fmt.Sprintf("%d calls failed, the first of the run: %v", f.Errors, l.failures.first)}
	}
	return f, nil
}

// drainRest takes what is left with fetches of 1 000 and checks all jobs of the run.
func (r *runner) drainRest(ctx context.Context, l *load, name string) error {
	l.resetTimes()
	before := len(l.jobs.fetched)
	start := time.Now()
	if err := l.emptyQueue(ctx); err != nil {
		return err
	}
	jobs := len(l.jobs.fetched) - before
	rate := drainRates(start, l.acks)[:1]
	params := append(r.label(), param{"workers", batchConns}, param{"fetch", batchSize}, param{"ack", "batch"})
	return r.out.report(summarize([]figure{l.figure(name+".rest", params, rate, jobs)}))
}
