package bench

import (
	"context"
	"sync/atomic"
	"time"
)

func runEnqueue(ctx context.Context, r *runner) error {
	for _, conns := range r.cfg.Conns {
		err := r.repeat(ctx, func(ctx context.Context) (Figure, error) { return r.measureEnqueue(ctx, conns) })
		if err != nil {
			return err
		}
	}
	return nil
}

// measureEnqueue enqueues job after job on each connection. Taking them out again and checking them is not timed.
func (r *runner) measureEnqueue(ctx context.Context, conns int) (Figure, error) {
	l := r.newLoad("enqueue")
	more := r.limit(maxEnqueues)
	s, err := l.run(group{"producer", conns, func(c *client) {
		for l.goOn(ctx) && more() {
			l.trouble.noteEnqueue(c.enqueueOne(), 1)
		}
	}})
	if err != nil {
		return Figure{}, err
	}
	jobs := len(l.ledger.enqueued)
	metrics := append([]Metric{{"jobs_per_s", float64(jobs) / s.seconds()}}, latencies("", l.latency[opEnqueue], 50, 95, 99)...)
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	return l.figure("enqueue", []Param{{"conns", conns}}, metrics, jobs), nil
}

// limit allows n calls, until the configured duration from the first of them is over.
func (r *runner) limit(n int64) func() bool {
	var used, started atomic.Int64
	return func() bool {
		now := time.Now().UnixNano()
		started.CompareAndSwap(0, now)
		return used.Add(1) <= n && now-started.Load() < int64(r.cfg.Duration)
	}
}

func runBatch(ctx context.Context, r *runner) error {
	return r.repeat(ctx, r.measureBatch)
}

// batchConns is how many connections send batches: more than the cores that decode them, so that none is idle.
const batchConns = 4

func (r *runner) measureBatch(ctx context.Context) (Figure, error) {
	l := r.newLoad("batch")
	s, err := l.fill(ctx, r.cfg.Jobs)
	if err != nil {
		return Figure{}, err
	}
	jobs := len(l.ledger.enqueued)
	metrics := append([]Metric{{"jobs_per_s", float64(jobs) / s.seconds()}}, latencies("call_", l.latency[opBatch], 50, 99)...)
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	return l.figure("batch", []Param{{"conns", batchConns}, {"batch", batchSize}}, metrics, jobs), nil
}

// fill enqueues n jobs by batch calls.
func (l *load) fill(ctx context.Context, n int) (span, error) {
	var left budget
	left.giveBack(n)
	return l.run(group{"producer", batchConns, func(c *client) {
		for l.goOn(ctx) {
			n := left.take(batchSize)
			if n == 0 {
				return
			}
			l.trouble.noteEnqueue(c.enqueueBatch(n), n)
		}
	}})
}

// preload fills the queue before the real measurement, which makes no sense if that fails.
func (l *load) preload(ctx context.Context, n int) error {
	if _, err := l.fill(ctx, n); err != nil {
		return err
	}
	l.forgetTimes()
	if l.trouble.count.Load() > 0 {
		return l.trouble.first
	}
	return nil
}

// budget is a number of jobs that clients share.
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

// figure completes a figure with the counts and findings of the load.
func (l *load) figure(name string, params []Param, metrics []Metric, jobs int) Figure {
	return Figure{
		Name: name, Params: params, Metrics: metrics, Jobs: jobs,
		Errors: int(l.trouble.count.Load()), Problems: l.problems(),
	}
}
