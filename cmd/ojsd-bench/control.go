package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	limitedFetchers = 64
	keyLimit        = 8 // jobs of the key that may run at a time
	keyWork         = 5 * time.Millisecond
	behindJobs      = 2000 // jobs that can be fetched, behind the blocked ones
	boundedConns    = 32
	fewJobs         = 10  // of the customer that shares a queue with one that has very many
	parkedWorkers   = 250 // per connection limit of one process, four of them wait
	pausedJobs      = 100
)

// runControl measures what limits, bounds, fairness and pauses cost, and whether they hold.
func runControl(ctx context.Context, r *runner) error {
	for _, measure := range []func(context.Context, *runner) (figure, error){
		measureBlocked, measureKeyLimit, measureBounded, measureFair, measurePause, measureExplain,
	} {
		if err := r.repeat(ctx, measure); err != nil {
			return err
		}
	}
	return nil
}

// with replaces the jobs of the load by jobs with more options and meta. It makes new slices, so that copies of the bodies from
// before keep their own.
func (b *bodies) with(options, meta string) {
	job := fmt.Sprintf(`{"type":%q,"args":%s,"options":{"queue":%q%s}`, jobType, b.args, b.queue, options)
	if meta != "" {
		job += `,"meta":` + meta
	}
	b.enqueue = []byte(job + "}")
	b.batch = batchBody(string(b.enqueue), batchSize)
}

// configure changes the settings of the load's queue. The setting holds for every fetch and enqueue that begins after the
// answer.
func (l *load) configure(config string) error {
	_, err := l.run(group{role: "admin", n: 1, work: func(c *client) {
		c.calls[opConfigure] = c.request(http.MethodPut, "/ojs/v1/queues/"+l.bodies.queue+"/config")
		c.calls[opConfigure].SetBodyRaw([]byte(config))
		_, err := c.do(opConfigure)
		l.failures.add(err)
	}})
	if err == nil && l.failures.count.Load() > 0 {
		err = l.failures.first
	}
	return err
}

// post sends a command about the load's queue.
func (l *load) post(c *client, command string) {
	c.calls[opCommand] = c.request(http.MethodPost, "/ojs/v1/queues/"+l.bodies.queue+"/"+command)
	_, err := c.do(opCommand)
	l.failures.add(err)
}

// measureBlocked fetches jobs that are behind --crowd jobs of a higher priority, all of which wait for one that runs.
// The fetch must not depend on how many jobs are blocked: 2 000 jobs are fetched, one per call.
func measureBlocked(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("blocked")
	plain := l.bodies
	l.bodies.with(`,"priority":50,"rate_limit":{"key":"`+l.bodies.queue+`","concurrency":1}`, "")
	if err := l.preload(ctx, r.cfg.Crowd); err != nil {
		return figure{}, err
	}
	// The blocked jobs come first, with a higher priority, so that every probe of the queue meets them before the others.
	blocked := l.bodies
	l.bodies = plain
	if err := l.preload(ctx, behindJobs); err != nil {
		return figure{}, err
	}
	r.pause(ctx)
	l.resetTimes()
	var left budget
	left.giveBack(behindJobs)
	_, err := l.run(group{role: "worker", n: 8, work: func(c *client) {
		for l.mayContinue(ctx) && left.take(1) == 1 {
			jobs := l.fetch(c, 1) // the first one is of the key; it stays reserved, so all others of the key are blocked
			if len(jobs) == 0 {
				l.failures.add(fmt.Errorf("a fetch found no job behind %d blocked ones", r.cfg.Crowd))
			}
		}
	}})
	if err != nil {
		return figure{}, err
	}
	metrics := latencies("fetch_", l.latency[opFetch], 50, 99)
	f := figure{Name: "control.blocked", Params: []param{{"blocked", r.cfg.Crowd}, {"workers", 8}}, Metrics: metrics, Jobs: behindJobs, Errors: int(l.failures.count.Load())}
	if f.Errors > 0 {
		f.Problems = []string{l.failures.first.Error()}
	}
	l.bodies = blocked
	return f, l.cancelRest()
}

