package fakeserver

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// record is a stored job. Only the server's goroutine that has the lock reads or changes it; answers get copies of Job.
type record struct {
	ojs.Job

	request   submission
	uniqueKey string // "" without a policy
	tick      int64  // order of entering available
	// due is when a scheduled or retryable job becomes available; zero in other states.
	due        time.Time
	reserved   time.Time // end of the reservation
	lease      time.Duration
	checkpoint json.RawMessage
	message    string // of the latest progress
	dead       bool   // a dead letter, once it is discarded
	ran        bool   // it was active when it ended
	cron       string
	flow       *workflow
	step       *step
}

func (s *Server) serveJobs(path []string, r *Request) answer {
	switch {
	case len(path) == 0 && r.Method == http.MethodPost:
		return s.enqueueOne(r)
	case len(path) == 0 && r.Method == http.MethodGet:
		return s.listJobs(r)
	case len(path) == 1 && path[0] == "batch":
		return s.enqueueBatch(r)
	case len(path) == 1 && path[0] == "bulk":
		return s.enqueueBulk(r)
	case len(path) == 2 && path[0] == "bulk":
		return s.changeMany(path[1], r)
	case len(path) == 0:
		return noRoute(r)
	}
	if len(path) == 2 && path[1] == "checkpoint" && (r.Method == http.MethodPost || r.Method == http.MethodPut) {
		return s.saveCheckpoint(strings.TrimPrefix(path[0], "job_"), r)
	}
	j := s.jobs[strings.TrimPrefix(path[0], "job_")]
	if j == nil {
		return notFound("job", path[0])
	}
	switch action := strings.Join(path[1:], "/"); {
	case action == "" && r.Method == http.MethodGet:
		return ok(object{"job": j.show()})
	case action == "" && r.Method == http.MethodDelete:
		return s.cancel(j)
	case action == "" && r.Method == http.MethodPatch:
		return s.setPriority(j, r)
	case action == "explain":
		return ok(s.explain(j))
	case action == "activate":
		return s.activate(j)
	case action == "result":
		return ok(object{"job_id": j.ID, "id": j.ID, "state": j.State, "result": j.Result, "error": j.Error,
			"completed_at": nullTime(j.CompletedAt)})
	case action == "progress":
		return ok(object{"job_id": j.ID, "state": j.State, "progress": j.Progress, "message": j.message, "data": j.ProgressData})
	}
	return noRoute(r)
}

// awaitResult waits for the end of a job, without the lock, up to the timeout of the query.
func (s *Server) awaitResult(ctx context.Context, path []string, r *Request) answer {
	seconds := 30
	if text := r.Query.Get("timeout"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return refusal(newError(ojs.ErrInvalidRequest, object{"field": "timeout"}, "'timeout' must be 1 to 60 seconds, got %q.", text))
		}
		seconds = min(n, 60)
	}
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.promote()
		a, changed := s.serveJobs(path[1:], r), s.changed
		j := s.jobs[path[1]]
		ended := j == nil || j.State.Terminal()
		s.mu.Unlock()
		if ended {
			return a
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return a
		case <-timer.C:
			return refuse(http.StatusRequestTimeout, newError(ojs.ErrWaitTimeout, nil, "Job %s has not ended yet; ask again.", path[1]))
		}
	}
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *Server) available(j *record) {
	s.tick++
	j.State, j.tick, j.due, j.EnqueuedAt = ojs.StateAvailable, s.tick, time.Time{}, s.now()
}

// listJobs takes for newest what was enqueued last; a retry does not move a job.
func (s *Server) listJobs(r *Request) answer {
	if refused := oneOf(r, "state", ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable,
		ojs.StateCompleted,
		ojs.StateCancelled, ojs.StateDiscarded); refused != nil {
		return refusal(refused)
	}
	all := []shownJob{}
	for _, j := range slices.Backward(s.order) {
		if in(r, "state", string(j.State)) && in(r, "queue", j.Queue) && in(r, "type", j.Type) {
			all = append(all, j.show())
		}
	}
	return page(r, "jobs", all)
}

// in reports whether a comma list in the query, if there is one, has a value. A filter with several values matches any of them.
func in(r *Request, name, value string) bool {
	list := r.Query.Get(name)
	return list == "" || slices.Contains(strings.Split(list, ","), value)
}

// cancel ends a running job at once; its worker learns of it with its next heartbeat.
func (s *Server) cancel(j *record) answer {
	if j.State.Terminal() {
		return conflict(j, ojs.StateAvailable)
	}
	before := j.State
	s.end(j, ojs.StateCancelled)
	info := j.show()
	info.PreviousState = before
	return ok(object{"job": info})
}

