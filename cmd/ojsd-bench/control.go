package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	limitedFetchers = 64
	keyLimit        = 8 // jobs of the key that may run at a time
	keyWork         = 5 * time.Millisecond
	behindJobs      = 2000 // jobs that can be fetched, behind the blocked ones
	boundedConns    = 32
	fewJobs         = 10   // of the customer that shares a queue with one that has very many
	parkedWorkers   = 1000 // that wait while their queue is paused
	pausedJobs      = 100
)

// controlFigures are what limits, bounds, fairness and pauses cost, and whether they hold.
func controlFigures(cfg config) []measurement {
	return []measurement{
		{figure: "control.blocked", params: []param{{"blocked", cfg.Crowd}, {"workers", 8}}, body: measureBlocked, end: cancelRest},
		{figure: "control.key_limit", params: []param{{"workers", limitedFetchers}, {"limit", keyLimit}}, body: measureKeyLimit,
			end: check},
		{figure: "control.bounded", params: []param{{"conns", boundedConns}}, body: measureBounded},
		{figure: "control.fair", params: []param{{"others", cfg.Crowd}, {"workers", 8}}, body: measureFair, end: cancelRest},
		{figure: "control.pause", params: []param{{"workers", parkedWorkers}, {"jobs", pausedJobs}}, body: measurePause},
		{figure: "control.explain", params: []param{{"waiting", cfg.Crowd}, {"conns", 4}}, body: measureExplain, end: cancelRest},
	}
}

// configure changes the settings of the load's queue. The setting holds for every fetch and enqueue that begins after the
// answer.
func (l *load) configure(config string) error {
	if err := l.command(opConfigure, "/config", config); err != nil {
		return err
	}
	return l.failures.first
}

// measureBlocked fetches jobs that are behind --crowd jobs of a higher priority, all of which wait for one that runs.
// The fetch must not depend on how many jobs are blocked: 2 000 jobs are fetched, one per call.
func measureBlocked(ctx context.Context, l *load) (figure, error) {
	plain := l.bodies
	l.bodies.setJob(`,"priority":50,"rate_limit":{"key":"`+l.bodies.queue+`","concurrency":1}`, "")
	// The blocked jobs come first, with a higher priority, so that every probe of the queue meets them before the others.
	if err := l.preload(ctx, l.cfg.Crowd); err != nil {
		return figure{}, err
	}
	l.bodies = plain
	if err := l.preload(ctx, behindJobs); err != nil {
		return figure{}, err
	}
	l.pause(ctx)
	left := newBudget(behindJobs)
	_, err := l.run(group{role: "worker", n: 8, work: func(c *client) {
		for l.mayContinue(ctx) && left.take(1) == 1 {
			jobs := l.fetch(c, 1) // the first one is of the key; it stays reserved, so all others of the key are blocked
			if len(jobs) == 0 {
				l.failures.add(fmt.Errorf("a fetch found no job behind %d blocked ones", l.cfg.Crowd))
			}
		}
	}})
	return figure{Metrics: latencies("fetch_", l.latency[opFetch], 50, 99), Jobs: behindJobs}, err
}

// measureKeyLimit drains a queue of one key, and counts how many of its jobs run at a time. The count is raised after a fetch
// and lowered before the ack, so it is never above the number that the server has let run, and what it finds is a real
// violation.
func measureKeyLimit(ctx context.Context, l *load) (figure, error) {
	l.bodies.setJob(fmt.Sprintf(`,"rate_limit":{"key":%q,"concurrency":%d}`, l.bodies.queue, keyLimit), "")
	n := min(l.cfg.Jobs, 5000)
	if err := l.preload(ctx, n); err != nil {
		return figure{}, err
	}
	// Workers wait for the next job instead of asking in a loop, as real ones do.
	l.bodies.waitMS = 1000
	l.pause(ctx)
	var running, most atomic.Int64
	s, err := l.run(group{role: "worker", n: limitedFetchers, work: func(c *client) {
		for l.mayContinue(ctx) && l.acked.Load() < int64(n) {
			jobs := l.fetch(c, 1)
			if len(jobs) == 0 {
				if l.stalled() {
					return
				}
				continue
			}
			now := running.Add(int64(len(jobs)))
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			sleep(ctx, keyWork)            // without it no two jobs would be seen at a time
			running.Add(-int64(len(jobs))) // before the ack, which lets the next one run
			l.ackAll(c, jobs, false)
		}
	}})
	if most.Load() > keyLimit {
		l.failures.add(fmt.Errorf("%d jobs of a key ran at a time, its limit is %d", most.Load(), keyLimit))
	}
	times := append([]metric{{"most_running", float64(most.Load())}}, latencies("ack_", l.latency[opAck], 50, 99)...)
	return figure{Metrics: s.perJob("jobs_per_s", n, times...), Jobs: n}, err
}

