package ojs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"
)

// fetchMax is the most that a server gives at once.
const fetchMax = 1000

// fetchLoop asks for as many jobs as there are free slots, until stopping is done. It leaves that to the reports of jobs that have ended
// where the server takes both in one request, as long as such requests bring all the jobs that there is room for. It ends with an error if
// the server refuses the very first fetch, which then would never succeed. Requests end with life. After the first answer no error ends the
// loop: it is logged, and the loop tries again with growing pauses.
func (w *Worker) fetchLoop(stopping, life context.Context) error {
	failures, worked := 0, false
	for stopping.Err() == nil {
		plan := w.beginPoll()
		if plan.count == 0 {
			w.awaitSlot(stopping, 0)
			continue
		}
		start := time.Now()
		jobs, waited, err := w.fetch(stopping, life, plan)
		hungry, empty := plan.result(jobs)
		if err == nil {
			// Before endPoll: until these jobs count as running, a report that leaves now would fetch jobs for their slots.
			w.take(life, stopping, jobs, fetchPlan{})
		}
		w.endPoll(hungry, empty)
		switch {
		case err != nil && stopping.Err() != nil:
			return nil //nolint:nilerr // the worker stops, which ends its fetches
		case err != nil && !worked && !Retryable(err):
			w.stop(err)
			return err
		case err != nil:
			w.fetchFailed(stopping, err, failures)
			failures++
			continue
		}
		failures, worked = 0, true
		// A server that answers at once without jobs would otherwise be asked in a tight loop.
		if len(jobs) == 0 && !plan.passes && (time.Since(start) < waited/2 || waited == 0) {
			// Also if the server ends a long poll at once: it stops, or wants quiet.
			pause := jitter(w.config.PollInterval, 0.8, 1.2)
			if plan.partial {
				w.awaitSlot(stopping, pause) // in a queue that was left out, perhaps
			} else {
				_ = sleep(stopping, pause)
			}
		}
	}
	return nil
}

func (w *Worker) fetchFailed(ctx context.Context, err error, failures int) {
	wait := retryWait(err, failures)
	w.fetchesAlone.Store(false)
	w.extensions.Store(nil) // it may be another server that comes back
	w.logger.Log(ctx, warnFirst(failures), "fetch failed", "error", err, "failures", failures+1, "retry_in", wait)
	w.listeners.emit(EventWorkerFetchFailed, nil, map[string]any{"error": err.Error()})
	_ = sleep(ctx, wait)
}

// fetchPlan is what one fetch asks for.
type fetchPlan struct {
	queues  []string
	count   int      // 0: there is no fetch
	partial bool     // a queue is left out
	narrow  []string // the queues of the fetch that have less room than the worker
	passes  bool     // it passes over queues that were empty
}

// planFetch gives the jobs that may be fetched now; the caller has the lock. A fetch leaves out the queues that have no room, and those
// that the waiting fetch asks for. All the jobs that it brings may be of one queue, so the queue with the least room bounds their number.
func (w *Worker) planFetch() fetchPlan {
	plan := fetchPlan{count: w.freeSlots()}
	if plan.count <= 0 {
		return fetchPlan{}
	}
	free := plan.count
	for _, q := range w.queueOrder() {
		room := free
		if limit, bounded := w.config.QueueConcurrency[q]; bounded {
			room = limit - w.busy[q]
		}
		switch {
		case room <= 0 || slices.Contains(w.polling.queues, q):
			plan.partial = true
			continue
		case slices.Contains(w.emptyQueues, q):
			plan.passes = true
			continue
		case room < free:
			plan.narrow = append(plan.narrow, q)
		}
		plan.queues = append(plan.queues, q)
		plan.count = min(plan.count, room)
	}
	if len(plan.queues) > 0 {
		return plan
	}
	if plan.passes {
		w.emptyQueues = nil
		return w.planFetch()
	}
	return fetchPlan{}
}

// result is what the next fetch has to know about this one: hungry, it has brought fewer jobs than it asked for, or empty, the queues to be
// passed over. A queue with little room makes a fetch small, however many jobs the others have. If it had none itself, the next fetch fills
// the slots from the others. The jobs must not run yet: handlers may change them.
func (p fetchPlan) result(jobs []*Job) (hungry bool, empty []string) {
	if len(jobs) < p.count {
		return true, nil
	}
	for _, q := range p.narrow {
		if !slices.ContainsFunc(jobs, func(j *Job) bool { return j != nil && j.Queue == q }) {
			empty = append(empty, q)
		}
	}
	return false, empty
}

