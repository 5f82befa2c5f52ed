package main

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

func runMixed(ctx context.Context, r *runner) error {
	return r.eachMix(func(m mix) error {
		return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return r.measureMixed(ctx, m) })
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

func (m mix) params() []param {
	return []param{{"producers", m.producers}, {"workers", m.workers}}
}

func (r *runner) measureMixed(ctx context.Context, m mix) (figure, error) {
	l := r.newLoad("mixed")
	s, err := l.mixed(ctx, m, r.limit(maxEnqueues))
	if err != nil {
		return figure{}, err
	}
	metrics := l.mixedMetrics(s, r.cfg.Duration)
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("mixed", m.params(), metrics, len(l.jobs.enqueued)), nil
}

// mixed runs producers until more returns false, and workers until all jobs are done. The workers outlive the producers until
// every job was acknowledged, or nothing moves any more.
func (l *load) mixed(ctx context.Context, m mix, more func() bool) (span, error) {
	l.bodies.waitMS = l.cfg.WaitMS
	var p producers
	p.running.Store(int64(m.producers))
	producer := func(c *client) {
		defer p.running.Add(-1)
		for l.mayContinue(ctx) && more() {
			err := c.enqueueOne()
			l.failures.addEnqueue(err, 1)
			if err == nil {
				p.enqueued.Add(1)
			}
		}
	}
	worker := func(c *client) { l.work(ctx, c, &p, nil) }
	return l.run(group{role: "producer", n: m.producers, work: producer}, group{role: "worker", n: m.workers, work: worker})
}

// producers is what workers must know to stop: how many producers run, and how many jobs they have enqueued.
// Workers must read running first: a job is counted before its producer stops, so with running at 0 the other number is final.
type producers struct{ running, enqueued atomic.Int64 }

// work fetches and acknowledges until the producers have stopped and every job is done. onFetch, if given, is called with
// the jobs of each fetch before they are acknowledged. Jobs are acknowledged one by one, as workers do that run one job at a
// time.
func (l *load) work(ctx context.Context, c *client, p *producers, onFetch func([]jobID)) {
	for l.mayContinue(ctx) {
		jobs := l.fetch(c, 10)
		if len(jobs) > 0 {
			if onFetch != nil {
				onFetch(jobs)
			}
			l.ackAll(c, jobs, false)
			continue
		}
		if p.running.Load() == 0 && (l.acked.Load() >= p.enqueued.Load() || l.stalled()) {
			return
		}
	}
}

// mixedMetrics counts the jobs completed while the producers ran. The metric left is the jobs that were not: if it is
// large, the workers could not keep up, and a longer run would build up a backlog.
func (l *load) mixedMetrics(s span, duration time.Duration) []metric {
	end := s.start.Add(duration)
	if s.end.Before(end) {
		end = s.end // maxEnqueues ended it early
	}
	done := 0
	for _, m := range l.acks {
		if !m.at.After(end) {
			done += m.n
		}
	}
	seconds := end.Sub(s.start).Seconds()
	enqueued := len(l.jobs.enqueued)
	metrics := []metric{
		{"jobs_per_s", float64(done) / seconds},
		{"enqueued_per_s", float64(enqueued) / seconds},
		{"left", float64(max(0, enqueued-done))},
	}
	return slices.Concat(metrics, latencies("enqueue_", l.latency[opEnqueue], 50, 99), s.cpu.perJob(enqueued))
}
