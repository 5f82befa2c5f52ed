package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"time"
)

const (
	steadyProducers = 16 // per node
	steadyWorkers   = 4  // per node
	steadyStep      = time.Minute
)

// runSteady measures minute by minute what a fixed rate does to two nodes on one database, with a stream and a webhook
// beside the workers. What piles up, in a queue or as dead rows, shows as figures that do not stay the same.
func runSteady(ctx context.Context, r *runner) error {
	if r.private == nil {
		return errors.New("it needs --private, because it starts a second node")
	}
	return r.onSides(func(r *runner) error { return r.measureSteady(ctx) })
}

// Figures are made at the end, because a job that is due in one step may be fetched in the next.
func (r *runner) measureSteady(ctx context.Context) error {
	node, err := r.private.startNode(ctx)
	if err != nil {
		return err
	}
	defer r.private.stopNode()
	second, err := parseTarget(node.url)
	if err != nil {
		return err
	}
	l, t := r.newLoad("steady"), newTimeline()
	l.cfg.Rate, l.cfg.Streams = r.cfg.SteadyRate, 1
	stop, err := l.watchBeside(ctx)
	defer stop()
	if err != nil {
		return err
	}
	samples, err := l.runOnNodes(ctx, t, second)
	if err != nil {
		return err
	}
	if err := l.emptyQueue(ctx); err != nil {
		return err
	}
	problems := l.problems()
	for i := 1; i < len(samples); i++ {
		f := t.steadyFigure(samples[i-1], samples[i])
		f.Params = append(r.label(), param{"rate", r.cfg.SteadyRate}, param{"nodes", 2}, param{"step", i})
		f.Problems, problems = problems, nil // once
		if err := r.out.report(summarize([]figure{f})); err != nil {
			return err
		}
	}
	return nil
}

// watchBeside opens a stream and a webhook for the queue of the load. They only have to keep up. stop must be called also after
// an error.
func (l *load) watchBeside(ctx context.Context) (stop func(), err error) {
	clients, err := l.openStreams(ctx, time.Now())
	if err != nil {
		return func() { closeStreams(clients) }, err
	}
	var reading sync.WaitGroup
	for _, c := range clients {
		reading.Go(c.read)
	}
	e := &webhookEndpoint{received: make([]map[jobID]time.Time, 1)}
	server := httptest.NewServer(e)
	stop = func() {
		e.unsubscribe(l.target)
		server.Close()
		closeStreams(clients)
		reading.Wait()
	}
	return stop, e.subscribe(ctx, l.target, server.URL, l.bodies.queue)
}

// runOnNodes runs the load half on its own target and half on the second one. Both nodes share the producers' schedule, so the
// rate is that of both together.
func (l *load) runOnNodes(ctx context.Context, t *timeline, second target) ([]sample, error) {
	var p producers
	p.running.Store(2 * steadyProducers)
	producer, worker := l.atRate(ctx, t, &p)
	sampling, stop := context.WithCancel(ctx)
	var samples []sample
	var sampler sync.WaitGroup
	sampler.Go(func() { samples = l.sampleEach(sampling, &p, min(steadyStep, l.cfg.Duration/3)) })
	_, err := l.run(
		group{role: "producer", n: steadyProducers, work: producer}, group{role: "producer2", n: steadyProducers, work: producer, on: &second},
		group{role: "worker", n: steadyWorkers, work: worker}, group{role: "worker2", n: steadyWorkers, work: worker, on: &second})
	stop()
	sampler.Wait()
	return samples, err
}

// sample is the state of a run at one moment. Numbers but deadRows are totals since the start, and figures are made of
// differences.
type sample struct {
	at              time.Time
	enqueued, acked int64
	cpu             cpuTime
	deadRows        int64 // of ojs.jobs, as PostgreSQL estimates them
}

// sampleEach takes a sample at the start and after each step, until ctx ends.
func (l *load) sampleEach(ctx context.Context, p *producers, step time.Duration) (samples []sample) {
	for {
		s := sample{at: time.Now(), enqueued: p.enqueued.Load(), acked: l.acked.Load(), cpu: l.server.cpuTime()}
		// Without the number the figure has 0; the run goes on.
		_ = l.db.conn.QueryRow(ctx, `SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'ojs' AND relname = 'jobs'`).Scan(&s.deadRows)
		samples = append(samples, s)
		sleep(ctx, step)
		if ctx.Err() != nil {
			return samples
		}
	}
}

// steadyFigure is about the jobs that were due between two samples, and the state at the second one.
func (t *timeline) steadyFigure(from, to sample) figure {
	var delays []time.Duration
	for id, due := range t.due {
		if fetched, ok := t.fetched[id]; ok && !due.Before(from.at) && due.Before(to.at) {
			delays = append(delays, fetched.Sub(due))
		}
	}
	done := int(to.acked - from.acked)
	metrics := append(latencies("", delays, 50, 99, 100),
		metric{"jobs_per_s", float64(done) / to.at.Sub(from.at).Seconds()},
		metric{"backlog", float64(to.enqueued - to.acked)}, metric{"dead_rows", float64(to.deadRows)})
	return figure{Name: "steady", Metrics: append(metrics, to.cpu.minus(from.cpu).perJob(done)...), Jobs: done}
}
