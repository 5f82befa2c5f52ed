package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The scenarios here measure beside many other jobs: jobs of the same queue (backlog, pinned), of other queues (crowd), or jobs that
// become due later (schedule).

// under is the measurement of a scenario, with one more parameter.
func (m measurement) under(name string, first param) measurement {
	m.figure, m.params = name, append([]param{first}, m.params...)
	return m
}

func runBacklog(ctx context.Context, r *runner) error { return r.measureBacklog(ctx, "backlog", false) }

func runPinned(ctx context.Context, r *runner) error { return r.measureBacklog(ctx, "pinned", true) }

// measureBacklog fills one queue so that at least --backlog jobs wait at any time, and drains parts of it in every way.
// Then it drains the rest, because only then all jobs can be checked. All rounds drain the same queue, so the
// backlog shrinks from one to the next, down to --backlog at the last.
//
// If pinned, a transaction is open that began before the first job. PostgreSQL then can remove no dead row or index entry of the
// whole run. It is released before the rest is drained: the check of all jobs need not take as long as the figures.
func (r *runner) measureBacklog(ctx context.Context, name string, pinned bool) error {
	plans := drainPlans(r.cfg, r.cfg.Drain)
	loads, pins := map[*runner]*load{}, map[*runner]*pgx.Conn{}
	defer func() {
		for _, pin := range pins {
			closeConn(pin)
		}
	}()
	err := r.onSides(func(r *runner) error {
		if pinned {
			pin, err := r.db.pin(ctx)
			if err != nil {
				return err
			}
			pins[r] = pin
		}
		loads[r] = r.newLoad(name)
		return loads[r].fillBacklog(ctx, r.cfg.Backlog+len(plans)*r.cfg.Rounds*r.cfg.Drain)
	})
	if err != nil {
		return err
	}
	for _, p := range plans {
		m := measurement{figure: name, params: p.params(), on: loads, end: callsOnly, body: func(ctx context.Context, l *load) (figure,
			error) {
			metrics, err := l.drain(ctx, p)
			return figure{Metrics: metrics, Jobs: p.jobs}, err
		}}
		if err := r.measure(ctx, m.under(name, param{"backlog", r.cfg.Backlog})); err != nil {
			return err
		}
	}
	return r.onSides(func(r *runner) error {
		if pinned {
			if err := unpin(ctx, pins[r]); err != nil {
				return err
			}
		}
		l := loads[r]
		l.resetTimes()
		before, start := len(l.jobs.fetched), time.Now()
		if err := l.emptyQueue(ctx); err != nil {
			return err
		}
		return r.out.report(summarize([]figure{{
			Name: name + ".rest", Params: append(r.label(), param{"workers", batchConns}, param{"fetch", batchSize}, param{"ack", "batch"}),
			Metrics: drainRates(start, l.acks)[:1], Jobs: len(l.jobs.fetched) - before,
			Errors: int(l.failures.count.Load()), Problems: l.problems(),
		}}))
	})
}

// fillBacklog uses SQL, which is faster than HTTP, but needs a connection, and a server with ojs.enqueue(). The pause and the fresh
// statistics keep the work of filling out of the first round.
func (l *load) fillBacklog(ctx context.Context, n int) (err error) {
	start, bySQL, how := time.Now(), false, "ojs.enqueue()"
	if l.db != nil {
		l.jobs.enqueued, err = l.db.enqueue(ctx, l.bodies, n)
		if bySQL = err == nil; !bySQL && !isUndefinedFunction(err) {
			return fmt.Errorf("fill by SQL: %w", err)
		}
	}
	if !bySQL {
		how = "batch enqueue"
		if err := l.preload(ctx, n); err != nil {
			return err
		}
	}
	l.out.printf("%s: %s jobs waiting, filled in %.1f s by %s", l.bodies.queue, numberText(float64(n)), time.Since(start).Seconds(), how)
	if bySQL {
		if err := l.db.waitPublished(ctx); err != nil {
			return err
		}
		if err := l.db.analyze(ctx); err != nil { // plans are made anew, with the backlog in the statistics
			return err
		}
	}
	l.pause(ctx)
	return nil
}

// crowdQueues is how many queues share the jobs of the crowd.
const crowdQueues = 20

