package fakeserver

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// lease is the length of a reservation for which neither the fetch nor the job says anything.
const lease = 30 * time.Second

// fetchBody is the body of a fetch, and the member fetch of a batch of acks or nacks.
type fetchBody struct {
	Queues              []string `json:"queues"`
	Count               int      `json:"count"`
	WorkerID            string   `json:"worker_id"`
	WaitMS              int64    `json:"wait_ms"`
	VisibilityTimeoutMS int64    `json:"visibility_timeout_ms"`
}

// fetch gives out jobs, and waits for some if it is asked to. It waits without the lock and looks again after every change;
// wait_ms is in real time.
func (s *Server) fetch(ctx context.Context, r *Request) answer {
	var body fetchBody
	if err := json.Unmarshal(r.Body, &body); err != nil || len(body.Queues) == 0 {
		return invalid("queues", cmp.Or(err, errNoType))
	}
	timer := time.NewTimer(time.Duration(body.WaitMS) * time.Millisecond)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.promote()
		jobs, open := []ojs.Job{}, s.open(body.WorkerID)
		if open && ctx.Err() == nil {
			jobs = s.claim(body)
		}
		changed := s.changed
		s.mu.Unlock()
		if len(jobs) > 0 || !open || body.WaitMS == 0 || !s.has(ojs.ExtensionLongPolling) {
			a := ok(object{"jobs": jobs})
			a.jobs = jobs
			return a
		}
		select {
		case <-changed:
		case <-timer.C:
			return ok(object{"jobs": jobs})
		case <-ctx.Done():
			return ok(object{"jobs": jobs})
		}
	}
}

// open reports whether a worker may get jobs. A directive holds until another one is given; terminate that the worker has
// reported itself is final until it registers again.
func (s *Server) open(worker string) bool {
	w := s.workers[worker]
	if w == nil {
		return true
	}
	state := cmp.Or(w.directive, w.reported, ojs.DirectiveRunning)
	return state == ojs.DirectiveRunning && w.reported != ojs.DirectiveTerminate
}

// handBack makes jobs available whose answer nobody gets. It serves CutNext: jobs of an answer that was cut would otherwise
// stay reserved until their leases end.
func (s *Server) handBack(jobs []ojs.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		s.release(s.jobs[j.ID])
	}
	s.wake()
}

// release makes an active job available again without counting the attempt.
func (s *Server) release(j *record) {
	j.Attempt--
	j.StartedAt = time.Time{}
	s.available(j)
}

func (s *Server) has(extension string) bool { return slices.Contains(s.extensions, extension) }

// claim takes available jobs: by queue as listed, then priority, then age. The caller has the lock. A count below 1 counts as
// 1.
func (s *Server) claim(body fetchBody) []ojs.Job {
	var found []*record
	queues, visibility := body.Queues, time.Duration(body.VisibilityTimeoutMS)*time.Millisecond
	for _, j := range s.order {
		if j.State == ojs.StateAvailable && slices.Contains(queues, j.Queue) && !s.paused[j.Queue] {
			found = append(found, j)
		}
	}
	// The order is that of docs/reference/http.md, Fetch, without the turns of fair queues.
	slices.SortFunc(found, func(a, b *record) int {
		return cmp.Or(cmp.Compare(slices.Index(queues, a.Queue), slices.Index(queues, b.Queue)), cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(a.tick, b.tick))
	})
	jobs := []ojs.Job{}
	for _, j := range found[:min(max(body.Count, 1), len(found))] {
		j.lease = cmp.Or(visibility, time.Duration(j.VisibilityTimeoutMS)*time.Millisecond, lease)
		j.State, j.WorkerID, j.StartedAt, j.reserved = ojs.StateActive, body.WorkerID, s.now(), s.now().Add(j.lease)
		j.Attempt++
		s.tick++
		j.LeaseToken = strconv.FormatInt(s.tick, 36)
		j.LastCheckpoint = j.checkpoint
		s.emit(ojs.EventJobStarted, j, object{"worker_id": body.WorkerID, "attempt": j.Attempt})
		jobs = append(jobs, j.Job)
	}
	return jobs
}

