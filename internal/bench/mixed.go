package bench

import (
	"context"
	"sync/atomic"
	"time"
)

func runMixed(ctx context.Context, r *runner) error {
	return r.eachMix(func(m mix) error {
		return r.repeat(ctx, func(ctx context.Context) (Figure, error) { return r.measureMixed(ctx, m) })
	})
}

func (r *runner) eachMix(fn func(mix) error) error {
	mixes, err := r.cfg.mixes()
	if err != nil {
		return err
	}
	for _, m := range mixes {
		if err := fn(m); err != nil {
			return err
		}
	}
	return nil
}

func (m mix) params() []Param {
	return []Param{{"producers", m.producers}, {"workers", m.workers}}
}

func (r *runner) measureMixed(ctx context.Context, m mix) (Figure, error) {
	l := r.newLoad("mixed")
	s, err := l.mixed(ctx, m, r.limit(maxEnqueues))
	if err != nil {
		return Figure{}, err
	}
	metrics := l.mixedMetrics(s, r.cfg.Duration)
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	return l.figure("mixed", m.params(), metrics, len(l.ledger.enqueued)), nil
}

// mixed runs producers until more says no, and workers until everything is done.
func (l *load) mixed(ctx context.Context, m mix, more func() bool) (span, error) {
	l.bodies.waitMS = l.cfg.WaitMS
	var w workload
	w.producing.Store(int64(m.producers))
	producer := func(c *client) {
		defer w.producing.Add(-1)
		for l.goOn(ctx) && more() {
			err := c.enqueueOne()
			l.trouble.noteEnqueue(err, 1)
			if err == nil {
				w.enqueued.Add(1)
			}
		}
	}
	worker := func(c *client) { l.work(ctx, c, &w, nil) }
	return l.run(group{"producer", m.producers, producer}, group{"worker", m.workers, worker})
}

// workload tells workers whether more is to come.
type workload struct{ producing, enqueued atomic.Int64 }

// work fetches and acknowledges until the producers have stopped and every job is done. onFetch, if given, is told
// about every fetched batch before its jobs are acknowledged.
func (l *load) work(ctx context.Context, c *client, w *workload, onFetch func([]jobID)) {
	for l.goOn(ctx) {
		jobs, err := c.fetch(10)
		l.trouble.note(err)
		if len(jobs) > 0 {
			if onFetch != nil {
				onFetch(jobs)
			}
			l.ackAll(c, jobs, false)
			continue
		}
		if w.producing.Load() == 0 && (l.acked.Load() >= w.enqueued.Load() || l.stalled()) {
			return
		}
	}
}

// mixedMetrics counts what was completed while the producers ran. What the workers finish later is the backlog that
// they could not keep up with; a large one says that the rate of completion is not one the system can hold.
func (l *load) mixedMetrics(s span, duration time.Duration) []Metric {
	end := s.start.Add(duration)
	if s.end.Before(end) {
		end = s.end // the count ended it
	}
	done := 0
	for _, m := range l.marks {
		if !m.at.After(end) {
			done += m.n
		}
	}
	seconds := end.Sub(s.start).Seconds()
	enqueued := len(l.ledger.enqueued)
	metrics := []Metric{
		{"jobs_per_s", float64(done) / seconds},
		{"enqueued_per_s", float64(enqueued) / seconds},
		{"left", float64(max(0, enqueued-done))},
	}
	return append(metrics, latencies("enqueue_", l.latency[opEnqueue], 50, 99)...)
}
