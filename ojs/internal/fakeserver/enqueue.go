package fakeserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

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

var errNoType = errors.New("is missing")

// plan is what a submission comes to; nothing of it is stored or cancelled yet.
type plan struct {
	job      *record   // nil: none is stored
	twin     *record   // the answer instead of job
	replaced []*record // cancelled before job is stored
}

var (
	typePattern  = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$`)
	queuePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)
)

// check refuses the mistakes that programs make most. A real server looks at more.
func (sub submission) check() *ojs.Error {
	o := sub.Options
	oneOf := func(value string, names ...string) bool { return value == "" || slices.Contains(names, value) }
	unique := o.Unique
	if unique == nil {
		unique = &uniquePolicy{}
	}
	switch {
	case !typePattern.MatchString(sub.Type):
		return kindOf(ojs.ErrInvalidJobType, "type", "'type' must be words of a to z, 0 to 9, _ and -, with dots between them, got %q.",
			sub.Type)
	case len(sub.Args) == 0 || sub.Args[0] != '[':
		return kindOf(ojs.ErrInvalidArgs, "args", "'args' must be an array.")
	case o.Queue != "" && !queuePattern.MatchString(o.Queue):
		return kindOf(ojs.ErrInvalidQueue, "queue", "'queue' must be lower-case letters, digits, dots and hyphens, got %q.", o.Queue)
	case o.Priority < -100 || o.Priority > 100:
		return invalidPayload("priority", "'priority' must be from -100 to 100, got %d.", o.Priority)
	case !oneOf(o.Retry.BackoffStrategy, "exponential", "linear", "polynomial", "constant", "none"):
		return newError(ojs.ErrValidation, object{"field": "retry.backoff_strategy"}, "'retry.backoff_strategy' is unknown: %q.",
			o.Retry.BackoffStrategy)
	case !oneOf(o.Retry.OnExhaustion, "dead_letter", "discard"):
		return newError(ojs.ErrValidation, object{"field": "retry.on_exhaustion"}, "'retry.on_exhaustion' is unknown: %q.",
			o.Retry.OnExhaustion)
	case !oneOf(unique.OnConflict, "reject", "ignore", "replace", "replace_except_schedule"):
		return invalidPayload("unique.on_conflict", "'unique.on_conflict' is unknown: %q.", unique.OnConflict)
	case slices.ContainsFunc(unique.Keys, func(key string) bool { return !oneOf(key, "type", "queue", "args", "meta") }):
		return invalidPayload("unique.keys", "'unique.keys' must be of type, queue, args and meta, got %q.", unique.Keys)
	}
	return nil
}

// prepare plans a submission. before are the plans of the same batch before it: they count as if they were carried out.
func (s *Server) prepare(sub submission, before ...plan) (plan, *ojs.Error) {
	if refused := sub.check(); refused != nil {
		return plan{}, refused
	}
	now := s.now()
	j := newRecord(sub, now)
	p := plan{job: j}
	at, err := readTime(sub.Options.DelayUntil, now)
	if err != nil {
		return plan{}, invalidPayload("delay_until", "%v", err)
	}
	if at.After(now) {
		j.ScheduledAt, j.due = at, at
	}
	// The key comes before the id, as on a server: a duplicate is answered with its twin even if the id is taken.
	if u := sub.Options.Unique; u != nil {
		key, ok := u.key(j)
		if !ok {
			return plan{}, invalidPayload("unique.args_keys", "'unique.args_keys' must be names that resolve in 'args'.")
		}
		j.uniqueKey = key
	}
	if twins := s.equivalent(j, j.uniqueKey, before); len(twins) > 0 {
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
				return plan{}, newError(ojs.ErrDuplicateJob, nil, "A job before it in this request is equivalent; nothing was stored.")
			}
			return plan{}, newError(ojs.ErrDuplicateJob, object{"existing_job_id": oldest.ID, "existing_job_state": twins[0].state},
				"An equivalent job, %s, already exists in state %s.", oldest.ID, twins[0].state)
		}
	}
	if s.jobs[j.ID] != nil || slices.ContainsFunc(before, func(b plan) bool { return b.job != nil && b.job.ID == j.ID }) {
		return plan{}, duplicateID(j.ID)
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

// newRecord is the job of a submission, with the defaults of a server.
func newRecord(sub submission, now time.Time) *record {
	j := &record{request: sub}
	j.Job = ojs.Job{
		ID: sub.ID, Type: sub.Type, RawArgs: sub.Args, Meta: sub.Meta, Schema: sub.Schema, Queue: sub.Options.Queue,
		Priority: sub.Options.Priority, Tags: sub.Options.Tags, TimeoutMS: sub.Options.TimeoutMS,
		VisibilityTimeoutMS: sub.Options.VisibilityTimeoutMS, MaxAttempts: 3, CreatedAt: now,
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
	return j
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

func (s *Server) enqueueOne(r *Request) answer {
	var sub submission
	if err := json.Unmarshal(r.Body, &sub); err != nil {
		return invalid("body", err)
	}
	p, refused := s.prepare(sub)
	switch {
	case refused != nil:
		return refuse(statusOf(refused), refused)
	case p.twin != nil:
		return ok(object{"job": p.twin.Job, "deduplicated": true})
	}
	s.store(p)
	return created(object{"job": p.job.Job})
}

// statusOf knows the kinds that this server answers, and 400 for the rest.
func statusOf(e *ojs.Error) int {
	switch {
	case errors.Is(e, ojs.ErrDuplicateJob) || e.Code == "conflict":
		return http.StatusConflict
	case errors.Is(e, ojs.ErrNotFound):
		return http.StatusNotFound
	case e.Code == string(ojs.ErrValidation):
		return http.StatusUnprocessableEntity
	}
	return http.StatusBadRequest
}

// enqueueBatch stores and cancels nothing before all are checked. A job is checked against those before it in the batch, too.
func (s *Server) enqueueBatch(r *Request) answer {
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
			refused.Message = fmt.Sprintf("job at index %d: %s", i, refused.Message)
			if refused.Details == nil {
				refused.Details = object{}
			}
			refused.Details["index"] = i
			return refuse(statusOf(refused), refused)
		}
		plans = append(plans, p)
	}
	stored, fresh := make([]ojs.Job, len(plans)), 0
	for i, p := range plans {
		if p.twin != nil { // as it is when the job comes
			stored[i] = p.twin.Job
			stored[i].Deduplicated = true
			continue
		}
		s.store(p)
		fresh++
	}
	for i, p := range plans {
		if p.job != nil {
			stored[i] = p.job.Job
		}
	}
	answer := object{"jobs": stored, "count": len(stored)}
	if fresh == 0 && len(stored) > 0 {
		return ok(answer)
	}
	return created(answer)
}

// enqueueBulk checks each job after those before it were stored, so a later one may be their duplicate.
func (s *Server) enqueueBulk(r *Request) answer {
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
			item["status"], item["job"] = "duplicate", p.twin.Job
		default:
			s.store(p)
			item["status"], item["job"] = "created", p.job.Job
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
