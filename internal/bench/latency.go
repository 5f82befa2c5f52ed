package bench

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

// runLatency measures one thing at a time, because a poller or listener slows the rest down.
func runLatency(ctx context.Context, r *runner) error {
	if err := r.repeat(ctx, r.measureFetchLatency); err != nil {
		return err
	}
	if err := r.repeat(ctx, func(ctx context.Context) (Figure, error) {
		return r.measureEventLatency(ctx, "latency.event_poll", pollEvents)
	}); err != nil {
		return err
	}
	if r.db == nil {
		r.out.say("latency.event_listen: skipped, needs --database-url")
		return nil
	}
	return r.repeat(ctx, func(ctx context.Context) (Figure, error) {
		return r.measureEventLatency(ctx, "latency.event_listen", listenEvents)
	})
}

// pace is an open loop: the times at which calls are due do not depend on how long calls take. Latency counts from the
// due time, so a server that stalls is charged for all calls it kept from starting (no coordinated omission).
type pace struct {
	interval time.Duration
	total    int64
	once     sync.Once
	start    time.Time
	next     atomic.Int64
}

// wait sleeps until the next call is due; false when there are no more.
func (p *pace) wait() (time.Time, bool) {
	p.once.Do(func() { p.start = time.Now() })
	n := p.next.Add(1) - 1
	due := p.start.Add(time.Duration(n) * p.interval)
	if n >= p.total {
		return due, false
	}
	time.Sleep(time.Until(due))
	return due, true
}

// timeline is when the steps of each job happened.
type timeline struct {
	mu                            sync.Mutex
	due, answered, fetched, shown map[jobID]time.Time
	repeated                      int // events shown a second time
}

func newTimeline() *timeline {
	return &timeline{
		due: map[jobID]time.Time{}, answered: map[jobID]time.Time{},
		fetched: map[jobID]time.Time{}, shown: map[jobID]time.Time{},
	}
}

// show notes that the event of a job was seen.
func (t *timeline) show(id jobID) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.shown[id]; again {
		t.repeated++
		return
	}
	t.shown[id] = now
}

// between lists, for the jobs that have both, the time from one step to another. An event may overtake the answer to
// its enqueue; that counts as 0.
func between(from, to map[jobID]time.Time) []time.Duration {
	var d []time.Duration
	for id, start := range from {
		if end, ok := to[id]; ok {
			d = append(d, max(0, end.Sub(start)))
		}
	}
	return d
}

// paced runs producers at the configured rate, and workers, until all jobs are done.
func (l *load) paced(ctx context.Context, t *timeline) error {
	l.bodies.waitMS = l.cfg.WaitMS
	p := &pace{
		interval: time.Second / time.Duration(l.cfg.Rate),
		total:    int64(float64(l.cfg.Rate) * l.cfg.Duration.Seconds()),
	}
	var w workload
	w.producing.Store(latencyProducers)
	producer := func(c *client) {
		defer w.producing.Add(-1)
		for l.goOn(ctx) {
			due, ok := p.wait()
			if !ok {
				return
			}
			if err := c.enqueueOne(); err != nil {
				l.trouble.noteEnqueue(err, 1)
				continue
			}
			w.enqueued.Add(1)
			t.enqueued(c.enqueued[len(c.enqueued)-1], due)
		}
	}
	worker := func(c *client) { l.work(ctx, c, &w, t.fetch) }
	_, err := l.run(group{"producer", latencyProducers, producer}, group{"worker", latencyWorkers, worker})
	return err
}

func (t *timeline) enqueued(id jobID, due time.Time) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due[id], t.answered[id] = due, now
}

func (t *timeline) fetch(jobs []jobID) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range jobs {
		t.fetched[id] = now
	}
}

func (r *runner) latencyParams() []Param {
	return []Param{{"rate", r.cfg.Rate}, {"workers", latencyWorkers}}
}

func (r *runner) measureFetchLatency(ctx context.Context) (Figure, error) {
	l, t := r.newLoad("latency"), newTimeline()
	if err := l.paced(ctx, t); err != nil {
		return Figure{}, err
	}
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	metrics := append(latencies("", between(t.due, t.fetched), 50, 95, 99, 100),
		latencies("enqueue_", between(t.due, t.answered), 50, 99)...)
	return l.figure("latency.fetch", r.latencyParams(), metrics, len(t.due)), nil
}

// watch follows the events of a load's queue and calls shown for each job.enqueued until ctx ends. It returns once it
// is sure to see everything that is enqueued from now on; the channel gives its error when it has stopped.
type watch func(ctx context.Context, l *load, shown func(jobID)) (<-chan error, error)

func (r *runner) measureEventLatency(ctx context.Context, name string, start watch) (Figure, error) {
	l, t := r.newLoad("events"), newTimeline()
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	stopped, err := start(watchCtx, l, t.show)
	if err != nil {
		return Figure{}, err
	}
	err = l.paced(ctx, t)
	if err == nil {
		t.awaitEvents(ctx, r.cfg.Stall)
	}
	stop()
	l.trouble.note(<-stopped)
	if err != nil {
		return Figure{}, err
	}
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	metrics := latencies("", between(t.answered, t.shown), 50, 95, 99, 100)
	f := l.figure(name, r.latencyParams(), metrics, len(t.due))
	f.Problems = append(f.Problems, t.eventProblems()...)
	return f, nil
}

// awaitEvents waits for the events that are still on their way.
func (t *timeline) awaitEvents(ctx context.Context, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		t.mu.Lock()
		missing := len(t.answered) - len(t.shown)
		t.mu.Unlock()
		if missing <= 0 {
			return
		}
	}
}

func (t *timeline) eventProblems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lost finding
	for id := range t.answered {
		_, seen := t.shown[id]
		lost.note(id, !seen)
	}
	problems := lost.report(nil, "whose event job.enqueued was never seen")
	if t.repeated > 0 {
		problems = append(problems, fmt.Sprintf("%d events were seen twice", t.repeated))
	}
	return problems
}