func conflict(j *record, expected ...ojs.JobState) answer {
	return refuse(http.StatusConflict, wrongState(j, expected...))
}

func (s *Server) activate(j *record) answer {
	if j.State != ojs.StatePending {
		return conflict(j, ojs.StatePending)
	}
	s.available(j)
	s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
	info := j.show()
	info.PreviousState = ojs.StatePending
	return ok(object{"job": info})
}

// end brings a job to a final state. It also lets the workflow of the job go on, in the same step, so a test sees the next step
// as soon as the ack is answered.
func (s *Server) end(j *record, state ojs.JobState) {
	j.ran = j.State == ojs.StateActive
	j.State = state
	switch state {
	case ojs.StateCompleted:
		j.CompletedAt = s.now()
		s.emit(ojs.EventJobCompleted, j, object{"attempt": j.Attempt, "result": j.Result,
			"duration_ms": j.CompletedAt.Sub(j.StartedAt).Milliseconds()})
	case ojs.StateCancelled:
		j.CancelledAt = s.now()
		s.emit(ojs.EventJobCancelled, j, object{})
	case ojs.StateDiscarded:
		j.DiscardedAt = s.now()
		s.emit(ojs.EventJobDiscarded, j, object{"error": j.Error})
	}
	s.advance(j)
}

// promote makes jobs available whose time has come, and ends reservations that are over. The caller has the lock. It runs at
// the start of each request and in assertions, because nothing runs by itself here, and wakes what waits if it has changed something.
func (s *Server) promote() {
	const latest = 500 * time.Millisecond // by when a server ends attempts that take too long
	now := s.now()
	changed := s.fireCrons(now)
	for _, j := range s.order {
		ttl := j.request.TTL
		switch {
		case j.State != ojs.StateActive && !j.State.Terminal() && !j.ExpiresAt.IsZero() && j.ExpiresAt.Before(now):
			s.expire(j, "expired")
		case j.Attempt == 0 && !j.State.Terminal() && ttl > 0 && j.CreatedAt.Add(ttl).Before(now):
			s.expire(j, "enqueue_ttl_expired")
		case (j.State == ojs.StateScheduled || j.State == ojs.StateRetryable) && !j.due.After(now):
			scheduled := j.State == ojs.StateScheduled
			s.available(j)
			if scheduled {
				s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
			}
		case j.State == ojs.StateActive && j.TimeoutMS > 0 &&
			j.StartedAt.Add(time.Duration(j.TimeoutMS)*time.Millisecond+latest).Before(now):
			s.fail(j, ojs.JobError{Code: "timeout", Message: "the execution timeout is over", Retryable: true}, "timeout", 0)
		case j.State == ojs.StateActive && j.reserved.Before(now):
			s.loseLease(j)
		default:
			continue
		}
		changed = true
	}
	if changed {
		s.wake()
	}
}

// expire discards a job that was not started in time. It is a dead letter only if its policy says so.
func (s *Server) expire(j *record, code string) {
	j.Error = &ojs.JobError{Code: code, Type: code, Message: "the job was not started in time", Attempt: j.Attempt, OccurredAt: s.now()}
	j.dead = j.request.Retry.onExhaustion == "dead_letter"
	j.State, j.DiscardedAt = ojs.StateDiscarded, s.now()
	s.emit(ojs.EventJobExpired, j, object{"error": j.Error})
	s.advance(j)
}

func (s *Server) setPriority(j *record, r *Request) answer {
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	in.others(ojs.ErrInvalidRequest, "priority")
	n, there := in.integer(in.pick("priority"), -100, 100)
	if !there {
		in.refuse(in.pick("priority"), "an integer from -100 to 100")
	}
	if p.first != nil {
		return refusal(p.first)
	}
	if j.State != ojs.StateAvailable && j.State != ojs.StateScheduled {
		return conflict(j, ojs.StateAvailable, ojs.StateScheduled)
	}
	j.Priority = int(n)
	return ok(object{"job": j.show()})
}

func (s *Server) emit(kind string, j *record, data object) {
	data = maps.Clone(data)
	data["job_id"], data["job_type"], data["queue"] = j.ID, j.Type, j.Queue
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte("{}")
	}
	s.events = append(s.events, &ojs.Event{
		SpecVersion: "1.0", ID: "evt_" + ojs.NewID(), Type: kind, Source: "ojs://fakeserver/api", Time: s.now(), Subject: j.ID, Data: text,
	})
}