// beginPoll is what the loop is to fetch now; nothing if there is no free slot, or if reports are about to bring jobs.
// While a request with reports asks for jobs, the loop stays out, or both would fill the same slots.
func (w *Worker) beginPoll() fetchPlan {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked > 0 || !w.hungry && w.fetchesWithReports() && slices.ContainsFunc(w.ready, (*report).batches) {
		return fetchPlan{}
	}
	w.polling = w.planFetch()
	return w.polling
}

func (w *Worker) endPoll(hungry bool, empty []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.polling, w.hungry, w.emptyQueues = fetchPlan{}, hungry, empty
}

// freeSlots is how many jobs may be fetched; the caller has the lock. Jobs whose outcome could not be reported take up a second set of
// slots, so that a worker does not pile up outcomes that nobody takes.
func (w *Worker) freeSlots() int {
	if w.state != DirectiveRunning {
		return 0
	}
	taken := w.running + w.asked + w.polling.count
	unreported := len(w.inHand) - w.running
	for _, r := range w.delayed {
		if r.tries == 0 { // it waits because the handler has asked for it
			unreported--
		}
	}
	return min(w.config.Concurrency-taken, 2*w.config.Concurrency-taken-unreported, fetchMax)
}

// reserve keeps the slots of a fetch with reports from other fetches, or with sign -1 ends that; the caller has the lock. Each queue may be
// the one that all the jobs come from.
func (w *Worker) reserve(plan fetchPlan, sign int) {
	w.asked += sign * plan.count
	for _, q := range plan.queues {
		w.busy[q] += sign * plan.count
	}
}

// fetchesWithReports reports whether the server takes a fetch in a batch of reports.
func (w *Worker) fetchesWithReports() bool {
	return w.offered(ExtensionBatchAck) && !w.fetchesAlone.Load()
}

// offered reports whether the server is known to have an extension.
func (w *Worker) offered(extension string) bool {
	m := w.extensions.Load()
	return m != nil && m.Has(extension)
}

// awaitSlot waits until a slot may be free, at most for limit if that is not 0.
func (w *Worker) awaitSlot(ctx context.Context, limit time.Duration) {
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	select {
	case <-ctx.Done():
	case <-w.slotFree:
	case <-late:
	}
}

// offers asks the server once what it offers. One without a manifest has no extensions. The answer is kept until a fetch fails.
// An error that passes is returned, so that a server in its start is not taken for one without extensions.
func (w *Worker) offers(ctx context.Context) (*Manifest, error) {
	if m := w.extensions.Load(); m != nil {
		return m, nil
	}
	r := get("/ojs/manifest", nil)
	r.once = true
	m := &Manifest{}
	if err := w.client.Do(ctx, r, m); err != nil {
		if Retryable(err) {
			return nil, err
		}
		m = &Manifest{}
	}
	w.extensions.Store(m)
	signal(w.reportNow) // some wait to hear what the server can do
	return m, nil
}

// fetch asks for jobs once. waited is how long the server may have waited for them. The request is not repeated by the client:
// the number of free slots changes while it waits.
func (w *Worker) fetch(stopping, life context.Context, plan fetchPlan) (jobs []*Job, waited time.Duration, err error) {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		// The server ends the fetch when it hears that this worker terminates. Jobs in an answer that nobody reads would be lost for
		// the time of their reservation.
		if sleep(ctx, fetchEnd) == nil {
			cancel()
		}
	})()
	m, err := w.offers(ctx)
	if err != nil {
		return nil, 0, err
	}
	body := w.fetchBody(plan)
	if m.Has(ExtensionLongPolling) && w.config.LongPoll > 0 && !plan.passes { // the next fetch asks for all queues, and waits
		waited = w.config.LongPoll
		if plan.partial { // once a queue that was left out has room, a job that comes into it waits for the end of this fetch
			waited = min(waited, w.config.PollInterval)
		}
		body["wait_ms"] = milliseconds(waited)
	}
	r := post("/workers/fetch", body)
	r.wait, r.once = waited, true
	var answer jobsAnswer
	err = w.client.Do(ctx, r, &answer)
	return answer.Jobs, waited, err
}

// fetchBody is that of a fetch, and of the one in a batch of reports.
func (w *Worker) fetchBody(plan fetchPlan) map[string]any {
	body := map[string]any{"queues": plan.queues, "count": plan.count, "worker_id": w.id}
	if w.config.VisibilityTimeout > 0 {
		body["visibility_timeout_ms"] = milliseconds(w.config.VisibilityTimeout)
	}
	return body
}

