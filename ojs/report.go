package ojs

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"
)

type reportKind int

const (
	reportAck reportKind = iota
	reportNack
	reportCancel
)

// report is the outcome of a run on its way to the server. One goroutine at a time changes a report: the sender that has it, or
// the loop under the lock while it is queued.
type report struct {
	run     *run
	kind    reportKind
	failure map[string]any // of a nack without requeue: the failure as it is sent
	requeue bool           // hand back without counting the attempt
	until   time.Time      // of a nack: the job is not to run again before; zero: as the server decides
	due     time.Time      // not to be sent before; zero: now
	tries   int
	alone   bool // not in a batch, because a batch was refused
}

const (
	// batchMax and batchBytes bound a batch of reports: servers take 10 000 items and 32 MiB.
	batchMax   = 1000
	batchBytes = 8 << 20
	// batchSenders is how many batches are on their way at a time: with two of them, a report waits for at most half a round trip, and the
	// reports of meanwhile go together. singleSenders is the same where there are no batches.
	batchSenders, singleSenders = 2, 16
	// heldMax bounds the jobs that wait for their time in the worker. Beyond it they are handed back at once.
	heldMax = 1000
)

// batches reports whether a report may go with others.
func (r *report) batches() bool { return !r.alone && r.kind != reportCancel }

// report queues an outcome.
func (w *Worker) report(r *report) {
	w.mu.Lock()
	w.queueReport(r)
	w.mu.Unlock()
	signal(w.reportNow)
	signal(w.slotFree)
}

// queueReport is report for a caller that has the lock, and signals. The outcome of a lost job is dropped.
// A report that waits because its handler asked for it does not wait any more when the worker stops, or when there are too
// many. One that waits after a failed try does: the server is not to be asked at once again.
func (w *Worker) queueReport(r *report) {
	switch {
	case r.run.lost:
	case w.held(r, time.Now()) <= 0, r.tries == 0 && (len(w.delayed) >= heldMax || w.state == DirectiveTerminate):
		w.ready = append(w.ready, r)
	default:
		w.delayed = append(w.delayed, r)
	}
}

// held is how long a report stays with the worker: until its next try, or because the server cannot delay the job. It is asked again when
// the report is due to go, because a server that could not be reached when the handler returned may be known by then.
func (w *Worker) held(r *report, now time.Time) time.Duration {
	wait := r.due.Sub(now)
	if !r.until.IsZero() && !w.delays(r) {
		wait = max(wait, r.until.Sub(now))
	}
	return wait
}

// delays reports whether the server is known to take the delay of a nack.
func (w *Worker) delays(r *report) bool {
	if r.requeue {
		return w.offered(ExtensionRequeueDelay)
	}
	return w.offered(ExtensionRetryDelay)
}

// shipment is one request with reports of one kind.
type shipment struct {
	reports []*report
	fetch   fetchPlan // in the same request
	answers int64     // requests that had been answered when this one was sent
}

// reportLoop sends reports as soon as there are some and a sender is free, until life is done. It ends only when every sender
// has returned, so no request outlives Run.
func (w *Worker) reportLoop(stopping, life context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var senders sync.WaitGroup
	defer senders.Wait()
	for {
		s, next := w.takeReports(stopping)
		if len(s.reports) > 0 {
			senders.Go(func() { w.send(stopping, life, s) })
			continue
		}
		timer.Reset(next)
		select {
		case <-life.Done():
			return
		case <-w.reportNow:
		case <-timer.C:
		}
	}
}