// measureKeyLimit drains a queue of one key, and counts how many of its jobs run at a time. The count is raised after a fetch
// and lowered before the ack, so it is never above the number that the server has let run, and what it finds is a real
// violation.
func measureKeyLimit(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("keyed")
	l.bodies.with(fmt.Sprintf(`,"rate_limit":{"key":%q,"concurrency":%d}`, l.bodies.queue, keyLimit), "")
	n := min(r.cfg.Jobs, 5000)
	if err := l.preload(ctx, n); err != nil {
		return figure{}, err
	}
	// Workers wait for the next job instead of asking in a loop, as real ones do.
	l.bodies.waitMS = 1000
	r.pause(ctx)
	var running, most atomic.Int64
	s, err := l.run(group{role: "worker", n: limitedFetchers, work: func(c *client) {
		for l.mayContinue(ctx) && l.acked.Load() < int64(n) {
			jobs := l.fetch(c, 1)
			now := running.Add(int64(len(jobs)))
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			if len(jobs) > 0 {
				sleep(ctx, keyWork) // without it no two jobs would be seen at a time
			}
			running.Add(-int64(len(jobs))) // before the ack, which lets the next one run
			if len(jobs) > 0 {
				l.ackAll(c, jobs, false)
			} else if l.stalled() {
				return
			}
		}
	}})
	if err != nil {
		return figure{}, err
	}
	if most.Load() > keyLimit {
		l.failures.add(fmt.Errorf("%d jobs of a key ran at a time, its limit is %d", most.Load(), keyLimit))
	}
	metrics := slices.Concat([]metric{{"jobs_per_s", float64(n) / s.seconds()}, {"most_running", float64(most.Load())}},
		latencies("ack_", l.latency[opAck], 50, 99), s.cpu.perJob(n))
	return l.figure("control.key_limit", []param{{"workers", limitedFetchers}, {"limit", keyLimit}}, metrics, n), nil
}

// measureBounded enqueues into a queue with a bound that is not reached.
func measureBounded(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("bounded")
	if err := l.configure(`{"backpressure":{"max_depth":100000000}}`); err != nil {
		return figure{}, err
	}
	more := r.limit(maxEnqueues)
	s, err := l.run(group{role: "producer", n: boundedConns, work: func(c *client) {
		for l.mayContinue(ctx) && more() {
			l.failures.addEnqueue(c.enqueueOne(), 1)
		}
	}})
	if err != nil {
		return figure{}, err
	}
	jobs := len(l.jobs.enqueued)
	metrics := slices.Concat([]metric{{"jobs_per_s", float64(jobs) / s.seconds()}}, latencies("", l.latency[opEnqueue], 50, 99), s.cpu.perJob(jobs))
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("control.bounded", []param{{"conns", boundedConns}}, metrics, jobs), nil
}

// measureFair fills a fair queue with --crowd jobs of one customer, lets workers run, and measures how long the few jobs of
// another customer wait. The time counts from the answer of the enqueue. Without fairness the few would wait for all of the
// others.
func measureFair(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("fair")
	if err := l.configure(`{"fairness":{"key":"meta.customer"}}`); err != nil {
		return figure{}, err
	}
	l.bodies.with("", `{"customer":"many"}`)
	if err := l.preload(ctx, r.cfg.Crowd); err != nil {
		return figure{}, err
	}
	r.pause(ctx)
	few := l.bodies
	few.with("", `{"customer":"few"}`)
	sent, waits := map[jobID]time.Time{}, durations{}
	ready := make(chan struct{})
	var found atomic.Int64
	producer := func(c *client) {
		defer close(ready)
		c.calls[opEnqueue].SetBodyRaw(few.enqueue)
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
			if len(jobs) == 0 && !l.waitForJobs() {
				return
			}
			l.ackAll(c, jobs, true)
		}
	}
	if _, err := l.run(group{role: "producer", n: 1, work: producer}, group{role: "worker", n: 8, work: worker}); err != nil {
		return figure{}, err
	}
	metrics := latencies("wait_", waits.list, 50, 100)
	f := figure{Name: "control.fair", Params: []param{{"others", r.cfg.Crowd}, {"workers", 8}}, Metrics: metrics, Jobs: len(waits.list), Errors: int(l.failures.count.Load())}
	if len(waits.list) < fewJobs {
		f.Problems = []string{fmt.Sprintf("%d of %d jobs were found", len(waits.list), fewJobs)}
	}
	return f, l.cancelRest()
}

