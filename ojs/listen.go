package ojs

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// Types of events that only a [Worker] emits, to its own listeners.
const (
	// EventJobLost: the reservation of a running job is over, or another worker has the job. Nothing is reported of this run.
	EventJobLost = "job.lost"
	// EventJobUnhandled: a job was fetched whose type has no handler in this worker, and is given back.
	EventJobUnhandled = "job.unhandled"
	// EventWorkerFetchFailed: a fetch was refused or got no answer; data.error says why. The worker tries again.
	EventWorkerFetchFailed = "worker.fetch_failed"
)

// What a client and a worker emit to listeners of their process.
var (
	clientEvents = []string{EventJobEnqueued, EventJobScheduled, EventJobCancelled}
	workerEvents = []string{
		EventJobStarted, EventJobCompleted, EventJobFailed, EventJobCancelled, EventJobLost, EventJobUnhandled,
		EventWorkerStarted, EventWorkerHeartbeat, EventWorkerQuiet, EventWorkerStopped, EventWorkerFetchFailed,
	}
)

// OnEvent calls listener for each event of a type that this client brings about, once the server has confirmed it: job.enqueued,
// job.scheduled and job.cancelled, or job.* for all. stop ends that. [Client.Events] reads what happens anywhere. A listener runs on
// the goroutine of the call and should return soon; a panic in it is logged. A type that is never emitted here panics.
func (c *Client) OnEvent(eventType string, listener func(Event)) (stop func()) {
	return c.listeners.add(eventType, clientEvents, listener)
}

// OnEvent calls listener for each event of a type that happens in this worker, or for a prefix as in job.*. stop ends that.
//
//	job.started           the handler is about to run
//	job.completed         the server has taken the result; data: attempt, duration_ms, result
//	job.failed            the server has taken the failure; data: attempt, duration_ms, error
//	job.cancelled         the handler has cancelled the job, or somebody else has
//	job.lost              see EventJobLost
//	job.unhandled         see EventJobUnhandled
//	worker.started        the first heartbeat was answered
//	worker.heartbeat      each heartbeat that was answered
//	worker.quiet          the server directs this worker to fetch no more
//	worker.stopped        Start returns
//	worker.fetch_failed   see EventWorkerFetchFailed
//
// What becomes of a job that has failed is for the server to decide: [Client.Events] tells. A listener runs on a goroutine of the
// worker and should return soon, or it holds up reports; a panic in it is logged. A type that is never emitted here panics.
func (w *Worker) OnEvent(eventType string, listener func(Event)) (stop func()) {
	return w.listeners.add(eventType, workerEvents, listener)
}

// listeners emits events to functions of the program. The zero value has none.
type listeners struct {
	source   string // of the events
	workerID string // in their data; "": those of a client
	logger   *slog.Logger
	mu       sync.RWMutex
	list     []*eventListener // replaced, never changed
}

type eventListener struct {
	pattern string
	call    func(Event)
}

func (l *eventListener) wants(eventType string) bool {
	prefix, wild := strings.CutSuffix(l.pattern, "*")
	return eventType == l.pattern || wild && strings.HasPrefix(eventType, prefix)
}

func (l *listeners) add(pattern string, emitted []string, call func(Event)) (stop func()) {
	notNil("the listener of "+pattern, call == nil)
	added := &eventListener{pattern, call}
	if !slices.ContainsFunc(emitted, added.wants) {
		panic(fmt.Sprintf("ojs: no event of type %q is emitted here; there are %s", pattern, strings.Join(emitted, ", ")))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(slices.Clone(l.list), added)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(other *eventListener) bool { return other == added })
	}
}

func (l *listeners) empty() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.list) == 0
}

// emit calls those who listen. The event is made only if there is somebody.
func (l *listeners) emit(eventType string, job *Job, data map[string]any) {
	l.mu.RLock()
	list := l.list
	l.mu.RUnlock()
	var e *Event
	for _, listener := range list {
		if !listener.wants(eventType) {
			continue
		}
		if e == nil {
			e = l.event(eventType, job, data)
		}
		l.call(listener, *e)
	}
}

func (l *listeners) call(listener *eventListener, e Event) {
	defer func() {
		if value := recover(); value != nil {
			l.logger.Error("a listener of events has panicked", "event_type", e.Type, "panic", value, "stack", string(debug.Stack()))
		}
	}()
	listener.call(e)
}

// event has the form of the events of a server. Its id is no position in a log.
func (l *listeners) event(eventType string, job *Job, data map[string]any) *Event {
	e := &Event{SpecVersion: "1.0", ID: "evt_" + NewID(), Type: eventType, Source: l.source, Time: time.Now().UTC()}
	if data == nil {
		data = map[string]any{}
	}
	if l.workerID != "" {
		data["worker_id"] = l.workerID
	}
	if job != nil {
		e.Subject, e.JobID, e.JobType, e.Queue = job.ID, job.ID, job.Type, job.Queue
		data["job_id"], data["job_type"], data["queue"] = job.ID, job.Type, job.Queue
		if job.Attempt > 0 {
			data["attempt"] = job.Attempt
		}
	}
	e.Data, _ = json.Marshal(data) // of texts, numbers, a *Failure's members and what was encoded before
	return e
}

func (c *Client) enqueued(job *Job) {
	switch {
	case job.Deduplicated:
	case job.State == StateScheduled:
		c.listeners.emit(EventJobScheduled, job, nil)
	case job.State == StateAvailable:
		c.listeners.emit(EventJobEnqueued, job, nil)
	}
}
