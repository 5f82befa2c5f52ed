package main

import (
	"context"
	"errors"
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

// latencyFigures are fetches, polled events and notified events, one after the other, because polling and listening
// slow the rest down.
func latencyFigures(cfg config) []measurement {
	listen := eventLatency(cfg, "latency.event_listen", listenEvents)
	listen.needsDatabase = true
	return []measurement{fetchLatency(cfg), eventLatency(cfg, "latency.event_poll", pollEvents), listen}
}

func latencyParams(cfg config) []param {
	return []param{{"rate", cfg.Rate}, {"workers", latencyWorkers}}
}

// fetchLatency counts from the due time, as the waiting of an enqueue for a free producer is part of what a client sees.
func fetchLatency(cfg config) measurement {
	return measurement{figure: "latency.fetch", params: latencyParams(cfg), body: func(ctx context.Context, l *load) (figure, error) {
		t := newTimeline()
		err := l.runAtRate(ctx, t, l.cfg.Rate)
		metrics := append(latencies("", elapsed(t.due, t.fetched), 50, 95, 99, 100), latencies("enqueue_", elapsed(t.due, t.answered), 50,
			99)...)
		return figure{Metrics: metrics, Jobs: len(t.due)}, err
	}}
}

// watch starts to read the events job.enqueued of a load's queue. It returns once no later event can be missed; follow then calls
// onEvent for each of them until ctx ends, which is no error.
type watch func(ctx context.Context, l *load, onEvent func(jobID)) (follow func() error, err error)

// eventLatency counts from the answer to the enqueue: an event cannot be asked for earlier.
func eventLatency(cfg config, name string, start watch) measurement {
	return measurement{figure: name, params: latencyParams(cfg), body: func(ctx context.Context, l *load) (figure, error) {
		t := newTimeline()
		watchCtx, stop := context.WithCancel(ctx)
		defer stop()
		follow, err := start(watchCtx, l, t.recordEvent)
		if err != nil {
			return figure{}, err
		}
		var following sync.WaitGroup
		following.Go(func() { l.failures.add(follow()) })
		if err = l.runAtRate(ctx, t, l.cfg.Rate); err == nil {
			l.waitFor(ctx, t.missingEvents)
		}
		stop()
		following.Wait()
		problems := problemOfMissing(t.answered, t.published, "whose event job.enqueued never arrived")
		if t.duplicates > 0 {
			problems = append(problems, fmt.Sprintf("%d events arrived twice", t.duplicates))
		}
		return figure{Metrics: latencies("", elapsed(t.answered, t.published), 50, 95, 99, 100), Jobs: len(t.due), Problems: problems}, err
	}}
}

// runAtRate enqueues at a fixed rate for --duration, with workers beside it, until all jobs are done.
func (l *load) runAtRate(ctx context.Context, t *timeline, rate int) error {
	_, err := l.runTraffic(ctx, &traffic{producers: latencyProducers, workers: latencyWorkers, next: openLoop(rate, l.cfg.Duration),
		times: t})
	return err
}

// openLoop decides when enqueues are due, at a fixed rate that does not depend on how long they take. Latency counts from
// the due time, so that enqueues which a slow server keeps from starting count as slow, too. The returned function sleeps until
// the next one is due; false: all were made. One whose time is over is made at once, with the time at which it was due. The first
// caller starts the clock, and each number is given once, so whoever is free makes the next enqueue.
func openLoop(rate int, length time.Duration) func() (due time.Time, ok bool) {
	interval, total := time.Second/time.Duration(rate), int64(float64(rate)*length.Seconds())
	start := sync.OnceValue(time.Now)
	var next atomic.Int64
	return func() (time.Time, bool) {
		first := start()
		n := next.Add(1) - 1
		due := first.Add(time.Duration(n) * interval)
		if n >= total {
			return due, false
		}
		time.Sleep(time.Until(due))
		return due, true
	}
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

func (t *timeline) missingEvents() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.answered) - len(t.published)
}

// enqueueSeconds is the time from the first answered enqueue to the last.
func (t *timeline) enqueueSeconds() float64 {
	var s span
	for _, at := range t.answered {
		if s.start.IsZero() || at.Before(s.start) {
			s.start = at
		}
		if at.After(s.end) {
			s.end = at
		}
	}
	return s.seconds()
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

// problemOfMissing is about the enqueued jobs that are not in got.
func problemOfMissing(enqueued, got map[jobID]time.Time, what string) []string {
	var missing problemCounter
	for id := range enqueued {
		_, ok := got[id]
		missing.countIf(!ok, id)
	}
	return missing.problem(what)
}

// pollEvents is a watch that polls GET /ojs/v1/events. The cursor is taken before the first enqueue of the load, so every event
// of it is behind the cursor. With page and per_page the newest event comes first.
func pollEvents(ctx context.Context, l *load, onEvent func(jobID)) (func() error, error) {
	c := newClient(l.target, "poller", l.bodies)
	cursor := ""
	body, err := c.doAt(opEvents, "/ojs/v1/events?page=1&per_page=1", "")
	if err == nil {
		var list []byte
		if list, err = member(body, "events"); err == nil {
			err = elements(list, func(event []byte) error {
				id, err := stringMember(event, "id")
				cursor = string(id)
				return err
			})
		}
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("find the newest event: %w", err)
	}
	return func() error {
		defer c.close()
		for ctx.Err() == nil {
			path := "/ojs/v1/events?types=job.enqueued&limit=1000&queues=" + l.bodies.queue
			if cursor != "" {
				path += "&after=" + cursor
			}
			body, err := c.doAt(opEvents, path, "")
			if err != nil {
				return err
			}
			next, more, err := readEvents(body, onEvent)
			if err != nil {
				return fmt.Errorf("list events: %w", err)
			}
			if next != "" {
				cursor = next // an empty page moves it too, so that the same events are not looked at again
			}
			if !more {
				sleep(ctx, l.cfg.PollInterval)
			}
		}
		return nil
	}, nil
}

func readEvents(body []byte, onEvent func(jobID)) (cursor string, more bool, err error) {
	list, err := member(body, "events")
	if err == nil {
		err = elements(list, func(event []byte) error {
			id, err := idMember(event, "subject")
			if err == nil {
				onEvent(id)
			}
			return err
		})
	}
	next, errCursor := stringMember(body, "cursor")
	hasMore, errMore := member(body, "has_more")
	return string(next), string(hasMore) == "true", errors.Join(err, errCursor, errMore)
}

// listenEvents is a watch that uses LISTEN ojs_events on a connection of its own. It gets the events of all queues and passes over
// the others.
func listenEvents(ctx context.Context, l *load, onEvent func(jobID)) (func() error, error) {
	conn, err := l.db.openSession(ctx, "LISTEN ojs_events")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return func() error {
		defer closeConn(conn)
		for {
			notification, err := conn.WaitForNotification(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				err = readNotification([]byte(notification.Payload), l.bodies.queue, onEvent)
			}
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
		}
	}, nil
}

func readNotification(event []byte, queue string, onEvent func(jobID)) error {
	kind, err := stringMember(event, "type")
	if err != nil || string(kind) != "job.enqueued" {
		return err
	}
	from, err := stringMember(event, "queue")
	if err != nil || string(from) != queue {
		return err
	}
	id, err := idMember(event, "subject")
	if err != nil {
		return err
	}
	onEvent(id)
	return nil
}
