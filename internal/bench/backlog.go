package bench

import (
	"context"
	"fmt"
	"time"
)

func runBacklog(ctx context.Context, r *runner) error {
	return r.measureBacklog(ctx, "backlog", func(context.Context) error { return nil })
}

// runPinned pins xmin before the first job exists, so that every dead row and index entry of the run stays.
func runPinned(ctx context.Context, r *runner) error {
	p, err := r.db.pin(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	return r.measureBacklog(ctx, "pinned", p.release)
}

// measureBacklog fills one queue so that at least Backlog jobs wait at any time, drains a part of it in every style,
// and finally the rest, because only then the ledger is complete. release is called before the rest.
func (r *runner) measureBacklog(ctx context.Context, name string, release func(context.Context) error) error {
	l := r.newLoad(name)
	drains := len(drainStyles) * len(r.cfg.Workers) * r.cfg.Rounds
	if err := r.fillBacklog(ctx, l, r.cfg.Backlog+drains*r.cfg.Drain); err != nil {
		return err
	}
	err := r.eachDrain(r.cfg.Drain, func(p drainPlan) error {
		return r.repeat(ctx, func(ctx context.Context) (Figure, error) { return l.drainPart(ctx, name, p) })
	})
	if err != nil {
		return err
	}
	if err := release(ctx); err != nil {
		return err
	}
	return r.drainRest(ctx, l, name)
}

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
	r.out.say("%s: %s jobs waiting, filled in %.1f s by %s", l.bodies.queue, humanNumber(float64(n)), time.Since(start).Seconds(), how)
	if bySQL {
		if err := r.db.waitPublished(ctx); err != nil {
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
	ids, err := l.db.enqueue(ctx, l.bodies.queue, jobArgs(l.cfg.ArgsBytes), n)
	if isUndefinedFunction(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fill by SQL: %w", err)
	}
	l.ledger.enqueued = append(l.ledger.enqueued, ids...)
	return true, nil
}

// drainPart is one round. The ledger cannot be closed yet, so only failed calls are findings here.
func (l *load) drainPart(ctx context.Context, name string, p drainPlan) (Figure, error) {
	before := l.trouble.count.Load()
	metrics, err := l.drain(ctx, p)
	if err != nil {
		return Figure{}, err
	}
	f := Figure{
		Name: name, Params: append([]Param{{"backlog", l.cfg.Backlog}}, p.params()...),
		Metrics: metrics, Jobs: p.jobs, Errors: int(l.trouble.count.Load() - before),
	}
	if f.Errors > 0 {
		f.Problems = []string{fmt.Sprintf("%d calls failed, the first ever: %v", f.Errors, l.trouble.first)}
	}
	return f, nil
}

// drainRest takes what is left by fetches of 1 000 and checks all jobs of the run.
func (r *runner) drainRest(ctx context.Context, l *load, name string) error {
	l.forgetTimes()
	before := len(l.ledger.fetched)
	start := time.Now()
	if err := l.settle(ctx); err != nil {
		return err
	}
	jobs := len(l.ledger.fetched) - before
	rate := drainRates(start, l.marks)[:1]
	params := []Param{{"workers", batchConns}, {"fetch", batchSize}, {"ack", "batch"}}
	return r.out.report(summarize([]Figure{l.figure(name+".rest", params, rate, jobs)}))
}