// queueOrder is the order of queues for one fetch: as configured, or drawn by weight. The drawing repeats without the queue
// that was drawn: every queue is in the list, so a weight says how often a queue comes first and never that another one is left
// out.
func (w *Worker) queueOrder() []string {
	if len(w.config.Weights) == 0 {
		return w.config.Queues
	}
	left := maps.Clone(w.config.Weights)
	for _, q := range w.config.Queues {
		left[q] = max(left[q], 1)
	}
	order := make([]string, 0, len(left))
	for len(left) > 0 {
		total := 0
		for _, weight := range left {
			total += weight
		}
		draw := rand.IntN(total)
		for _, q := range w.config.Queues {
			if weight, ok := left[q]; ok {
				if draw -= weight; draw < 0 {
					order = append(order, q)
					delete(left, q)
					break
				}
			}
		}
	}
	return order
}

// take begins jobs, or hands them back if the worker has been stopped meanwhile. asked is the plan of a fetch with reports that has brought
// them. All jobs count as running before the first one begins, so that the report of that one sees how many slots are free.
func (w *Worker) take(life, stopping context.Context, jobs []*Job, asked fetchPlan) {
	var runs []*run
	short := false
	for _, job := range jobs {
		if job == nil {
			continue
		}
		r := w.keep(life, job)
		short = short || w.lease(job) < 3*w.config.HeartbeatInterval
		if stopping.Err() != nil {
			w.report(&report{run: r, kind: reportNack, requeue: true})
			continue
		}
		runs = append(runs, r)
	}
	handlers := make([]HandlerFunc, len(runs))
	w.mu.Lock()
	// Under one lock with the count of running jobs: in between, their slots would look free.
	w.reserve(asked, -1)
	for i, r := range runs {
		if handlers[i] = w.handlers[r.Type]; handlers[i] != nil {
			w.running++
			w.busy[r.queue]++
		}
	}
	w.mu.Unlock()
	for i, r := range runs {
		if handlers[i] != nil {
			go w.execute(r, handlers[i])
			continue
		}
		w.noHandler(r)
	}
	if short {
		signal(w.beatNow)
	}
}

const (
	// firstReturn and lastReturn are how long a job is kept from workers that was given back because its type has no handler. The time
	// grows with the time for which this worker has met the type: others have the handler, perhaps, or get it within seconds.
	firstReturn = time.Second
	lastReturn  = time.Minute
)

// noHandler gives a job back without counting the attempt. A type that has had no handler for UnhandledFor is a mistake, and its jobs fail
// like any other. Both are logged once for each type: a queue may have thousands of them.
func (w *Worker) noHandler(r *run) {
	now := time.Now()
	w.mu.Lock()
	u, known := w.unhandled[r.Type]
	if !known {
		u.since = now
	}
	met := now.Sub(u.since)
	fails := met >= w.config.UnhandledFor
	logged := known && u.failed == fails
	u.failed = fails
	w.unhandled[r.Type] = u
	w.mu.Unlock()
	attrs := []any{"job_type", r.Type, "queue", r.Queue, "job_id", r.ID}
	if fails {
		if !logged {
			w.logger.Error("jobs fail, because this worker still has no handler for their type", attrs...)
		}
		f := &Failure{Code: codeHandlerNotFound, Message: "this worker has no handler for jobs of type " + r.Type}
		w.report(&report{run: r, kind: reportNack, failure: f.wire()})
		return
	}
	if !logged {
		w.logger.Error("jobs are given back, because this worker has no handler for their type: deploy it, or use another queue", attrs...)
	}
	w.listeners.emit(EventJobUnhandled, r.Job, map[string]any{})
	w.report(&report{run: r, kind: reportNack, requeue: true, until: now.Add(min(max(met, firstReturn), lastReturn))})
}

// unhandled is a type of jobs that this worker has met and has no handler for.
type unhandled struct {
	since  time.Time // the first of its jobs
	failed bool      // the latest one, which was not given back any more
}

// keep adds a job to those in hand. If the server gives out a job that this worker still runs, the older run has lost it.
// Two runs of one id can only be an older attempt whose reservation ended and a newer one.
func (w *Worker) keep(life context.Context, job *Job) *run {
	ctx, cancel := context.WithCancelCause(life)
	r := &run{Job: job, queue: job.Queue, worker: w, life: life, cancel: cancel, ctx: ctx}
	w.mu.Lock()
	older := w.inHand[job.ID]
	w.inHand[job.ID] = r
	w.mu.Unlock()
	if older != nil {
		w.lose(older, ErrJobLost)
	}
	return r
}