// outcome is the body of an ack or nack.
type outcome struct {
	JobID    string          `json:"job_id"`
	WorkerID string          `json:"worker_id"`
	Attempt  int             `json:"attempt"`
	Lease    string          `json:"lease_token"`
	Result   json.RawMessage `json:"result"`
	Requeue  bool            `json:"requeue"`
	DelayMS  int64           `json:"delay_ms"`
	Error    ojs.JobError    `json:"error"`
}

func (s *Server) serveWorkers(path []string, r *Request) answer {
	switch strings.Join(path, "/") {
	case "ack":
		return s.one(r, s.ack)
	case "nack":
		return s.one(r, s.nack)
	case "ack/batch":
		return s.many(r, s.ack)
	case "nack/batch":
		return s.many(r, s.nack)
	case "heartbeat":
		return s.heartbeat(r)
	case "progress":
		return s.progress(r)
	case "register":
		return s.register(r)
	}
	return noRoute(r)
}

// one answers a report about a job that was cancelled with acknowledged false and changes nothing.
func (s *Server) one(r *Request, act func(outcome) (*record, *ojs.Error)) answer {
	var o outcome
	if err := json.Unmarshal(r.Body, &o); err != nil {
		return invalid("body", err)
	}
	j, refused := act(o)
	if refused != nil {
		return refuse(statusOf(refused), refused)
	}
	return ok(object{"acknowledged": j.State != ojs.StateCancelled, "job_id": j.ID, "state": j.State, "job": j.Job})
}

// many goes on after a refused item. The fetch sees what the acks have made available.
func (s *Server) many(r *Request, act func(outcome) (*record, *ojs.Error)) answer {
	var body struct {
		Acks  []outcome  `json:"acks"`
		Nacks []outcome  `json:"nacks"`
		Fetch *fetchBody `json:"fetch"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || !s.has(ojs.ExtensionBatchAck) {
		return noRoute(r)
	}
	items := []object{}
	for _, o := range append(body.Acks, body.Nacks...) {
		if j, refused := act(o); refused != nil {
			items = append(items, object{"job_id": o.JobID, "status": "failed", "error": refused})
		} else {
			items = append(items, object{"job_id": o.JobID, "status": "ok", "job": j.Job})
		}
	}
	if body.Fetch == nil {
		return ok(object{"items": items})
	}
	jobs := []ojs.Job{}
	if s.open(body.Fetch.WorkerID) {
		jobs = s.claim(*body.Fetch)
	}
	a := ok(object{"items": items, "jobs": jobs})
	a.jobs = jobs
	return a
}

// held finds the job of an outcome, if it is that of its present run. A cancelled job is answered to the worker that ran it
// without an error.
func (s *Server) held(o outcome) (*record, *ojs.Error) {
	j := s.jobs[o.JobID]
	switch {
	case j == nil:
		return nil, noSuch("job", o.JobID)
	case j.State == ojs.StateCancelled && j.WorkerID == o.WorkerID:
		return j, nil
	case j.State != ojs.StateActive:
		return nil, wrongState(j, ojs.StateActive)
	case o.WorkerID != "" && o.WorkerID != j.WorkerID:
		return nil, newError(ojs.ErrNotOwner, object{"job_id": j.ID, "worker_id": o.WorkerID},
			"Job %s is reserved for worker_id %s, not for %s.", j.ID, j.WorkerID, o.WorkerID)
	case o.Attempt != 0 && o.Attempt != j.Attempt:
		return nil, newError(ojs.ErrStaleAttempt, object{"job_id": j.ID}, "attempt %d is not the current attempt of job %s, which is %d.",
			o.Attempt, j.ID, j.Attempt)
	case o.Lease != "" && o.Lease != j.LeaseToken:
		return nil, newError(ojs.ErrStaleAttempt, object{"job_id": j.ID}, "lease_token is not that of the current run of job %s.", j.ID)
	}
	return j, nil
}

func (s *Server) ack(o outcome) (*record, *ojs.Error) {
	j, refused := s.held(o)
	if refused != nil || j.State == ojs.StateCancelled {
		return j, refused
	}
	j.Result, j.Error = o.Result, nil
	s.end(j, ojs.StateCompleted)
	return j, nil
}

// nack ignores delay_ms without the extension, so that the job is available at once, or after its backoff.
func (s *Server) nack(o outcome) (*record, *ojs.Error) {
	j, refused := s.held(o)
	if refused != nil || j.State == ojs.StateCancelled {
		return j, refused
	}
	if o.Requeue {
		s.release(j)
		if o.DelayMS > 0 && s.has(ojs.ExtensionRequeueDelay) {
			j.State, j.due = ojs.StateScheduled, s.now().Add(time.Duration(o.DelayMS)*time.Millisecond)
			j.ScheduledAt = j.due
		}
		return j, nil
	}
	if !s.has(ojs.ExtensionRetryDelay) {
		o.DelayMS = 0
	}
	s.fail(j, o.Error, o.Error.Code, time.Duration(o.DelayMS)*time.Millisecond)
	return j, nil
}

func (s *Server) known(id string) *worker {
	if s.workers[id] == nil {
		s.workers[id] = &worker{}
	}
	return s.workers[id]
}

func (s *Server) register(r *Request) answer {
	var body struct {
		WorkerID string `json:"worker_id"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("body", err)
	}
	s.known(body.WorkerID).reported = ""
	return ok(object{"ok": true})
}