// measureBounded enqueues into a queue with a bound that is not reached.
func measureBounded(ctx context.Context, l *load) (figure, error) {
	if err := l.configure(`{"backpressure":{"max_depth":100000000}}`); err != nil {
		return figure{}, err
	}
	s, jobs, err := l.closedLoop(ctx, boundedConns, (*client).enqueueOne)
	return figure{Metrics: s.perJob("jobs_per_s", jobs, latencies("", l.latency[opEnqueue], 50, 99)...), Jobs: jobs}, err
}

// measureFair fills a fair queue with --crowd jobs of one customer, lets workers run, and measures how long the few jobs of
// another customer wait. The time counts from the answer of the enqueue. Without fairness the few would wait for all of the
// others.
func measureFair(ctx context.Context, l *load) (figure, error) {
	if err := l.configure(`{"fairness":{"key":"meta.customer"}}`); err != nil {
		return figure{}, err
	}
	l.bodies.setJob("", `,"meta":{"customer":"many"}`)
	if err := l.preload(ctx, l.cfg.Crowd); err != nil {
		return figure{}, err
	}
	l.pause(ctx)
	few := []byte(l.bodies.job("", `,"meta":{"customer":"few"}`))
	sent, waits := map[jobID]time.Time{}, durations{}
	ready := make(chan struct{})
	var found atomic.Int64
	producer := func(c *client) {
		defer close(ready)
		c.calls[opEnqueue].SetBodyRaw(few)
		for range fewJobs {
			err := c.enqueueOne()
			l.failures.addEnqueue(err, 1)
			if err == nil {
				sent[c.enqueued[len(c.enqueued)-1]] = time.Now()
			}
		}
	}
	worker := func(c *client) {
		<-ready
		for l.mayContinue(ctx) && found.Load() < fewJobs {
			jobs := l.fetch(c, 10)
			now := time.Now()
			for _, id := range jobs {
				if at, ok := sent[id]; ok {
					waits.add(now.Sub(at))
					found.Add(1)
				}
			}
			if len(jobs) > 0 {
				l.ackAll(c, jobs, true)
			} else if !l.waitForJobs() {
				return
			}
		}
	}
	_, err := l.run(group{role: "producer", n: 1, work: producer}, group{role: "worker", n: 8, work: worker})
	f := figure{Metrics: latencies("wait_", waits.list, 50, 100), Jobs: len(waits.list)}
	if len(waits.list) < fewJobs {
		f.Problems = []string{fmt.Sprintf("%d of %d jobs were found", len(waits.list), fewJobs)}
	}
	return f, err
}

// measurePause pauses a queue for which many workers wait, and measures how long jobs of the pause wait after it.
// A job that is fetched while the queue is paused is an error of the server.
func measurePause(ctx context.Context, l *load) (figure, error) {
	l.bodies.waitMS = 20_000
	var resumed atomic.Int64 // unix ns
	var waits durations
	worker := func(c *client) {
		for l.mayContinue(ctx) && l.acked.Load() < pausedJobs {
			jobs := l.fetch(c, 1)
			if at := resumed.Load(); at == 0 && len(jobs) > 0 {
				l.failures.add(errors.New("a paused queue gave a job"))
			} else if len(jobs) > 0 {
				waits.add(time.Since(time.Unix(0, at)))
				l.ackAll(c, jobs, false)
			}
		}
	}
	admin := func(c *client) {
		enqueue := func(n int) {
			for range n {
				l.failures.addEnqueue(c.enqueueOne(), 1)
			}
		}
		change := func(command string) {
			_, err := c.doAt(opCommand, "/ojs/v1/queues/"+l.bodies.queue+"/"+command, "")
			l.failures.add(err)
		}
		sleep(ctx, time.Second) // all workers wait now
		change("pause")
		enqueue(pausedJobs)
		sleep(ctx, time.Second)
		resumed.Store(time.Now().UnixNano())
		change("resume")
		for begun := time.Now(); l.acked.Load() < pausedJobs && time.Since(begun) < 10*time.Second; {
			sleep(ctx, 10*time.Millisecond)
		}
		enqueue(parkedWorkers) // so that the others stop waiting
	}
	_, err := l.run(group{role: "worker", n: parkedWorkers, work: worker}, group{role: "admin", n: 1, work: admin})
	return figure{Metrics: latencies("after_resume_", waits.list[:min(pausedJobs, len(waits.list))], 50, 100), Jobs: pausedJobs}, err
}

// measureExplain asks why the last of --crowd waiting jobs is not running. It has all others before it, which is the worst case
// for an answer that counts them.
func measureExplain(ctx context.Context, l *load) (figure, error) {
	if err := l.preload(ctx, l.cfg.Crowd); err != nil {
		return figure{}, err
	}
	l.pause(ctx)
	last := l.jobs.enqueued[len(l.jobs.enqueued)-1]
	_, calls, err := l.closedLoop(ctx, 4, func(c *client) error {
		_, err := c.doAt(opExplain, "/ojs/v1/jobs/"+last.String()+"/explain", "")
		return err
	})
	return figure{Metrics: latencies("", l.latency[opExplain], 50, 99), Jobs: calls}, err
}
