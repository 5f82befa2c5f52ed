package ojstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// record is a stored job. Only the server's goroutine that has the lock reads or changes it; answers get copies of JobInfo.
type record struct {
	ojs.JobInfo

	request submission
	tick    int64 // order of entering available
	// due is when a scheduled or retryable job becomes available; zero in other states.
	due        time.Time
	reserved   time.Time // end of the reservation
	lease      time.Duration
	checkpoint json.RawMessage
	flow       *workflow
	step       *step
}

// submission is what a client sends of a job. Members that are not listed are accepted and forgotten.
type submission struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Args      json.RawMessage `json:"args"`
	Meta      map[string]any  `json:"meta"`
	Schema    string          `json:"schema"`
	DependsOn []string        `json:"depends_on"`
	Options   struct {
		Queue               string        `json:"queue"`
		Priority            int           `json:"priority"`
		Tags                []string      `json:"tags"`
		DelayUntil          string        `json:"delay_until"`
		TimeoutMS           int64         `json:"timeout_ms"`
		VisibilityTimeoutMS int64         `json:"visibility_timeout_ms"`
		Retry               retryPolicy   `json:"retry"`
		Unique              *uniquePolicy `json:"unique"`
		Pending             bool          `json:"pending"`
	} `json:"options"`
}

// It understands the durations that package ojs writes, and always grows exponentially: backoff_strategy and jitter are
// ignored.
type retryPolicy struct {
	MaxAttempts        *int     `json:"max_attempts"`
	InitialInterval    string   `json:"initial_interval"`
	MaxInterval        string   `json:"max_interval"`
	BackoffCoefficient float64  `json:"backoff_coefficient"`
	NonRetryableErrors []string `json:"non_retryable_errors"`
}

// Periods, args_keys and meta_keys are ignored.
type uniquePolicy struct {
	Keys       []string       `json:"keys"`
	States     []ojs.JobState `json:"states"`
	OnConflict string         `json:"on_conflict"`
}