// takeReports takes reports of one kind that go in one request; none if there are none or all senders are busy. next is when the next
// delayed one is due. Reports of another kind, or beyond the bounds, stay in their order for the next request.
func (w *Worker) takeReports(stopping context.Context) (s shipment, next time.Duration) {
	batches := w.offered(ExtensionBatchAck)
	limit, most := singleSenders, 1
	if batches {
		limit, most = batchSenders, batchMax
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	next = w.promote(time.Now())
	if w.sending >= limit || len(w.ready) == 0 {
		return s, next
	}
	first, size := w.ready[0], 0
	rest := w.ready[:0:0]
	for _, r := range w.ready {
		fits := r.kind == first.kind && r.alone == first.alone && len(s.reports) < most && size < batchBytes &&
			(len(s.reports) == 0 || first.batches())
		if !fits {
			rest = append(rest, r)
			continue
		}
		// From here on heartbeats do not take the job away: the answer to the report tells what became of it.
		r.run.reporting = true
		s.reports = append(s.reports, r)
		size += len(r.run.result()) + 256
	}
	w.ready = rest
	// Counted under the same lock in which the reports leave the queue, so that a stop sees them in one place or the other.
	w.sending++
	if first.batches() && stopping.Err() == nil && w.fetchesWithReports() {
		s.fetch = w.planFetch()
		w.reserve(s.fetch, 1)
	}
	return s, next
}

// promote moves delayed reports whose time has come, and says when the next one is due. The caller has the lock.
func (w *Worker) promote(now time.Time) time.Duration {
	next := time.Hour
	w.delayed = slices.DeleteFunc(w.delayed, func(r *report) bool {
		if wait := w.held(r, now); wait > 0 {
			next = min(next, wait)
			return false
		}
		w.ready = append(w.ready, r)
		return true
	})
	return next
}

// send sends a shipment in one request, and begins the jobs that come with the answer. With the extension, acks and nacks go in
// batches even if there is only one, because the next fetch can go with them.
func (w *Worker) send(stopping, life context.Context, s shipment) {
	defer func() {
		w.mu.Lock()
		w.sending--
		w.mu.Unlock()
		signal(w.reportNow)
		signal(w.slotFree)
		signal(w.changed)
	}()
	s.answers = w.reportAnswers.Load()
	if first := s.reports[0]; len(s.reports) == 1 && (!first.batches() || !w.offered(ExtensionBatchAck)) {
		if err := w.sendOne(life, first); isRepeatable(err) {
			w.again(s, s.reports, err)
		} else {
			w.reportAnswered()
			w.sent(first, err)
		}
		w.take(life, stopping, nil, s.fetch) // none came, if the server has lost the extension meanwhile
		return
	}
	answer, err := w.sendBatch(life, s)
	var failed []*report
	var cause error
	for i, r := range s.reports {
		outcome := err // if the whole request has failed, the fate of each report is unknown
		if err == nil && answer.Items[i].Error != nil {
			outcome = answer.Items[i].Error
		}
		switch {
		case isRepeatable(outcome):
			failed, cause = append(failed, r), outcome
		case err != nil: // no fault of this report, perhaps
			r.alone = true
			w.report(r)
		default:
			w.sent(r, outcome)
		}
	}
	if len(failed) > 0 {
		w.again(s, failed, cause)
	} else {
		w.reportAnswered()
	}
	if s.fetch.count > 0 {
		w.fetched(life, s.fetch, answer, err)
	}
	w.take(life, stopping, answer.Jobs, s.fetch)
}

// fetched deals with what came of a fetch in a batch of reports. If that were fewer jobs than there is room for, fetchLoop asks next, and
// waits for more, or finds out what is wrong. A server that answers without the member jobs has passed over the fetch; from then on the
// worker fetches by itself.
func (w *Worker) fetched(ctx context.Context, asked fetchPlan, answer *jobsAnswer, err error) {
	w.mu.Lock()
	w.hungry, w.emptyQueues = asked.result(answer.Jobs)
	w.mu.Unlock()
	switch {
	case answer.FetchError != nil:
		failures := int(w.fetchFailures.Add(1))
		w.logger.Log(ctx, warnFirst(failures-1), "fetch failed", "error", answer.FetchError, "failures", failures)
		w.listeners.emit(EventWorkerFetchFailed, nil, map[string]any{"error": answer.FetchError.Error()})
	case err == nil && answer.Jobs == nil:
		w.fetchesAlone.Store(true)
	case err == nil:
		w.fetchFailures.Store(0)
	}
}

// body is that of a single ack or nack, and an item of a batch. worker_id and attempt fence the report: the server refuses it
// if the job has been given to another run since.
func (w *Worker) body(r *report) map[string]any {
	b := map[string]any{"job_id": r.run.ID, "worker_id": w.id, "attempt": r.run.Attempt}
	if r.run.LeaseToken != "" {
		b["lease_token"] = r.run.LeaseToken
	}
	switch {
	case r.kind == reportAck:
		if result := r.run.result(); result != nil {
			b["result"] = result
		}
		return b
	case r.requeue:
		b["requeue"] = true
	default:
		b["error"] = r.failure
	}
	if left := time.Until(r.until); left > 0 && w.delays(r) {
		b["delay_ms"] = milliseconds(left)
	}
	return b
}

// sendOne is not repeated by the client: the report loop does it, with its own waits.
func (w *Worker) sendOne(ctx context.Context, r *report) error {
	var request Call
	switch r.kind {
	case reportCancel:
		_, err := w.client.CancelJob(ctx, r.run.ID, "the handler has cancelled it")
		return err
	case reportNack:
		request = post("/workers/nack", w.body(r))
	default:
		request = post("/workers/ack", w.body(r))
	}
	request.once = true
	return w.client.Do(ctx, request, nil)
}

// sendBatch gives the outcome of each report, in order, unless there is an error. There may be jobs in any case.
// If the numbers of items differ, it is not known which report has which answer: all are sent again, one by one.
func (w *Worker) sendBatch(ctx context.Context, s shipment) (*jobsAnswer, error) {
	path, member := "/workers/ack/batch", "acks"
	if s.reports[0].kind == reportNack {
		path, member = "/workers/nack/batch", "nacks"
	}
	items := make([]map[string]any, len(s.reports))
	for i, r := range s.reports {
		items[i] = w.body(r)
	}
	body := map[string]any{member: items}
	if s.fetch.count > 0 {
		body["fetch"] = w.fetchBody(s.fetch)
	}
	request := post(path, body)
	request.once = true
	answer := &jobsAnswer{}
	if err := w.client.Do(ctx, request, answer); err != nil {
		return &jobsAnswer{}, err
	}
	if len(answer.Items) != len(s.reports) {
		return answer, &Error{Code: string(ErrInternal), Message: "the answer to a batch has another number of items"}
	}
	return answer, nil
}

// isRepeatable reports whether a report is to be sent again. A key that is refused may be one that is just being replaced, and what is
// no answer of a server, such as the 404 of a proxy whose servers are being replaced, says nothing about the job. Only a report that
// is too large for what stands in between would be refused for ever.
func isRepeatable(err error) bool {
	if t, ok := errors.AsType[*TransportError](err); ok {
		return t.Status != http.StatusRequestEntityTooLarge
	}
	return Retryable(err) || errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrPermissionDenied)
}

