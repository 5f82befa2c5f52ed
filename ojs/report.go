package ojs

import (
	"context"
	"encoding/json"
	"errors"
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

// report is the outcome of a run on its way to the server.
type report struct {
	run     *run
	kind    reportKind
	failure *Failure  // of a nack without requeue
	requeue bool      // hand back without counting the attempt
	due     time.Time // not before; zero: now
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

// report queues an outcome. That of a lost job is dropped.
func (w *Worker) report(r *report) {
	w.mu.Lock()
	switch {
	case r.run.lost:
		w.mu.Unlock()
		return
	case r.due.IsZero(), len(w.delayed) >= heldMax, w.state == DirectiveTerminate && r.tries == 0:
		w.ready = append(w.ready, r)
	default:
		w.delayed = append(w.delayed, r)
	}
	w.mu.Unlock()
	signal(w.reportNow)
	signal(w.slotFree)
}

// reportLoop sends reports as soon as there are some and a sender is free.
func (w *Worker) reportLoop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var senders sync.WaitGroup
	defer senders.Wait()
	for {
		group, next := w.takeReports()
		if len(group) > 0 {
			senders.Go(func() { w.send(ctx, group) })
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-w.reportNow:
		case <-timer.C:
		}
	}
}

// takeReports takes reports of one kind that go in one request; none if there are none or all senders are busy. next is when the next
// delayed one is due.
func (w *Worker) takeReports() (group []*report, next time.Duration) {
	m := w.extensions.Load()
	batches := m != nil && m.Has(ExtensionBatchAck)
	limit, most := singleSenders, 1
	if batches {
		limit, most = batchSenders, batchMax
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	next = w.promote(time.Now())
	if w.sending >= limit || len(w.ready) == 0 {
		return nil, next
	}
	first, size := w.ready[0], 0
	rest := w.ready[:0:0]
	for _, r := range w.ready {
		fits := r.kind == first.kind && r.alone == first.alone && len(group) < most && size < batchBytes && (len(group) == 0 || !first.alone && first.kind != reportCancel)
		if !fits {
			rest = append(rest, r)
			continue
		}
		r.run.reporting = true
		group = append(group, r)
		size += len(r.run.RunResult()) + 256
	}
	w.ready = rest
	w.sending++
	return group, next
}

// promote moves delayed reports whose time has come, and says when the next one is due.
func (w *Worker) promote(now time.Time) time.Duration {
	next := time.Hour
	w.delayed = slices.DeleteFunc(w.delayed, func(r *report) bool {
		if wait := r.due.Sub(now); wait > 0 {
			next = min(next, wait)
			return false
		}
		w.ready = append(w.ready, r)
		return true
	})
	return next
}

// send sends a group of reports in one request.
func (w *Worker) send(ctx context.Context, group []*report) {
	defer func() {
		w.mu.Lock()
		w.sending--
		w.mu.Unlock()
		signal(w.reportNow)
		signal(w.changed)
	}()
	if len(group) == 1 && (group[0].alone || group[0].kind == reportCancel || !w.batches()) {
		w.sent(group[0], w.sendOne(ctx, group[0]))
		return
	}
	errs, err := w.sendBatch(ctx, group)
	for i, r := range group {
		switch {
		case err == nil:
			w.sent(r, errs[i])
		case isRepeatable(err):
			w.again(r, err)
		default: // no fault of this report, perhaps
			r.alone = true
			w.report(r)
		}
	}
}

func (w *Worker) batches() bool {
	m := w.extensions.Load()
	return m != nil && m.Has(ExtensionBatchAck)
}

// body is that of a single ack or nack, and an item of a batch.
func (r *report) body(workerID string) map[string]any {
	b := map[string]any{"job_id": r.run.ID, "worker_id": workerID, "attempt": r.run.Attempt}
	switch {
	case r.kind == reportAck:
		if result := r.run.RunResult(); result != nil {
			b["result"] = result
		}
	case r.requeue:
		b["requeue"] = true
	default:
		b["error"] = r.failure.wire()
	}
	return b
}

func (f *Failure) wire() map[string]any {
	e := map[string]any{"code": f.code(), "message": f.message(), "retryable": !f.Permanent}
	if f.Type != "" {
		e["type"] = f.Type
	}
	if len(f.Details) > 0 {
		if _, err := json.Marshal(f.Details); err == nil {
			e["details"] = f.Details
		}
	}
	if len(f.Backtrace) > 0 {
		e["backtrace"] = f.Backtrace
	}
	return e
}

func (w *Worker) sendOne(ctx context.Context, r *report) error {
	var request call
	switch r.kind {
	case reportCancel:
		_, err := w.client.Cancel(ctx, r.run.ID, "the handler has cancelled it")
		return err
	case reportNack:
		request = post("/workers/nack", r.body(w.id))
	default:
		request = post("/workers/ack", r.body(w.id))
	}
	request.once = true
	return w.client.do(ctx, request, nil)
}

// sendBatch gives the outcome of each report, in order.
func (w *Worker) sendBatch(ctx context.Context, group []*report) ([]error, error) {
	path, member := "/workers/ack/batch", "acks"
	if group[0].kind == reportNack {
		path, member = "/workers/nack/batch", "nacks"
	}
	items := make([]map[string]any, len(group))
	for i, r := range group {
		items[i] = r.body(w.id)
	}
	request := post(path, map[string]any{member: items})
	request.once = true
	var answer struct {
		Items []struct {
			Status string `json:"status"`
			Error  *Error `json:"error"`
		} `json:"items"`
	}
	if err := w.client.do(ctx, request, &answer); err != nil {
		return nil, err
	}
	if len(answer.Items) != len(group) {
		return nil, &Error{Code: string(KindInternal), Message: "the answer to a batch has another number of items"}
	}
	errs := make([]error, len(group))
	for i, item := range answer.Items {
		if item.Error != nil {
			errs[i] = item.Error
		}
	}
	return errs, nil
}

// isRepeatable reports whether a report is to be sent again. A key that is refused may be one that is just being replaced.
func isRepeatable(err error) bool {
	return Retryable(err) || errors.Is(err, KindUnauthenticated) || errors.Is(err, KindPermissionDenied)
}

// sent deals with the answer to one report. A report is sent again until it is taken or refused: with worker and attempt in it, it
// never ends another run.
func (w *Worker) sent(r *report, err error) {
	var e *Error
	switch {
	case err == nil:
		w.drop(r.run)
		return
	case isRepeatable(err):
		w.again(r, err)
		return
	case errors.As(err, &e) && (e.Status == http.StatusConflict || e.Code == "conflict"), errors.Is(err, KindNotFound):
		// The job has moved on. After an outcome that was unknown this is the answer to a report that was carried out.
		if r.tries == 0 || ErrorDetail(err, "current_state") != string(StateCompleted) {
			w.logger.Warn("the outcome of a job was refused, because the job has moved on", "job_id", r.run.ID, "job_type", r.run.Type, "error", err)
		}
	case r.kind == reportAck && e != nil: // the result is too large, or no JSON that the server takes
		f := &Failure{Code: e.Code, Message: "the result was refused: " + e.Message, Permanent: true}
		w.report(&report{run: r.run, kind: reportNack, failure: f, alone: true})
		return
	default:
		w.logger.Error("the outcome of a job was refused", "job_id", r.run.ID, "job_type", r.run.Type, "error", err)
	}
	w.drop(r.run)
}

// again sends a report later.
func (w *Worker) again(r *report, err error) {
	wait := retryWait(err, r.tries)
	w.mu.Lock()
	r.run.reporting = false // whether it is still this worker's is for heartbeats to say
	w.mu.Unlock()
	r.tries++
	r.due = time.Now().Add(wait)
	w.logger.Warn("the outcome of a job could not be reported", "job_id", r.run.ID, "job_type", r.run.Type, "error", err, "retry_in", wait)
	w.report(r)
}

// drop takes a job out of those in hand.
func (w *Worker) drop(r *run) {
	w.mu.Lock()
	if w.inHand[r.ID] == r {
		delete(w.inHand, r.ID)
	}
	w.mu.Unlock()
	signal(w.slotFree)
}

// lose stops a run that is not this worker's any more.
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
	if hook := w.config.Hooks.JobLost; hook != nil {
		hook(r.JobContext, cause)
	}
}
