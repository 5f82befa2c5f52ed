package ojstest

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

const lease = 30 * time.Second

// fetch gives out jobs, and waits for some if it is asked to.
func (s *Server) fetch(ctx context.Context, r *ojs.Request) answer {
	var body struct {
		Queues              []string `json:"queues"`
		Count               int      `json:"count"`
		WorkerID            string   `json:"worker_id"`
		WaitMS              int64    `json:"wait_ms"`
		VisibilityTimeoutMS int64    `json:"visibility_timeout_ms"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || len(body.Queues) == 0 {
		return invalid("queues", cmp.Or(err, errNoType))
	}
	timer := time.NewTimer(time.Duration(body.WaitMS) * time.Millisecond)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.promote()
		jobs := []ojs.JobInfo{}
		w := s.workers[body.WorkerID]
		open := w == nil || (cmp.Or(w.directive, w.reported) == "" || cmp.Or(w.directive, w.reported) == ojs.DirectiveRunning) && w.reported != ojs.DirectiveTerminate
		if open && ctx.Err() == nil {
			jobs = s.claim(body.Queues, max(body.Count, 1), body.WorkerID, time.Duration(body.VisibilityTimeoutMS)*time.Millisecond)
		}
		changed := s.changed
		s.mu.Unlock()
		if len(jobs) > 0 || !open || body.WaitMS == 0 || !s.has(ojs.ExtensionLongPolling) {
			return ok(object{"jobs": jobs})
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

func (s *Server) has(extension string) bool { return slices.Contains(s.extensions, extension) }

// claim takes available jobs: by queue as listed, then priority, then age.
func (s *Server) claim(queues []string, count int, worker string, visibility time.Duration) []ojs.JobInfo {
	var found []*record
	for _, j := range s.order {
		if j.State == ojs.StateAvailable && slices.Contains(queues, j.Queue) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *record) int {
		return cmp.Or(cmp.Compare(slices.Index(queues, a.Queue), slices.Index(queues, b.Queue)), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.tick, b.tick))
	})
	jobs := []ojs.JobInfo{}
	for _, j := range found[:min(count, len(found))] {
		j.lease = cmp.Or(visibility, time.Duration(j.VisibilityTimeoutMS)*time.Millisecond, lease)
		j.State, j.WorkerID, j.StartedAt, j.reserved = ojs.StateActive, worker, s.now(), s.now().Add(j.lease)
		j.Attempt++
		j.LastCheckpoint = j.checkpoint
		s.emit(ojs.EventJobStarted, j, object{"worker_id": worker, "attempt": j.Attempt})
		jobs = append(jobs, j.JobInfo)
	}
	return jobs
}

// outcome is the body of an ack or nack.
type outcome struct {
	JobID    string          `json:"job_id"`
	WorkerID string          `json:"worker_id"`
	Attempt  int             `json:"attempt"`
	Result   json.RawMessage `json:"result"`
	Requeue  bool            `json:"requeue"`
	Error    ojs.JobError    `json:"error"`
}

func (s *Server) serveWorkers(path []string, r *ojs.Request) answer {
	switch strings.Join(path, "/") {
	case "ack":
		return s.one(r, s.ack)
	case "nack":
		return s.one(r, s.nack)
	case "ack/batch":
		return s.many(r, "acks", s.ack)
	case "nack/batch":
		return s.many(r, "nacks", s.nack)
	case "heartbeat":
		return s.heartbeat(r)
	case "progress":
		return s.progress(r)
	case "register":
		return s.register(r)
	}
	return noRoute(r)
}

func (s *Server) one(r *ojs.Request, act func(outcome) (*record, *ojs.Error)) answer {
	var o outcome
	if err := json.Unmarshal(r.Body, &o); err != nil {
		return invalid("body", err)
	}
	j, refused := act(o)
	if refused != nil {
		return refuse(statusOf(refused), refused)
	}
	return ok(object{"acknowledged": j.State != ojs.StateCancelled, "job_id": j.ID, "state": j.State, "job": j.JobInfo})
}

func (s *Server) many(r *ojs.Request, member string, act func(outcome) (*record, *ojs.Error)) answer {
	var body map[string][]outcome
	if err := json.Unmarshal(r.Body, &body); err != nil || !s.has(ojs.ExtensionBatchAck) {
		return noRoute(r)
	}
	items := []object{}
	for _, o := range body[member] {
		if j, refused := act(o); refused != nil {
			items = append(items, object{"job_id": o.JobID, "status": "failed", "error": refused})
		} else {
			items = append(items, object{"job_id": o.JobID, "status": "ok", "job": j.JobInfo})
		}
	}
	return ok(object{"items": items})
}

// held finds the job of an outcome, if it is that of its present run.
func (s *Server) held(o outcome) (*record, *ojs.Error) {
	j := s.jobs[o.JobID]
	switch {
	case j == nil:
		return nil, ojs.ErrNotFound("job", o.JobID)
	case j.State == ojs.StateCancelled && j.WorkerID == o.WorkerID:
		return j, nil
	case j.State != ojs.StateActive:
		return nil, ojs.ErrConflict(j.ID, j.State, ojs.StateActive)
	case o.WorkerID != "" && o.WorkerID != j.WorkerID:
		return nil, ojs.ErrNotOwner(j.ID, o.WorkerID, j.WorkerID)
	case o.Attempt != 0 && o.Attempt != j.Attempt:
		return nil, ojs.ErrStaleAttempt(j.ID, int64(o.Attempt), int64(j.Attempt))
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

func (s *Server) nack(o outcome) (*record, *ojs.Error) {
	j, refused := s.held(o)
	if refused != nil || j.State == ojs.StateCancelled {
		return j, refused
	}
	if o.Requeue {
		j.Attempt--
		j.StartedAt = time.Time{}
		s.available(j)
		return j, nil
	}
	s.fail(j, o.Error, o.Error.Code)
	return j, nil
}

func (s *Server) known(id string) *worker {
	if s.workers[id] == nil {
		s.workers[id] = &worker{}
	}
	return s.workers[id]
}

func (s *Server) register(r *ojs.Request) answer {
	var body struct {
		WorkerID string `json:"worker_id"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("body", err)
	}
	s.known(body.WorkerID).reported = ""
	return ok(object{"ok": true})
}

func (s *Server) heartbeat(r *ojs.Request) answer {
	var body struct {
		WorkerID     string   `json:"worker_id"`
		State        string   `json:"state"`
		ActiveJobIDs []string `json:"active_job_ids"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("body", err)
	}
	w := s.known(body.WorkerID)
	if w.reported != ojs.DirectiveTerminate {
		w.reported = body.State
	}
	extended, cancelled, lost := []string{}, []string{}, []string{}
	for _, id := range body.ActiveJobIDs {
		switch j := s.jobs[id]; {
		case j != nil && j.State == ojs.StateActive && j.WorkerID == body.WorkerID:
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
	return ok(object{"acknowledged": true, "state": state, "jobs_extended": extended, "jobs_cancelled": cancelled, "jobs_lost": lost, "server_time": s.now()})
}

func (s *Server) progress(r *ojs.Request) answer {
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

func (s *Server) saveCheckpoint(j *record, r *ojs.Request) answer {
	var body struct {
		State json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || r.Method == http.MethodGet {
		return invalid("state", cmp.Or(err, errNoType))
	}
	j.checkpoint = body.State
	return ok(object{"job_id": j.ID})
}