// measurePause pauses a queue for which many workers wait, and measures how long jobs of the pause wait after it.
// A job that is fetched while the queue is paused is an error of the server.
func measurePause(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("pause")
	l.bodies.waitMS = 20_000
	var resumed atomic.Int64 // unix ns
	var waits durations
	worker := func(c *client) {
		for l.mayContinue(ctx) && l.acked.Load() < pausedJobs {
			jobs := l.fetch(c, 1)
			if at := resumed.Load(); at == 0 && len(jobs) > 0 {
				l.failures.add(fmt.Errorf("a paused queue gave a job"))
			} else if len(jobs) > 0 {
				waits.add(time.Since(time.Unix(0, at)))
				l.ackAll(c, jobs, false)
			}
		}
	}
	admin := func(c *client) {
		sleep(ctx, time.Second) // all workers wait now
		l.post(c, "pause")
		for range pausedJobs {
			l.failures.addEnqueue(c.enqueueOne(), 1)
		}
		sleep(ctx, time.Second)
		resumed.Store(time.Now().UnixNano())
		l.post(c, "resume")
		for begun := time.Now(); l.acked.Load() < pausedJobs && time.Since(begun) < 10*time.Second; {
			sleep(ctx, 10*time.Millisecond)
		}
		for range 4 * parkedWorkers { // so that the others stop waiting
			l.failures.addEnqueue(c.enqueueOne(), 1)
		}
	}
	if _, err := l.run(group{role: "worker", n: 4 * parkedWorkers, work: worker}, group{role: "admin", n: 1, work: admin}); err != nil {
		return figure{}, err
	}
	l.bodies.waitMS = 0
	metrics := latencies("after_resume_", waits.list[:min(pausedJobs, len(waits.list))], 50, 100)
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("control.pause", []param{{"workers", 4 * parkedWorkers}, {"jobs", pausedJobs}}, metrics, pausedJobs), nil
}

// measureExplain asks why the last of --crowd waiting jobs is not running.
func measureExplain(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("explain")
	if err := l.preload(ctx, r.cfg.Crowd); err != nil {
		return figure{}, err
	}
	r.pause(ctx)
	more := r.limit(maxEnqueues)
	// The last job has all others before it, which is the worst case for an answer that counts them.
	last := l.jobs.enqueued[len(l.jobs.enqueued)-1]
	_, err := l.run(group{role: "dashboard", n: 4, work: func(c *client) {
		var text [idLen]byte
		last.put(text[:])
		c.calls[opExplain] = c.request(http.MethodGet, "/ojs/v1/jobs/"+string(text[:])+"/explain")
		for l.mayContinue(ctx) && more() {
			_, err := c.do(opExplain)
			l.failures.add(err)
		}
	}})
	if err != nil {
		return figure{}, err
	}
	metrics := latencies("", l.latency[opExplain], 50, 99)
	f := figure{Name: "control.explain", Params: []param{{"waiting", r.cfg.Crowd}, {"conns", 4}}, Metrics: metrics, Jobs: len(l.latency[opExplain]), Errors: int(l.failures.count.Load())}
	if f.Errors > 0 {
		f.Problems = []string{strings.TrimSpace(l.failures.first.Error())}
	}
	return f, l.cancelRest()
}

// cancelRest removes the jobs that a figure does not need to end. One call purges for up to 20 s; what is left stays in a queue
// that no other figure uses.
func (l *load) cancelRest() error {
	_, err := l.run(group{role: "admin", n: 1, work: func(c *client) {
		c.calls[opCommand] = c.request(http.MethodPost, "/ojs/v1/queues/"+l.bodies.queue+"/purge")
		c.calls[opCommand].SetBodyRaw([]byte(`{"states":["available","completed","cancelled"],"confirm":true}`))
		_, err := c.do(opCommand)
		l.failures.add(err)
	}})
	return err
}