var errGoexit = errors.New("the handler has ended its goroutine")

// execute runs the handler of a job and reports the outcome, also of a panic. The deferred function runs for a return, a panic
// and runtime.Goexit alike, so a slot is never lost.
func (w *Worker) execute(r *run, handler HandlerFunc) {
	ctx := r.ctx
	if r.TimeoutMS > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, time.Duration(r.TimeoutMS)*time.Millisecond, ErrJobTimeout)
		defer cancel()
		ctx = limited
	}
	start, returned := time.Now(), false
	var err error
	defer func() {
		if value := recover(); value != nil {
			err = panicFailure(value)
			w.logger.ErrorContext(ctx, "handler has panicked", "job_id", r.ID, "job_type", r.Type, "panic", value,
				"stack", string(debug.Stack()))
		} else if !returned {
			err = errGoexit
		}
		r.duration = time.Since(start)
		r.endProgress()
		w.ended(ctx, r, err)
	}()
	_ = r.decodeAny() // what is no array stays in RawArgs, and typed handlers refuse it
	w.listeners.emit(EventJobStarted, r.Job, nil)
	err = wrapHandler(&w.Middleware, handler)(JobContext{Context: ctx, Job: r.Job, run: r})
	returned = true
}

// ended frees the slot of a job whose handler has returned, and reports the outcome. The job stays in hand until its report was
// answered: heartbeats renew it meanwhile.
func (w *Worker) ended(ctx context.Context, r *run, err error) {
	rep := w.outcome(ctx, r, err)
	w.mu.Lock()
	w.running--
	w.busy[r.queue]--
	r.ended = true
	w.queueReport(rep) // together, so that the next fetch goes with the report
	w.mu.Unlock()
	signal(w.reportNow)
	signal(w.slotFree)
	signal(w.changed)
	r.cancel(nil)
}

// outcome is what is to be reported of a job. The order matters: what the handler asks for comes before the stop of the worker,
// whose jobs are handed back without counting the attempt.
//
// All that the error has to say is asked here. An error whose methods panic, such as a nil pointer in an interface, counts like a
// handler that panics.
func (w *Worker) outcome(ctx context.Context, r *run, err error) (rep *report) {
	defer func() {
		if value := recover(); value != nil {
			w.logger.ErrorContext(ctx, "the error of a handler has panicked", "job_id", r.ID, "job_type", r.Type, "error_type",
				fmt.Sprintf("%T", err), "panic", value, "stack", string(debug.Stack()))
			rep = &report{run: r, kind: reportNack, failure: panicFailure(value).wire()}
		}
	}()
	var d *disposition
	switch {
	case err == nil:
		return &report{run: r, kind: reportAck}
	case errors.As(err, &d) && d.kind == dispositionCancel:
		return &report{run: r, kind: reportCancel}
	case errors.As(err, &d) && d.kind == dispositionSnooze:
		return &report{run: r, kind: reportNack, requeue: true, until: time.Now().Add(d.wait)}
	case errors.Is(context.Cause(r.ctx), ErrWorkerStopped):
		return &report{run: r, kind: reportNack, requeue: true} // it was not its fault
	}
	f := failureOf(ctx, err)
	rep = &report{run: r, kind: reportNack, failure: f.wire()}
	if f.RetryAfter > 0 && !f.Permanent {
		rep.until = time.Now().Add(f.RetryAfter)
	}
	return rep
}

// lease is how long a job is reserved without a heartbeat, as far as the worker knows. If the server gave a longer one,
// heartbeats only come more often than needed.
func (w *Worker) lease(job *Job) time.Duration {
	if w.config.VisibilityTimeout > 0 {
		return w.config.VisibilityTimeout
	}
	if job.VisibilityTimeoutMS > 0 {
		return time.Duration(job.VisibilityTimeoutMS) * time.Millisecond
	}
	return defaultLease
}

// defaultLease is that of servers.
const defaultLease = 30 * time.Second

// release makes all reports due that wait for their time. A stop calls it: those that waited for RetryAfter or Snooze are
// reported at once.
func (w *Worker) release() {
	w.mu.Lock()
	w.ready = slices.Concat(w.ready, w.delayed)
	w.delayed = nil
	w.mu.Unlock()
	signal(w.reportNow)
}
