package main

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

func runEnqueue(ctx context.Context, r *runner) error {
	for _, conns := range r.cfg.Conns {
		err := r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return r.measureEnqueue(ctx, conns) })
		if err != nil {
			return err
		}
	}
	return nil
}

// measureEnqueue enqueues one job after the other on each connection. Taking them out and checking them is not timed.
// It is a closed loop: a slow server gets fewer calls, so the latency is that at the rate which is reached.
func (r *runner) measureEnqueue(ctx context.Context, conns int) (figure, error) {
	l := r.newLoad("enqueue")
	more := r.limit(maxEnqueues)
	s, err := l.run(group{role: "producer", n: conns, work: func(c *client) {
		for l.mayContinue(ctx) && more() {
			l.failures.addEnqueue(c.enqueueOne(), 1)
		}
	}})
	if err != nil {
		return figure{}, err
	}
	jobs := len(l.jobs.enqueued)
	metrics := slices.Concat([]metric{{"jobs_per_s", float64(jobs) / s.seconds()}}, latencies("", l.latency[opEnqueue], 50, 95, 99), s.cpu.perJob(jobs))
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("enqueue", []param{{"conns", conns}}, metrics, jobs), nil
}

// limit allows n calls, until the configured duration from the first of them is over. The first caller starts the clock,
// because connecting is not part of the measurement.
func (r *runner) limit(n int64) func() bool {
	var used, started atomic.Int64
	return func() bool {
		now := time.Now().UnixNano()
		started.CompareAndSwap(0, now)
		return used.Add(1) <= n && now-started.Load() < int64(r.cfg.Duration)
	}
}

func runBatch(ctx context.Context, r *runner) error {
	return r.repeat(ctx, measureBatch)
}

// batchConns is how many connections send batches: enough to keep the cores busy that decode them.
const batchConns = 4

func measureBatch(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("batch")
	s, err := l.fill(ctx, r.cfg.Jobs)
	if err != nil {
		return figure{}, err
	}
	jobs := len(l.jobs.enqueued)
	metrics := slices.Concat([]metric{{"jobs_per_s", float64(jobs) / s.seconds()}}, latencies("call_", l.latency[opBatch], 50, 99), s.cpu.perJob(jobs))
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("batch", []param{{"conns", batchConns}, {"batch", batchSize}}, metrics, jobs), nil
}

// fill enqueues n jobs by batch calls.
func (l *load) fill(ctx context.Context, n int) (span, error) {
	var left budget
	left.giveBack(n)
	return l.run(group{role: "producer", n: batchConns, work: func(c *client) {
		for l.mayContinue(ctx) {
			n := left.take(batchSize)
			if n == 0 {
				return
			}
			l.failures.addEnqueue(c.enqueueBatch(n), n)
		}
	}})
}

// preload fills the queue before a measurement. Any failed call is an error, because the measurement would be worthless.
// The times of filling are forgotten, so that they are not part of the figure.
func (l *load) preload(ctx context.Context, n int) error {
	if _, err := l.fill(ctx, n); err != nil {
		return err
	}
	l.resetTimes()
	if l.failures.count.Load() > 0 {
		return l.failures.first
	}
	return nil
}

// budget is a number of jobs that clients share. The zero value has nothing to give.
type budget struct{ left atomic.Int64 }

// take gives up to n, and 0 when nothing is left.
func (b *budget) take(n int) int {
	for {
		left := b.left.Load()
		got := min(int64(n), left)
		if got <= 0 {
			return 0
		}
		if b.left.CompareAndSwap(left, left-got) {
			return int(got)
		}
	}
}

func (b *budget) giveBack(n int) { b.left.Add(int64(n)) }

// figure makes a figure with the errors and problems of the load.
func (l *load) figure(name string, params []param, metrics []metric, jobs int) figure {
	return figure{
		Name: name, Params: params, Metrics: metrics, Jobs: jobs,
		Errors: int(l.failures.count.Load()), Problems: l.problems(),
	}
}
