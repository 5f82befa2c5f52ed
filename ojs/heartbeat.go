package ojs

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"time"
)

// minHeartbeat bounds heartbeats for jobs with very short reservations.
const minHeartbeat = 50 * time.Millisecond

// heartbeatLoop renews the reservations of all jobs in hand, by one call for all. It runs until the last report was answered,
// also while the worker stops: jobs that finish within the grace period stay reserved.
func (w *Worker) heartbeatLoop(ctx context.Context) {
	started := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-w.beatNow:
		case <-timer.C:
		}
		interval := w.heartbeatInterval()
		// A heartbeat that hangs must not keep the next one from being sent.
		beat, cancel := context.WithTimeout(ctx, max(interval, 5*time.Second))
		err := w.beat(beat, started)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.logger.Log(ctx, warnFirst(failures), "heartbeat failed", "error", err, "failures", failures+1)
			interval = min(interval, retryWait(err, failures))
			failures++
		} else {
			failures = 0
			interval = w.heartbeatInterval() // jobs may have come meanwhile
		}
		timer.Reset(interval)
	}
}

// warnFirst is the level of the log line of a failure that repeats: an outage is a warning when it begins, and every tenth time.
func warnFirst(failures int) slog.Level {
	if failures%10 == 0 {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// heartbeatInterval leaves room for two heartbeats that fail within each reservation. It is called again after each heartbeat,
// because the shortest reservation in hand decides.
func (w *Worker) heartbeatInterval() time.Duration {
	interval := w.config.HeartbeatInterval
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.inHand {
		interval = min(interval, w.lease(r.Job)/3)
	}
	return max(interval, minHeartbeat)
}

// beat sends one heartbeat and does what the answer says. The list is made under the lock, but the call is made without it:
// runs may begin and end meanwhile, and the answer is compared with the runs that were listed.
func (w *Worker) beat(ctx context.Context, started time.Time) error {
	w.mu.Lock()
	listed := make(map[string]*run, len(w.inHand))
	ids := make([]string, 0, len(w.inHand))
	tokens := map[string]string{}
	for id, r := range w.inHand {
		listed[id] = r
		ids = append(ids, id)
		if r.LeaseToken != "" {
			tokens[id] = r.LeaseToken
		}
	}
	body := w.heartbeat(ids)
	if len(tokens) > 0 {
		body["lease_tokens"] = tokens
	}
	w.mu.Unlock()
	body["started_at"] = started.UTC().Format(time.RFC3339Nano)
	// A worker whose id nobody has chosen cannot have had an earlier process.
	if !w.registered {
		if err := w.register(ctx, body); err != nil {
			return err
		}
	}
	var answer struct {
		State         Directive `json:"state"`
		JobsExtended  []string  `json:"jobs_extended"`
		JobsCancelled []string  `json:"jobs_cancelled"`
		JobsLost      []string  `json:"jobs_lost"`
	}
	r := post("/workers/heartbeat", body)
	r.once = true
	if err := w.client.Do(ctx, r, &answer); err != nil {
		return err
	}
	if !w.answered {
		w.answered = true
		w.listeners.emit(EventWorkerStarted, nil, nil)
	}
	w.listeners.emit(EventWorkerHeartbeat, nil, nil)
	// Only runs that were listed: one that was fetched again meanwhile has the same id.
	for _, id := range answer.JobsCancelled {
		w.taken(listed[id], ErrJobCancelled, true)
	}
	for _, id := range answer.JobsLost {
		w.taken(listed[id], ErrJobLost, true)
	}
	if answer.JobsExtended != nil { // what is completed is in none of the three: by another worker, if it still runs here
		for _, id := range answer.JobsExtended {
			delete(listed, id)
		}
		for _, r := range listed {
			w.taken(r, ErrJobLost, false)
		}
	}
	w.obey(answer.State)
	return nil
}

// taken loses a run, unless its outcome was reported while the heartbeat was on its way. evenEnded says what of a run whose outcome is to
// be reported again, because it is not known whether it arrived.
func (w *Worker) taken(r *run, cause error, evenEnded bool) {
	w.mu.Lock()
	ours := r != nil && w.inHand[r.ID] == r && !r.reporting && (evenEnded || !r.ended)
	w.mu.Unlock()
	if ours {
		w.lose(r, cause)
	}
}

// register ends what an earlier process of the same name has reported: a worker that has reported terminate would be told so for ever.
// Servers that have no registration do not need it. A refusal counts as done: a server without registration answers 404.
func (w *Worker) register(ctx context.Context, body map[string]any) error {
	r := post("/workers/register", body)
	r.once = true
	if err := w.client.Do(ctx, r, nil); err != nil && Retryable(err) {
		return err
	}
	w.registered = true
	return nil
}

// heartbeat is the body of a heartbeat; the caller has the lock. state tells the server that this worker stops, so that it
// gives it no more jobs and ends a fetch that waits.
func (w *Worker) heartbeat(ids []string) map[string]any {
	body := map[string]any{
		"worker_id": w.id, "state": w.state, "active_jobs": len(ids), "active_job_ids": ids, "queues": w.config.Queues,
		"concurrency": w.config.Concurrency, "pid": os.Getpid(),
	}
	if host, err := os.Hostname(); err == nil {
		body["hostname"] = host
	}
	if w.config.VisibilityTimeout > 0 {
		body["visibility_timeout_ms"] = milliseconds(w.config.VisibilityTimeout)
	}
	if len(w.config.Labels) > 0 {
		body["labels"] = w.config.Labels
	}
	if w.config.Version != "" {
		body["version"] = w.config.Version
	}
	return body
}

// obey follows the directive of the server. A worker that stops stays in that state whatever the server says later.
func (w *Worker) obey(directive Directive) {
	w.mu.Lock()
	before := w.state
	if before != DirectiveTerminate && (directive == DirectiveQuiet || directive == DirectiveRunning) {
		w.state = directive
	}
	w.mu.Unlock()
	if before == DirectiveTerminate || before == directive || directive == "" {
		return
	}
	w.logger.Info("the server directs this worker", "directive", directive)
	switch directive {
	case DirectiveQuiet:
		w.listeners.emit(EventWorkerQuiet, nil, nil)
	case DirectiveTerminate:
		w.stop(errTerminated)
	case DirectiveRunning:
		signal(w.slotFree)
	}
}

// leave tells the server that this worker has ended. Nothing depends on it. A server without the route to deregister learns it from the
// heartbeat; ojsd would list the worker as stale for an hour after that. The body goes with POST, because proxies drop that of a DELETE.
func (w *Worker) leave(ctx context.Context, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePeriod)
	defer cancel()
	w.mu.Lock()
	body := w.heartbeat([]string{})
	w.mu.Unlock()
	reason := "shutdown"
	if failed != nil {
		reason = "error"
	}
	for _, r := range []Call{
		post("/workers/heartbeat", body),
		post("/workers/"+url.PathEscape(w.id)+"/deregister", map[string]any{"reason": reason, "jobs_completed": w.completed.Load()}),
	} {
		r.once = true
		if err := w.client.Do(ctx, r, nil); err != nil {
			w.logger.DebugContext(ctx, "the server was not told that this worker has ended", "path", r.Path, "error", err)
		}
	}
}
