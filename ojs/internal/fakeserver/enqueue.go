package fakeserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// plan is what a submission comes to; nothing of it is stored or cancelled yet.
type plan struct {
	job      *record   // nil: none is stored
	twin     *record   // the answer instead of job
	replaced []*record // cancelled before job is stored
}

// prepare plans a submission. before are the plans of the same batch before it: they count as if they were carried out.
func (s *Server) prepare(sub submission, before ...plan) (plan, *ojs.Error) {
	now := s.now()
	j := newRecord(sub, now)
	p := plan{job: j}
	if j.ScheduledAt = sub.At; sub.At.After(now) {
		j.due = sub.At
	}
	if s.draining[j.Queue] {
		return plan{}, newError(ojs.ErrQueuePaused, object{"queue": j.Queue}, "Queue %s is draining and takes no new jobs.", j.Queue)
	}
	// The key comes before the id, as on a server: a duplicate is answered with its twin even if the id is taken.
	if u := sub.Unique; u != nil {
		if j.uniqueKey = sub.UniqueKey; j.uniqueKey == "" {
			j.uniqueKey = u.key(j)
		}
	}
	if twins := s.equivalent(j, j.uniqueKey, before); len(twins) > 0 {
		oldest := twins[0].record
		switch onConflict := sub.Unique.OnConflict; onConflict {
		case "ignore":
			return plan{twin: oldest}, nil
		case "replace", "replace_except_schedule":
			if onConflict == "replace_except_schedule" && twins[0].state == ojs.StateScheduled {
				j.ScheduledAt, j.due, j.request.Pending = oldest.ScheduledAt, oldest.due, false
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
			return plan{}, newError(ojs.ErrDuplicateJob, object{"existing_job_id": oldest.ID, "existing_job_state": twins[0].state,
				"unique_key": j.uniqueKey, "uniqueness_key": j.uniqueKey},
				"An equivalent job, %s, already exists in state %s.", oldest.ID, twins[0].state)
		}
	}
	if s.jobs[j.ID] != nil || slices.ContainsFunc(before, func(b plan) bool { return b.job != nil && b.job.ID == j.ID }) {
		return plan{}, duplicateID(j.ID)
	}
	j.State = ojs.StateAvailable
	switch {
	case j.request.Pending:
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
		ID: sub.ID, Type: sub.Type, RawArgs: sub.Args, Meta: sub.Meta, Schema: sub.Schema, Queue: sub.Queue, Priority: sub.Priority,
		Tags: sub.Tags, TimeoutMS: sub.TimeoutMS, VisibilityTimeoutMS: sub.VisibilityMS, MaxAttempts: sub.MaxAttempts, CreatedAt: now,
		ExpiresAt: sub.Expires,
	}
	if j.ID == "" {
		j.ID = ojs.NewID()
	}
	if j.Queue == "" {
		j.Queue = "default"
	}
	return j
}

// store carries out a plan that has a job.
func (s *Server) store(p plan) {
	for _, r := range p.replaced {
		s.end(r, ojs.StateCancelled)
	}
	j := p.job
	s.nameLimit(j)
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
	sub, refused := readJob(r.Body, s.now())
	if refused != nil {
		return refusal(refused)
	}
	p, refused := s.prepare(sub)
	location := func(a answer, j *record) answer {
		a.header = http.Header{"Location": {"/ojs/v1/jobs/" + j.ID}}
		return a
	}
	switch {
	case refused != nil:
		return refusal(refused)
	case p.twin != nil:
		return location(ok(object{"job": p.twin.show(), "deduplicated": true}), p.twin)
	}
	s.store(p)
	return location(created(object{"job": p.job.show()}), p.job)
}

// readJobs reads the list of a batch or bulk call.
func (s *Server) readJobs(r *Request, known ...string) (list []json.RawMessage, in reader, refused *ojs.Error) {
	p := &problems{}
	in, ok := p.open(r.Body)
	if !ok {
		return nil, in, p.first
	}
	in.others(ojs.ErrInvalidRequest, append(known, "jobs")...)
	m := in.pick("jobs")
	if m.value == nil || json.Unmarshal(m.value, &list) != nil || len(list) == 0 {
		in.refuse(m, "an array of at least one job")
	}
	if len(list) > maxBatch {
		in.add(tooLarge(ojs.ErrBatchSize, "batch", maxBatch, len(list)))
	}
	return list, in, p.first
}

func (s *Server) readAndPrepare(raw json.RawMessage, before ...plan) (plan, *ojs.Error) {
	sub, refused := readJob(raw, s.now())
	if refused != nil {
		return plan{}, refused
	}
	return s.prepare(sub, before...)
}

// enqueueBatch stores and cancels nothing before all are checked. A job is checked against those before it in the batch, too.
func (s *Server) enqueueBatch(r *Request) answer {
	list, _, refused := s.readJobs(r)
	if refused != nil {
		return refusal(refused)
	}
	var plans []plan
	for i, raw := range list {
		p, refused := s.readAndPrepare(raw, plans...)
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
	stored, fresh := make([]shownJob, len(plans)), 0
	for i, p := range plans {
		if p.twin != nil { // as it is when the job comes
			stored[i] = p.twin.show()
			stored[i].Deduplicated = true
			continue
		}
		s.store(p)
		fresh++
	}
	for i, p := range plans {
		if p.job != nil {
			stored[i] = p.job.show()
		}
	}
	answer := object{"jobs": stored, "count": len(stored), "enqueued": len(stored), "failed": 0}
	if fresh == 0 && len(stored) > 0 {
		return ok(answer)
	}
	return created(answer)
}

// enqueueBulk checks each job after those before it were stored, so a later one may be their duplicate.
func (s *Server) enqueueBulk(r *Request) answer {
	list, in, refused := s.readJobs(r, "atomicity", "idempotency_key")
	if refused != nil {
		return refusal(refused)
	}
	atomicity := in.text(in.pick("atomicity"), "partial or atomic", among("partial", "atomic"))
	if in.first != nil {
		return refusal(in.first)
	}
	if atomicity == "atomic" {
		if refused := s.refuseAtomic(list); refused != nil {
			return *refused
		}
	}
	items, failed := []object{}, 0
	for i, raw := range list {
		p, refused := s.readAndPrepare(raw)
		item := object{"index": i}
		switch {
		case refused != nil:
			failed++
			item["status"], item["error"] = "failed", refused
		case p.twin != nil:
			item["status"], item["job"] = "duplicate", p.twin.show()
		default:
			s.store(p)
			item["status"], item["job"] = "created", p.job.show()
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

// refuseAtomic is the answer to a bulk call that stores all or nothing, if one of its jobs is refused.
func (s *Server) refuseAtomic(list []json.RawMessage) *answer {
	items, failed := []object{}, 0
	var plans []plan
	for i, raw := range list {
		p, refused := s.readAndPrepare(raw, plans...)
		item := object{"index": i, "status": "rolled_back"}
		if refused != nil {
			item["status"], item["error"] = "failed", refused
			failed++
		} else {
			plans = append(plans, p)
		}
		items = append(items, item)
	}
	if failed == 0 {
		return nil
	}
	return &answer{status: http.StatusUnprocessableEntity, body: object{"total": len(list), "succeeded": 0, "failed": failed,
		"items": items}}
}