func (s *Server) serveJobs(path []string, r *ojs.Request) answer {
	switch {
	case len(path) == 0 && r.Method == http.MethodPost:
		return s.enqueueOne(r)
	case len(path) == 0 && r.Method == http.MethodGet:
		return s.listJobs(r)
	case len(path) == 1 && path[0] == "batch":
		return s.enqueueBatch(r)
	case len(path) == 1 && path[0] == "bulk":
		return s.enqueueBulk(r)
	case len(path) == 0:
		return noRoute(r)
	}
	j := s.jobs[path[0]]
	if j == nil {
		return notFound("job", path[0])
	}
	switch action := strings.Join(path[1:], "/"); {
	case action == "" && r.Method == http.MethodGet:
		return ok(object{"job": j.JobInfo})
	case action == "" && r.Method == http.MethodDelete:
		return s.cancel(j)
	case action == "activate":
		return s.activate(j)
	case action == "checkpoint":
		return s.saveCheckpoint(j, r)
	case action == "result":
		return ok(object{"job_id": j.ID, "state": j.State, "result": j.Result, "error": j.Error, "completed_at": nullTime(j.CompletedAt)})
	case action == "progress":
		return ok(object{"job_id": j.ID, "state": j.State, "progress": j.Progress, "data": j.ProgressData})
	}
	return noRoute(r)
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

var errNoType = errors.New("is missing")

// plan is what a submission comes to; nothing of it is stored or cancelled yet.
type plan struct {
	job      *record   // nil: none is stored
	twin     *record   // the answer instead of job
	replaced []*record // cancelled before job is stored
}

// prepare plans a submission. before are the plans of the same batch before it: they count as if they were carried out.
func (s *Server) prepare(sub submission, before ...plan) (plan, *ojs.Error) {
	j := &record{request: sub}
	if sub.Type == "" || len(sub.Args) == 0 || sub.Args[0] != '[' {
		return plan{}, ojs.ErrInvalidPayload("type", "", nil, fmt.Sprintf("type or args: %v", errNoType))
	}
	now := s.now()
	j.JobInfo = ojs.JobInfo{
		ID: sub.ID, Type: sub.Type, RawArgs: sub.Args, Meta: sub.Meta, Schema: sub.Schema, Queue: sub.Options.Queue, Priority: sub.Options.Priority,
		Tags: sub.Options.Tags, TimeoutMS: sub.Options.TimeoutMS, VisibilityTimeoutMS: sub.Options.VisibilityTimeoutMS, MaxAttempts: 3, CreatedAt: now,
	}
	if j.ID == "" {
		j.ID = ojs.NewID()
	}
	if j.Queue == "" {
		j.Queue = "default"
	}
	if j.Meta == nil {
		j.Meta = map[string]any{}
	}
	if n := sub.Options.Retry.MaxAttempts; n != nil {
		j.MaxAttempts = *n
	}
	p := plan{job: j}
	at, err := readTime(sub.Options.DelayUntil, now)
	if err != nil {
		return plan{}, ojs.ErrInvalidPayload("delay_until", "", nil, err.Error())
	}
	if at.After(now) {
		j.ScheduledAt, j.due = at, at
	}
	// The key comes before the id, as on a server: a duplicate is answered with its twin even if the id is taken.
	if twins := s.equivalent(j, before); len(twins) > 0 {
		oldest := twins[0].record
		switch onConflict := sub.Options.Unique.OnConflict; onConflict {
		case "ignore":
			return plan{twin: oldest}, nil
		case "replace", "replace_except_schedule":
			if onConflict == "replace_except_schedule" && twins[0].state == ojs.StateScheduled {
				j.ScheduledAt, j.due, j.request.Options.Pending = oldest.ScheduledAt, oldest.due, false
			}
			for _, t := range twins {
				if !t.state.Terminal() { // the others stay as they are
					p.replaced = append(p.replaced, t.record)
				}
			}
		default:
			if s.jobs[oldest.ID] != oldest {
				return plan{}, ojs.ErrDuplicateInRequest("")
			}
			return plan{}, ojs.ErrDuplicate(oldest.ID, twins[0].state, "")
		}
	}
	if s.jobs[j.ID] != nil || slices.ContainsFunc(before, func(b plan) bool { return b.job != nil && b.job.ID == j.ID }) {
		return plan{}, ojs.ErrDuplicateID(j.ID)
	}
	j.State = ojs.StateAvailable
	switch {
	case j.request.Options.Pending:
		j.State = ojs.StatePending
	case !j.due.IsZero():
		j.State = ojs.StateScheduled
	}
	return p, nil
}

// twin is a job with the state that it has after the plans before it.
type twin struct {
	*record
	state ojs.JobState
}

// equivalent finds the jobs that the unique policy of j forbids beside it, oldest first. The type always counts, as on a real server.
// Args are compared as text.
func (s *Server) equivalent(j *record, before []plan) (twins []twin) {
	u := j.request.Options.Unique
	if u == nil {
		return nil
	}
	all, replaced := slices.Clone(s.order), map[*record]bool{}
	for _, p := range before {
		if p.job != nil {
			all = append(all, p.job)
		}
		for _, r := range p.replaced {
			replaced[r] = true
		}
	}
	for _, other := range all {
		state := other.State
		if replaced[other] {
			state = ojs.StateCancelled
		}
		live := !state.Terminal()
		if len(u.States) > 0 {
			live = slices.Contains(u.States, state)
		}
		if live && other.request.Options.Unique != nil && other.Type == j.Type &&
			(!slices.Contains(u.Keys, "queue") || other.Queue == j.Queue) && (!slices.Contains(u.Keys, "args") || string(other.RawArgs) == string(j.RawArgs)) {
			twins = append(twins, twin{other, state})
		}
	}
	return twins
}

// store carries out a plan that has a job.
func (s *Server) store(p plan) {
	for _, r := range p.replaced {
		s.end(r, ojs.StateCancelled)
	}
	j := p.job
	s.jobs[j.ID] = j
	s.order = append(s.order, j)
	switch j.State {
	case ojs.StatePending:
	case ojs.StateScheduled:
		s.emit(ojs.EventJobScheduled, j, object{"scheduled_at": j.ScheduledAt})
	default:
		s.available(j)
		s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
	}
}

func (s *Server) available(j *record) {
	s.tick++
	j.State, j.tick, j.due, j.EnqueuedAt = ojs.StateAvailable, s.tick, time.Time{}, s.now()
}

func (s *Server) enqueueOne(r *ojs.Request) answer {
	var sub submission
	if err := json.Unmarshal(r.Body, &sub); err != nil {
		return invalid("body", err)
	}
	p, refused := s.prepare(sub)
	switch {
	case refused != nil:
		return refuse(statusOf(refused), refused)
	case p.twin != nil:
		return ok(object{"job": p.twin.JobInfo, "deduplicated": true})
	}
	s.store(p)
	return created(object{"job": p.job.JobInfo})
}

// It knows the kinds that this server answers, and 400 for the rest.
func statusOf(e *ojs.Error) int {
	switch {
	case errors.Is(e, ojs.KindDuplicateJob) || e.Code == "conflict":
		return http.StatusConflict
	case errors.Is(e, ojs.KindNotFound):
		return http.StatusNotFound
	}
	return http.StatusBadRequest
}

// Nothing is stored or cancelled before all are checked. A job is checked against those before it in the batch, too.
func (s *Server) enqueueBatch(r *ojs.Request) answer {
	var body struct {
		Jobs []submission `json:"jobs"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("jobs", err)
	}
	var plans []plan
	for i, sub := range body.Jobs {
		p, refused := s.prepare(sub, plans...)
		if refused != nil {
			return refuse(statusOf(refused), ojs.ErrIndexed(refused, i))
		}
		plans = append(plans, p)
	}
	stored, fresh := make([]ojs.JobInfo, len(plans)), 0
	for i, p := range plans {
		if p.twin != nil { // as it is when the job comes
			stored[i] = p.twin.JobInfo
			stored[i].Deduplicated = true
			continue
		}
		s.store(p)
		fresh++
	}
	for i, p := range plans {
		if p.job != nil {
			stored[i] = p.job.JobInfo
		}
	}
	answer := object{"jobs": stored, "count": len(stored)}
	if fresh == 0 && len(stored) > 0 {
		return ok(answer)
	}
	return created(answer)
}

// Each job is checked after those before it were stored, so a later one may be their duplicate.
func (s *Server) enqueueBulk(r *ojs.Request) answer {
	var body struct {
		Jobs []submission `json:"jobs"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return invalid("jobs", err)
	}
	items, failed := []object{}, 0
	for i, sub := range body.Jobs {
		p, refused := s.prepare(sub)
		item := object{"index": i}
		switch {
		case refused != nil:
			failed++
			item["status"], item["error"] = "failed", refused
		case p.twin != nil:
			item["status"], item["job"] = "duplicate", p.twin.JobInfo
		default:
			s.store(p)
			item["status"], item["job"] = "created", p.job.JobInfo
		}
		items = append(items, item)
	}
	a := created(object{"total": len(items), "succeeded": len(items) - failed, "failed": failed, "items": items})
	switch {
	case failed > 0 && failed == len(items):
		a.status = http.StatusUnprocessableEntity
	case failed > 0:
		a.status = http.StatusMultiStatus
	}
	return a
}

// Newest means enqueued last; a retry does not move a job.
func (s *Server) listJobs(r *ojs.Request) answer {
	all := []ojs.JobInfo{}
	for _, j := range slices.Backward(s.order) {
		if in(r, "state", string(j.State)) && in(r, "queue", j.Queue) && in(r, "type", j.Type) {
			all = append(all, j.JobInfo)
		}
	}
	return page(r, "jobs", all)
}

// in reports whether a comma list in the query, if there is one, has a value. A filter with several values matches any of them.
func in(r *ojs.Request, name, value string) bool {
	list := r.Query.Get(name)
	return list == "" || slices.Contains(strings.Split(list, ","), value)
}

// A running job is cancelled at once; its worker learns of it with its next heartbeat.
func (s *Server) cancel(j *record) answer {
	if j.State.Terminal() {
		return conflict(j, ojs.StateAvailable)
	}
	before := j.State
	s.end(j, ojs.StateCancelled)
	info := j.JobInfo
	info.PreviousState = before
	return ok(object{"job": info})
}

func conflict(j *record, expected ojs.JobState) answer {
	return refuse(http.StatusConflict, ojs.ErrConflict(j.ID, j.State, expected))
}

func (s *Server) activate(j *record) answer {
	if j.State != ojs.StatePending {
		return conflict(j, ojs.StatePending)
	}
	s.available(j)
	s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
	return ok(object{"job": j.JobInfo})
}

// end brings a job to a final state. It also lets the workflow of the job go on, in the same step, so a test sees the next step
// as soon as the ack is answered.
func (s *Server) end(j *record, state ojs.JobState) {
	j.State = state
	switch state {
	case ojs.StateCompleted:
		j.CompletedAt = s.now()
		s.emit(ojs.EventJobCompleted, j, object{"attempt": j.Attempt, "result": j.Result})
	case ojs.StateCancelled:
		j.CancelledAt = s.now()
		s.emit(ojs.EventJobCancelled, j, object{})
	case ojs.StateDiscarded:
		j.DiscardedAt = s.now()
		s.emit(ojs.EventJobDiscarded, j, object{"error": j.Error})
	}
	s.advance(j)
}

// fail ends an attempt. It follows the rows of docs/reference/retries.md, Failure, that tests of handlers need; total timeouts
// and patterns with .* are not among them.
func (s *Server) fail(j *record, e ojs.JobError, code string) {
	e.Attempt, e.OccurredAt, e.WorkerID = j.Attempt, s.now(), j.WorkerID
	j.Error, j.Errors = &e, append(j.Errors, e)
	s.emit(ojs.EventJobFailed, j, object{"error": e})
	p := j.request.Options.Retry
	// Every job that is given up becomes discarded, whatever on_exhaustion says.
	final := j.Attempt >= max(j.MaxAttempts, 1) || !e.Retryable || code == "DISCARD" || code == "DEAD_LETTER" ||
		slices.Contains(p.NonRetryableErrors, e.Code) || slices.Contains(p.NonRetryableErrors, e.Type)
	if final {
		s.end(j, ojs.StateDiscarded)
		return
	}
	wait := p.backoff(j.Attempt)
	j.State, j.RetryDelayMS, j.due = ojs.StateRetryable, wait.Milliseconds(), s.now().Add(wait)
	j.NextAttemptAt = j.due
	s.emit(ojs.EventJobRetrying, j, object{"next_retry_at": j.due})
}

// backoff is exponential and has no jitter, so that tests know it. The first wait is the initial interval, and each is the
// coefficient times the one before, up to the maximum.
func (p retryPolicy) backoff(attempt int) time.Duration {
	first, most, coefficient := time.Second, 5*time.Minute, 2.0
	if d, err := readDuration(p.InitialInterval); err == nil {
		first = d
	}
	if d, err := readDuration(p.MaxInterval); err == nil {
		most = d
	} else {
		most = max(most, first)
	}
	if p.BackoffCoefficient >= 1 {
		coefficient = p.BackoffCoefficient
	}
	return time.Duration(min(float64(first)*math.Pow(coefficient, float64(attempt-1)), float64(most)))
}

// readTime reads an RFC 3339 time, or a duration from now on. A duration counts from the clock of the server, Advance included.
func readTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return now, nil
	}
	if d, err := readDuration(text); err == nil {
		return now.Add(d), nil
	}
	return time.Parse(time.RFC3339Nano, text)
}

