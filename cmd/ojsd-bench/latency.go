package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// latencyProducers are enough that at the default rate one is always free, unless calls take above 80 ms.
	latencyProducers = 32
	latencyWorkers   = 8
)

// runLatency measures fetches, polled events and notified events one after the other, because polling and listening
// slow the rest down.
func runLatency(ctx context.Context, r *runner) error {
	if err := r.repeat(ctx, measureFetchLatency); err != nil {
		return err
	}
	if err := r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) {
		return r.measureEventLatency(ctx, "latency.event_poll", pollEvents)
	}); err != nil {
		return err
	}
	if r.db == nil {
		r.out.printf("latency.event_listen: skipped, needs --database-url")
		return nil
	}
	return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) {
		return r.measureEventLatency(ctx, "latency.event_listen", listenEvents)
	})
}

// openLoop decides when calls are due, at a fixed rate that does not depend on how long calls take. Latency counts from
// the due time, so that calls which a slow server keeps from starting count as slow, too. start is set by the first caller.
// Calls are numbered by an atomic counter, so each is made once, whoever is free makes it.
type openLoop struct {
	interval time.Duration
	total    int64
	once     sync.Once
	start    time.Time
	next     atomic.Int64
}

// wait sleeps until the next call is due and returns that time; false when all calls were made. A call whose time is over is
// made at once, with the time at which it was due.
func (o *openLoop) wait() (time.Time, bool) {
	o.once.Do(func() { o.start = time.Now() })
	n := o.next.Add(1) - 1
	due := o.start.Add(time.Duration(n) * o.interval)
	if n >= o.total {
		return due, false
	}
	time.Sleep(time.Until(due))
	return due, true
}

// timeline is when each step of each job happened. mu guards the maps while clients run; the measurement reads them without it
// after all clients have stopped.
type timeline struct {
	mu         sync.Mutex
	due        map[jobID]time.Time // the enqueue should start
	answered   map[jobID]time.Time // the enqueue was answered
	fetched    map[jobID]time.Time
	published  map[jobID]time.Time // the event job.enqueued arrived
	duplicates int                 // events that arrived a second time
}

func newTimeline() *timeline {
	return &timeline{
		due: map[jobID]time.Time{}, answered: map[jobID]time.Time{},
		fetched: map[jobID]time.Time{}, published: map[jobID]time.Time{},
	}
}

func (t *timeline) recordEnqueue(id jobID, due time.Time) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due[id], t.answered[id] = due, now
}

func (t *timeline) recordFetch(jobs []jobID) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range jobs {
		t.fetched[id] = now
	}
}

func (t *timeline) recordEvent(id jobID) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, duplicate := t.published[id]; duplicate {
		t.duplicates++
		return
	}
	t.published[id] = now
}

// elapsed lists, for the jobs that have both, the time from one step to another. An event may arrive before the answer
// to its enqueue; that counts as 0.
func elapsed(from, to map[jobID]time.Time) []time.Duration {
	var d []time.Duration
	for id, start := range from {
		if end, ok := to[id]; ok {
			d = append(d, max(0, end.Sub(start)))
		}
	}
	return d
}

// runAtRate enqueues at the configured rate, with workers beside it, until all jobs are done.
func (l *load) runAtRate(ctx context.Context, t *timeline) error {
	var p producers
	p.running.Store(latencyProducers)
	producer, worker := l.atRate(ctx, t, &p)
	_, err := l.run(group{role: "producer", n: latencyProducers, work: producer}, group{role: "worker", n: latencyWorkers, work: worker})
	return err
}

// atRate returns what the clients of a run at the configured rate do.
func (l *load) atRate(ctx context.Context, t *timeline, p *producers) (producer, worker func(*client)) {
	l.bodies.waitMS = l.cfg.WaitMS
	calls := &openLoop{
		interval: time.Second / time.Duration(l.cfg.Rate),
		total:    int64(float64(l.cfg.Rate) * l.cfg.Duration.Seconds()),
	}
	producer = func(c *client) {
		defer p.running.Add(-1)
		for l.mayContinue(ctx) {
			due, ok := calls.wait()
			if !ok {
				return
			}
			if err := c.enqueueOne(); err != nil {
				l.failures.addEnqueue(err, 1)
				continue
			}
			p.enqueued.Add(1)
			t.recordEnqueue(c.enqueued[len(c.enqueued)-1], due)
		}
	}
	worker = func(c *client) { l.work(ctx, c, p, t.recordFetch) }
	return producer, worker
}

func (r *runner) latencyParams() []param {
	return []param{{"rate", r.cfg.Rate}, {"workers", latencyWorkers}}
}

// It counts from the due time, as the waiting of an enqueue for a free producer is part of what a client sees.
func measureFetchLatency(ctx context.Context, r *runner) (figure, error) {
	l, t := r.newLoad("latency"), newTimeline()
	if err := l.runAtRate(ctx, t); err != nil {
		return figure{}, err
	}
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	metrics := append(latencies("", elapsed(t.due, t.fetched), 50, 95, 99, 100),
		latencies("enqueue_", elapsed(t.due, t.answered), 50, 99)...)
	return l.figure("latency.fetch", r.latencyParams(), metrics, len(t.due)), nil
}

// watch calls onEvent for each job.enqueued of a load's queue until ctx ends. It returns once no later event can be
// missed; the channel yields its error when it has stopped.
type watch func(ctx context.Context, l *load, onEvent func(jobID)) (<-chan error, error)

// It counts from the answer to the enqueue: an event cannot be asked for earlier.
func (r *runner) measureEventLatency(ctx context.Context, name string, start watch) (figure, error) {
	l, t := r.newLoad("events"), newTimeline()
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	stopped, err := start(watchCtx, l, t.recordEvent)
	if err != nil {
		return figure{}, err
	}
	err = l.runAtRate(ctx, t)
	if err == nil {
		t.waitForEvents(ctx, r.cfg.stallTimeout)
	}
	stop()
	l.failures.add(<-stopped)
	if err != nil {
		return figure{}, err
	}
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	metrics := latencies("", elapsed(t.answered, t.published), 50, 95, 99, 100)
	f := l.figure(name, r.latencyParams(), metrics, len(t.due))
	f.Problems = append(f.Problems, t.eventProblems()...)
	return f, nil
}

// waitForEvents waits, up to limit, until every enqueued job's event has arrived.
func (t *timeline) waitForEvents(ctx context.Context, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		t.mu.Lock()
		missing := len(t.answered) - len(t.published)
		t.mu.Unlock()
		if missing <= 0 {
			return
		}
	}
}

func (t *timeline) eventProblems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lost problemCounter
	for id := range t.answered {
		_, ok := t.published[id]
		lost.countIf(!ok, id)
	}
	problems := lost.appendTo(nil, "whose event job.enqueued never arrived")
	if t.duplicates > 0 {
		problems = append(problems, fmt.Sprintf("%d events arrived twice", t.duplicates))
	}
	return problems
}