// sent deals with the answer to one report, which has been taken or refused.
func (w *Worker) sent(r *report, err error) {
	var e *Error
	switch {
	case err == nil:
		if r.kind == reportAck {
			w.completed.Add(1)
		}
		w.drop(r.run)
		w.reported(r)
		return
	case errors.As(err, &e) && (e.Status == http.StatusConflict || e.Code == "conflict"), errors.Is(err, ErrNotFound):
		// The job has moved on. After an outcome that was unknown this is the answer to a report that was carried out.
		if r.tries == 0 || ErrorDetail(err, "current_state") != string(StateCompleted) {
			w.logger.Warn("the outcome of a job was refused, because the job has moved on", "job_id", r.run.ID, "job_type", r.run.Type,
				"error", err)
		}
	case r.kind == reportAck: // the result is too large, or no JSON that the server takes
		f := &Failure{Code: string(ErrPayloadTooLarge), Message: "the result was refused: " + err.Error(), Permanent: true}
		if e != nil {
			f.Code, f.Message = e.Code, "the result was refused: "+e.Message
		}
		w.report(&report{run: r.run, kind: reportNack, failure: f.wire(), alone: true})
		return
	default:
		w.logger.Error("the outcome of a job was refused", "job_id", r.run.ID, "job_type", r.run.Type, "error", err)
	}
	w.drop(r.run)
}

// reported emits the event of an outcome that the server has taken. A job that was handed back has had none.
func (w *Worker) reported(r *report) {
	if w.listeners.empty() {
		return
	}
	data := map[string]any{"duration_ms": r.run.duration.Milliseconds()}
	switch {
	case r.kind == reportCancel:
		w.listeners.emit(EventJobCancelled, r.run.Job, data)
	case r.kind == reportAck:
		data["result"] = r.run.result()
		w.listeners.emit(EventJobCompleted, r.run.Job, data)
	case !r.requeue:
		data["error"] = r.failure
		w.listeners.emit(EventJobFailed, r.run.Job, data)
	}
}

// reportAnswered ends an outage, if there was one.
func (w *Worker) reportAnswered() {
	w.reportAnswers.Add(1)
	w.reportFailures.Store(0)
}

// again sends the reports of a request later, each in its own time. There is no limit of tries: with worker and attempt in it, a report
// never ends another run, and as long as the job is in hand, heartbeats renew it; if the server takes it away its reports are dropped.
//
// The log counts requests since the last one that was answered, and not the jobs and their tries: an outage may concern thousands. A
// request that was sent before that answer belongs to the outage before it.
func (w *Worker) again(s shipment, reports []*report, err error) {
	level, failures := slog.LevelDebug, int64(0)
	if s.answers == w.reportAnswers.Load() {
		failures = w.reportFailures.Add(1)
		level = warnFirst(int(failures) - 1)
	}
	first := reports[0].run
	w.logger.Log(context.Background(), level, "outcomes of jobs could not be reported; they are sent again",
		"jobs", len(reports), "job_id", first.ID, "job_type", first.Type, "error", err, "failures", failures)
	for _, r := range reports {
		w.mu.Lock()
		r.run.reporting = false // whether it is still this worker's is for heartbeats to say
		w.mu.Unlock()
		r.due = time.Now().Add(retryWait(err, r.tries))
		r.tries++
		w.report(r)
	}
}

// drop takes a job out of those in hand. Another run of the same job may have taken its place; that one stays.
func (w *Worker) drop(r *run) {
	w.mu.Lock()
	if w.inHand[r.ID] == r {
		delete(w.inHand, r.ID)
	}
	w.mu.Unlock()
	signal(w.slotFree)
}

// lose stops a run that is not this worker's any more. It may be called twice for one run, by a heartbeat and by a fetch that
// brings the job again; the hook is called once.
func (w *Worker) lose(r *run, cause error) {
	w.mu.Lock()
	already := r.lost
	r.lost = true
	ofRun := func(rep *report) bool { return rep.run == r }
	w.ready = slices.DeleteFunc(w.ready, ofRun)
	w.delayed = slices.DeleteFunc(w.delayed, ofRun)
	w.mu.Unlock()
	r.cancel(cause)
	w.drop(r)
	if already {
		return
	}
	w.logger.Warn("job was taken away", "job_id", r.ID, "job_type", r.Type, "cause", cause)
	lost := EventJobLost
	if errors.Is(cause, ErrJobCancelled) {
		lost = EventJobCancelled
	}
	w.listeners.emit(lost, r.Job, nil)
}
