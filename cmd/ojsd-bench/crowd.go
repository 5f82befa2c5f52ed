package main

import (
	"context"
	"fmt"
	"time"
)

// crowdQueues is how many queues share the jobs of the crowd.
const crowdQueues = 20

// runCrowd measures one quiet queue three times: alone, while --crowd jobs wait in other queues and the statistics are
// fresh, and after these jobs are gone. A server whose statements depend on what the planner believes becomes slower by
// factors; the others stay within a fifth.
func runCrowd(ctx context.Context, r *runner) error {
	crowds := map[*runner][]*load{}
	defer func() {
		for r, queues := range crowds {
			r.disperse(context.WithoutCancel(ctx), queues)
		}
	}()
	for _, state := range []struct {
		name    string
		prepare func(r *runner) error
	}{
		{"alone", func(*runner) error { return nil }},
		{"crowded", func(r *runner) (err error) {
			crowds[r], err = r.gatherCrowd(ctx)
			return err
		}},
		{"emptied", func(r *runner) error {
			r.disperse(ctx, crowds[r])
			crowds[r] = nil
			return r.db.analyze(ctx)
		}},
	} {
		if err := r.onSides(state.prepare); err != nil {
			return err
		}
		if err := r.measureQuiet(ctx, state.name); err != nil {
			return err
		}
	}
	return nil
}

// gatherCrowd fills the other queues and makes fresh statistics. On an error it returns the queues that it has filled, so that
// they can be emptied.
func (r *runner) gatherCrowd(ctx context.Context) ([]*load, error) {
	start := time.Now()
	var queues []*load
	for range crowdQueues {
		l := r.newLoad("crowd")
		queues = append(queues, l)
		if _, err := r.db.enqueue(ctx, l.bodies, r.cfg.Crowd/crowdQueues); err != nil {
			return queues, fmt.Errorf("fill the crowd: %w", err)
		}
	}
	r.out.printf("crowd: %s jobs waiting in %d other queues, filled in %.1f s by ojs.enqueue()",
		numberText(float64(r.cfg.Crowd)), crowdQueues, time.Since(start).Seconds())
	if err := r.db.waitPublished(ctx); err != nil {
		return queues, err
	}
	return queues, r.db.analyze(ctx)
}

// disperse cancels the jobs of the crowd.
func (r *runner) disperse(ctx context.Context, queues []*load) {
	for _, l := range queues {
		r.db.cancelAll(ctx, l.bodies.queue)
	}
}

// measureQuiet drains a queue of its own in every style, and measures the latency of another.
func (r *runner) measureQuiet(ctx context.Context, state string) error {
	label := func(f figure, err error) (figure, error) {
		f.Name = "crowd." + f.Name
		f.Params = append([]param{{"state", state}}, f.Params...)
		return f, err
	}
	err := r.eachDrain(drainStyles, r.cfg.Jobs, func(p drainPlan) error {
		return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return label(r.measureDrain(ctx, p)) })
	})
	if err != nil {
		return err
	}
	return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return label(measureFetchLatency(ctx, r)) })
}

// analyze makes fresh statistics, as autovacuum does from time to time.
func (d *database) analyze(ctx context.Context) error {
	if _, err := d.conn.Exec(ctx, "ANALYZE"); err != nil {
		return fmt.Errorf("analyze: %w", err)
	}
	return nil
}