// heartbeat has a completed job in none of the three lists: its worker knows.
func (s *Server) heartbeat(r *Request) answer {
	var body struct {
		WorkerID     string            `json:"worker_id"`
		State        ojs.Directive     `json:"state"`
		ActiveJobIDs []string          `json:"active_job_ids"`
		LeaseTokens  map[string]string `json:"lease_tokens"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("body", err)
	}
	w := s.known(body.WorkerID)
	// A worker that has reported terminate stays so; a new process of the same name registers first.
	if w.reported != ojs.DirectiveTerminate {
		w.reported = body.State
	}
	extended, cancelled, lost := []string{}, []string{}, []string{}
	for _, id := range body.ActiveJobIDs {
		switch j := s.jobs[id]; {
		case j != nil && j.State == ojs.StateActive && j.WorkerID == body.WorkerID &&
			(body.LeaseTokens[id] == "" || body.LeaseTokens[id] == j.LeaseToken):
			j.reserved = s.now().Add(j.lease)
			extended = append(extended, id)
		case j != nil && j.State == ojs.StateCancelled:
			cancelled = append(cancelled, id)
		case j == nil || j.State != ojs.StateCompleted:
			lost = append(lost, id)
		}
	}
	state := cmp.Or(w.directive, w.reported, ojs.DirectiveRunning)
	if w.reported == ojs.DirectiveTerminate {
		state = w.reported
	}
	return ok(object{"acknowledged": true, "state": state, "jobs_extended": extended, "jobs_cancelled": cancelled, "jobs_lost": lost,
		"server_time": s.now()})
}

// progress renews the reservation, by the length that was chosen when the job was fetched.
func (s *Server) progress(r *Request) answer {
	var body struct {
		outcome
		Percentage float64         `json:"percentage"`
		Data       json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("body", err)
	}
	j, refused := s.held(body.outcome)
	if refused != nil {
		return refuse(statusOf(refused), refused)
	}
	j.Progress, j.ProgressData, j.reserved = body.Percentage/100, body.Data, s.now().Add(j.lease)
	s.emit(ojs.EventJobProgress, j, object{"progress_percent": body.Percentage})
	return ok(object{"job_id": j.ID, "progress": j.Progress})
}

// saveCheckpoint is shown with the next fetch of the job (last_checkpoint).
func (s *Server) saveCheckpoint(j *record, r *Request) answer {
	var body struct {
		State json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || r.Method == http.MethodGet {
		return invalid("state", cmp.Or(err, errNoType))
	}
	j.checkpoint = body.State
	return ok(object{"job_id": j.ID})
}