// runCrowd measures one quiet queue three times: alone, while --crowd jobs wait in other queues and the statistics are
// fresh, and after these jobs are gone. A server whose statements depend on what the planner believes becomes slower by
// factors; the others stay within a fifth.
func runCrowd(ctx context.Context, r *runner) error {
	crowds := map[*runner][]string{} // names of queues
	disperse := func(ctx context.Context, r *runner) {
		for _, queue := range crowds[r] {
			r.db.cancelAll(ctx, queue)
		}
		crowds[r] = nil
	}
	defer func() {
		for r := range crowds {
			disperse(context.WithoutCancel(ctx), r)
		}
	}()
	gather := func(r *runner) error {
		start := time.Now()
		for range crowdQueues {
			b := r.newLoad("crowd").bodies
			crowds[r] = append(crowds[r], b.queue)
			if _, err := r.db.enqueue(ctx, b, r.cfg.Crowd/crowdQueues); err != nil {
				return fmt.Errorf("fill the crowd: %w", err)
			}
		}
		r.out.printf("crowd: %s jobs waiting in %d other queues, filled in %.1f s by ojs.enqueue()",
			numberText(float64(r.cfg.Crowd)), crowdQueues, time.Since(start).Seconds())
		if err := r.db.waitPublished(ctx); err != nil {
			return err
		}
		return r.db.analyze(ctx)
	}
	leave := func(r *runner) error {
		disperse(ctx, r)
		return r.db.analyze(ctx)
	}
	for _, state := range []struct {
		name    string
		prepare func(r *runner) error
	}{
		{"alone", func(*runner) error { return nil }},
		{"crowded", gather},
		{"emptied", leave},
	} {
		if err := r.onSides(state.prepare); err != nil {
			return err
		}
		var quiet []measurement
		for _, p := range drainPlans(r.cfg, r.cfg.Jobs) {
			quiet = append(quiet, p.measurement())
		}
		for _, m := range append(quiet, fetchLatency(r.cfg)) {
			if err := r.measure(ctx, m.under("crowd."+m.figure, param{"state", state.name})); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	// scheduleSpread is the time over which the many scheduled jobs become due. It is longer than the measurement, so that most
	// of the jobs stay scheduled while others run.
	scheduleSpread = time.Hour

	// burstMargin is how long after its enqueue the burst becomes due, if that goes at fillRate jobs a second. If it is slower, it is tried
	// again with twice the margin, burstTries times in all.
	burstMargin = 2 * time.Second
	fillRate    = 2000
	burstTries  = 4
)

// runSchedule enqueues many jobs that become due over the next hour, and measures the fetch latency of another queue
// meanwhile. Then it has many jobs become due at the same moment, and measures how late they are available.
func runSchedule(ctx context.Context, r *runner) error {
	futures := map[*runner]bodies{}
	defer func() {
		for r, future := range futures {
			r.db.cancelAll(context.WithoutCancel(ctx), future.queue)
		}
	}()
	err := r.onSides(func(r *runner) error {
		start, future := time.Now(), r.newLoad("future").bodies
		futures[r] = future
		if _, err := r.db.schedule(ctx, future, schedule{r.cfg.Scheduled, start, scheduleSpread}); err != nil {
			return err
		}
		r.out.printf("%s: %s jobs scheduled over %s, filled in %.1f s by ojs.enqueue()", future.queue,
			numberText(float64(r.cfg.Scheduled)), scheduleSpread, time.Since(start).Seconds())
		if err := r.db.waitPublished(ctx); err != nil {
			return err
		}
		r.pause(ctx)
		return nil
	})
	if err != nil {
		return err
	}
	scheduled := param{"scheduled", r.cfg.Scheduled}
	if err := r.measure(ctx, fetchLatency(r.cfg).under("schedule.latency", scheduled)); err != nil {
		return err
	}
	burst := measurement{figure: "schedule.burst", params: append([]param{scheduled}, latencyParams(r.cfg)...), body: measureBurst}
	return r.measure(ctx, burst.under(burst.figure, param{"burst", r.cfg.Burst}))
}

// measureBurst has many jobs become due at once while the queue of other is in use. That one runs for --duration around the
// due time, so its latency shows what the burst does to others.
func measureBurst(ctx context.Context, other *load) (figure, error) {
	burst, due, err := other.enqueueBurst(ctx)
	if err != nil {
		return figure{}, err
	}
	if err := other.db.waitPublished(ctx); err != nil {
		return figure{}, err
	}
	sleep(ctx, time.Until(due.Add(-burstMargin/2)))
	t := newTimeline()
	if err := other.runAtRate(ctx, t, other.cfg.Rate); err != nil {
		return figure{}, err
	}
	late, err := other.db.lateness(ctx, burst.bodies.queue, other.cfg.stallTimeout)
	if err != nil {
		return figure{}, err
	}
	if err := burst.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	metrics := slices.Concat([]metric{{"last_available_ms", late.last}, {"median_available_ms", late.median}},
		latencies("fetch_", elapsed(t.due, t.fetched), 50, 99, 100))
	return figure{Metrics: metrics, Jobs: other.cfg.Burst, Errors: int(burst.failures.count.Load()), Problems: burst.problems()}, nil
}

// enqueueBurst enqueues --burst jobs for one moment, which is still to come when it returns. Jobs of a burst that came too late
// are cancelled, because a part of them would have been due during the filling.
func (r *runner) enqueueBurst(ctx context.Context) (burst *load, due time.Time, err error) {
	margin := burstMargin
	for range burstTries {
		burst = r.newLoad("burst")
		due = time.Now().Add(time.Duration(r.cfg.Burst)*time.Second/fillRate + margin)
		if burst.jobs.enqueued, err = r.db.schedule(ctx, burst.bodies, schedule{r.cfg.Burst, due, 0}); err != nil {
			return nil, due, err
		}
		if time.Now().Before(due) {
			return burst, due, nil
		}
		r.db.cancelAll(ctx, burst.bodies.queue)
		margin *= 2
	}
	return nil, due, fmt.Errorf("enqueuing the %d jobs of the burst took too long; give a smaller --burst", r.cfg.Burst)
}