// readDuration reads the durations that package ojs writes: PT…S. Other forms of ISO 8601 are refused; package ojs does not
// write them.
func readDuration(text string) (time.Duration, error) {
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimPrefix(text, "PT"), "S"), 64)
	if err != nil || !strings.HasPrefix(text, "PT") {
		return 0, fmt.Errorf("%q is no duration of seconds", text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// promote makes jobs available whose time has come, and ends reservations that are over. The caller has the lock. It runs at
// the start of each request and in assertions, because nothing runs by itself here.
func (s *Server) promote() {
	now := s.now()
	for _, j := range s.order {
		switch {
		case (j.State == ojs.StateScheduled || j.State == ojs.StateRetryable) && !j.due.After(now):
			scheduled := j.State == ojs.StateScheduled
			s.available(j)
			if scheduled {
				s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
			}
		case j.State == ojs.StateActive && j.reserved.Before(now):
			s.loseLease(j)
		}
	}
}

// The attempt stays counted.
func (s *Server) loseLease(j *record) {
	e := ojs.JobError{Code: "visibility_timeout", Type: "visibility_timeout", Message: "the reservation is over", Retryable: true, Attempt: j.Attempt}
	j.Error, j.Errors = &e, append(j.Errors, e)
	if j.Attempt >= max(j.MaxAttempts, 1) {
		s.end(j, ojs.StateDiscarded)
		return
	}
	s.available(j)
}

func (s *Server) emit(kind string, j *record, data object) {
	data = maps.Clone(data)
	data["job_type"], data["queue"] = j.Type, j.Queue
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte("{}")
	}
	s.events = append(s.events, &ojs.Event{
		SpecVersion: "1.0", ID: "evt_" + ojs.NewID(), Type: kind, Source: "ojs://ojstest/api", Time: s.now(), Subject: j.ID, Data: text,
	})
}
