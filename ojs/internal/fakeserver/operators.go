package fakeserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// parametersOf are the parameters that routes know; a route that is not here knows none. Names and ids in paths are {}.
var parametersOf = map[string][]string{
	"GET jobs":                 paged("state", "queue", "type"),
	"DELETE jobs/{}":           {"reason", "cancelled_by"},
	"GET jobs/{}/result":       {"wait", "timeout"},
	"GET workflows":            paged("state", "type", "name"),
	"DELETE workflows/{}":      {"force"},
	"POST workflows/{}/cancel": {"force"},
	"GET cron":                 paged("enabled", "queue"),
	"GET cron/{}/history":      paged(),
	"GET queues":               paged(),
	"GET dead-letter":          paged(deadNames...),
	"GET dead-letter/stats":    deadNames,
	"POST dead-letter/purge":   slices.Concat(deadNames, []string{"dry_run", "confirm"}),
	"GET webhooks":             paged(),
	"GET rate-limits":          paged(),
	"GET workers":              paged("state", "queue"),
	"GET admin/stats":          {"queue"},
	"GET admin/stats/history":  {"period", "since", "until", "queue"},
	"GET events":               paged(eventNames...),
}

func paged(names ...string) []string { return slices.Concat(names, lists) }

var eventNames = []string{
	"types", "type", "event_types", "queues", "queue", "job_types", "job_type", "sources", "source", "job_id", "workflow_id",
	"subject", "since", "until", "format", "after", "access_token", "wait_ms",
}

// literals are words of paths in the place of a name.
var literals = []string{"batch", "bulk", "purge", "retry", "stats"}

// checkParameters refuses those that a route does not know. A path that does not exist has none to know.
func (s *Server) checkParameters(path []string, r *Request) *ojs.Error {
	shape := slices.Clone(path)
	if len(shape) > 1 && path[0] != "admin" && path[0] != "workers" && !slices.Contains(literals, path[1]) {
		shape[1] = "{}"
	}
	return parameters(r, parametersOf[r.Method+" "+strings.Join(shape, "/")]...)
}

// explain says why a job is not running (docs/reference/jobs.md, Explain).
func (s *Server) explain(j *record) object {
	reason := object{}
	say := func(code, format string, args ...any) {
		reason["code"], reason["message"] = code, fmt.Sprintf(format, args...)
	}
	var starts time.Time
	switch {
	case j.State == ojs.StateActive:
		say("running", "The job runs.")
		reason["worker_id"], reason["since"], reason["lease_until"] = j.WorkerID, j.StartedAt, j.reserved
	case j.State.Terminal():
		say("ended", "The job has ended: it is %s.", j.State)
		if j.Error != nil {
			reason["error_code"] = j.Error.Code
		}
	case j.State == ojs.StatePending:
		say("pending", "The job waits for its activation.")
	case j.State == ojs.StateScheduled:
		say("scheduled", "The job waits for its time, %s.", j.due.Format(time.RFC3339))
		reason["until"], starts = j.due, j.due
	case j.State == ojs.StateRetryable:
		say("retry", "The job waits for its next attempt at %s.", j.due.Format(time.RFC3339))
		reason["until"], reason["attempt"], reason["max_attempts"], starts = j.due, j.Attempt, j.MaxAttempts, j.due
	case s.paused[j.Queue]:
		say("queue_paused", "Queue %s is paused.", j.Queue)
	default:
		s.explainAvailable(j, say, reason)
	}
	o := object{"job_id": j.ID, "type": j.Type, "queue": j.Queue, "state": j.State, "priority": j.Priority,
		"running": j.State == ojs.StateActive,
		"summary": reason["message"], "reasons": []object{reason}, "estimate": nil, "deadline": nullTime(j.ExpiresAt), "workflow_id": nil,
		"computed_at": s.now()}
	if !starts.IsZero() {
		o["estimate"] = object{"wait_seconds": max(0, starts.Sub(s.now()).Seconds()), "starts_at": starts}
	}
	if j.WorkflowID != "" {
		o["workflow_id"] = j.WorkflowID
	}
	return o
}

func (s *Server) explainAvailable(j *record, say func(code, format string, args ...any), reason object) {
	if _, is := s.blocked(j); is {
		if j.request.Limit == nil {
			say("queue_limited", "The limit of queue %s does not permit the start.", j.Queue)
			return
		}
		say("limited", "The rate limit %s does not permit the start.", j.request.Limit.Key)
		reason["key"] = j.request.Limit.Key
		return
	}
	ahead := 0
	for _, o := range s.order {
		if o.State == ojs.StateAvailable && o.Queue == j.Queue && (o.Priority > j.Priority || o.Priority == j.Priority && o.tick < j.tick) {
			ahead++
		}
	}
	if ahead > 0 {
		say("jobs_ahead", "%d jobs of queue %s come before it.", ahead, j.Queue)
		reason["ahead"], reason["more"] = ahead, false
		return
	}
	say("next", "The job is given to the next fetch of queue %s.", j.Queue)
}

// bulkFilter are the conditions of a bulk change that package ojsadmin sends.
type bulkFilter struct {
	Type           string          `json:"type"`
	Queue          string          `json:"queue"`
	State          json.RawMessage `json:"state"`
	Priority       *int            `json:"priority"`
	Meta           map[string]any  `json:"meta"`
	EnqueuedBefore time.Time       `json:"enqueued_before"`
	EnqueuedAfter  time.Time       `json:"enqueued_after"`
}

func (f *bulkFilter) match(j *record) bool {
	prefix, wild := strings.CutSuffix(f.Type, "*")
	at := j.EnqueuedAt
	if at.IsZero() {
		at = j.CreatedAt
	}
	for name, value := range f.Meta {
		if found, there := j.Meta[name]; !there || !reflect.DeepEqual(found, value) {
			return false
		}
	}
	return (f.Type == "" || f.Type == j.Type || wild && strings.HasPrefix(j.Type, prefix)) && (f.Queue == "" || f.Queue == j.Queue) &&
		(f.Priority == nil || *f.Priority == j.Priority) && (f.EnqueuedBefore.IsZero() || at.Before(f.EnqueuedBefore)) &&
		(f.EnqueuedAfter.IsZero() || at.After(f.EnqueuedAfter))
}

// bulkStates are the states that a bulk change takes, those of a filter without states, and its word.
var bulkStates = map[string]struct {
	takes, chosen []ojs.JobState
	done          string
}{
	"cancel": {
		[]ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateRetryable},
		[]ojs.JobState{ojs.StateAvailable, ojs.StateScheduled}, "cancelled",
	},
	"retry":  {[]ojs.JobState{ojs.StateDiscarded, ojs.StateRetryable}, []ojs.JobState{ojs.StateDiscarded}, "retried"},
	"delete": {[]ojs.JobState{ojs.StateCompleted, ojs.StateCancelled, ojs.StateDiscarded}, nil, "deleted"},
}

// changeMany cancels, retries or deletes jobs (docs/reference/http.md, Bulk change).
func (s *Server) changeMany(action string, r *Request) answer {
	b, known := bulkStates[action]
	if !known {
		return noRoute(r)
	}
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	in.others(ojs.ErrInvalidRequest, "job_ids", "filter", "atomicity", "idempotency_key", "dry_run", "confirm")
	atomic := in.text(in.pick("atomicity"), "partial or atomic", among("partial", "atomic")) == "atomic"
	dry := in.boolean(in.pick("dry_run"))
	list := in.pick("job_ids")
	ids := in.texts(list, false, "an array of ids of jobs", func(string) bool { return true })
	switch f := in.pick("filter"); {
	case f.value != nil && list.value != nil:
		in.refuse(f, "absent, because job_ids are there")
	case f.value != nil:
		ids = s.chosen(in, f, b.chosen)
	case len(ids) == 0:
		in.refuse(list, "an array of 1 to 10000 ids, or absent with a filter")
	}
	if p.first != nil {
		return refusal(p.first)
	}
	items, n := []object{}, 0
	for i, id := range ids {
		item := object{"index": i, "job_id": id, "status": b.done}
		switch j := s.jobs[strings.TrimPrefix(id, "job_")]; {
		case j == nil:
			item["status"], item["reason"] = "skipped", "not found"
		case slices.Contains(ids[:i], id):
			item["status"], item["reason"] = "skipped", "listed twice"
		case !slices.Contains(b.takes, j.State):
			item["status"], item["reason"] = "skipped", "job is "+string(j.State)
		default:
			n++
		}
		items = append(items, item)
	}
	a := ok(object{"total": len(ids), "total_matched": len(ids), "succeeded": n, b.done: n, "skipped": len(ids) - n,
		"failed": len(ids) - n, "items": items})
	switch {
	case n < len(ids) && (atomic || n == 0):
		a.status = http.StatusUnprocessableEntity
	case n < len(ids):
		a.status = http.StatusMultiStatus
	}
	if atomic && n < len(ids) {
		for _, item := range items {
			if item["status"] == b.done {
				item["status"] = "rolled_back"
			}
		}
		maps.Copy(a.body.(object), object{"succeeded": 0, b.done: 0})
	}
	if dry {
		a.body.(object)["dry_run"] = true
		return a
	}
	for _, item := range items {
		if item["status"] == b.done {
			s.changeOne(action, s.jobs[item["job_id"].(string)])
		}
	}
	return a
}

// chosen are the ids of the jobs that pass the filter of a bulk change.
func (s *Server) chosen(in reader, m member, fallback []ojs.JobState) (ids []string) {
	conditions, there := in.inner(m)
	if !there {
		return nil
	}
	conditions.others(ojs.ErrInvalidRequest, "type", "queue", "state", "priority", "meta", "enqueued_before", "enqueued_after", "since",
		"until", "older_than")
	var f bulkFilter
	if len(conditions.objects[0]) == 0 || json.Unmarshal(m.value, &f) != nil {
		in.refuse(m, "an object with at least one condition")
		return nil
	}
	wanted := fallback
	if state := conditions.pick("state"); state.value != nil {
		var one ojs.JobState
		if json.Unmarshal(state.value, &one) == nil {
			wanted = []ojs.JobState{one}
		} else if json.Unmarshal(state.value, &wanted) != nil {
			conditions.refuse(state, "a state or an array of them")
		}
		if slices.ContainsFunc(wanted, func(state ojs.JobState) bool { return !state.Valid() }) {
			conditions.refuse(state, "a state or an array of them")
		}
	}
	if len(wanted) == 0 {
		conditions.refuse(conditions.pick("state"), "the states of the jobs to be deleted")
	}
	for _, j := range s.order {
		if slices.Contains(wanted, j.State) && f.match(j) {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

func (s *Server) changeOne(action string, j *record) {
	switch {
	case action == "cancel":
		s.end(j, ojs.StateCancelled)
	case action == "delete":
		s.remove(j)
	case j.State == ojs.StateDiscarded:
		s.revive(j)
	default:
		s.available(j)
	}
}

func (s *Server) listWorkers(r *Request) answer {
	all := []object{}
	for _, id := range slices.Sorted(maps.Keys(s.workers)) {
		w := s.workers[id]
		state := w.reported
		if state == "" {
			state = ojs.DirectiveRunning
		}
		all = append(all, object{"id": id, "worker_id": id, "state": state, "directive": w.directive, "active_jobs": w.active,
			"last_heartbeat_at": nullTime(w.seen)})
	}
	return page(r, "items", all)
}

// serveAdmin has the calls of operators that package ojsadmin makes below /admin, but for pools.
func (s *Server) serveAdmin(path []string, r *Request) answer {
	switch shape := strings.Join(path, "/"); {
	case shape == "stats":
		return ok(s.stats(r.Query.Get("queue")))
	case shape == "stats/history":
		return s.statsHistory(r)
	case len(path) == 3 && path[0] == "workers" && path[2] == "directive":
		p := &problems{}
		in, isObject := p.open(r.Body)
		if !isObject {
			return refusal(p.first)
		}
		m := in.pick("directive")
		directive := in.text(m, "running, quiet or terminate", among("running", "quiet", "terminate"))
		if m.value == nil {
			in.refuse(m, "running, quiet or terminate")
		}
		if p.first != nil {
			return refusal(p.first)
		}
		w := s.workers[path[1]]
		if w == nil {
			return notFound("worker", path[1])
		}
		w.directive = ojs.Directive(directive)
		return ok(object{"worker_id": path[1], "directive": directive})
	}
	return noRoute(r)
}

// statsHistory has a point for each period, which begins at a whole one. There are no latencies.
func (s *Server) statsHistory(r *Request) answer {
	lengths := map[string]time.Duration{"": 5 * time.Minute, "1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour,
		"1d": 24 * time.Hour}
	length, known := lengths[r.Query.Get("period")]
	if !known {
		return refusal(newError(ojs.ErrInvalidRequest, object{"field": "period"}, "'period' must be 1m, 5m, 1h or 1d."))
	}
	bounds := map[string]time.Time{"since": s.now().Add(-time.Hour), "until": s.now()}
	for name := range bounds {
		text := r.Query.Get(name)
		if age, isAge := readDuration(text); isAge {
			bounds[name] = s.now().Add(-age)
		} else if at, isTime := readTime(text, s.now()); isTime {
			bounds[name] = at
		} else if text != "" {
			return refusal(newError(ojs.ErrInvalidRequest, object{"field": name}, "'%s' must be an RFC 3339 time or an age, got %q.",
				name, text))
		}
	}
	begin, queue := bounds["since"].Truncate(length), r.Query.Get("queue")
	points := []object{}
	for at := begin; at.Before(bounds["until"]); at = at.Add(length) {
		in := func(t time.Time) int {
			if t.Before(at) || !t.Before(at.Add(length)) {
				return 0
			}
			return 1
		}
		enqueued, completed, failed, discarded, cancelled := 0, 0, 0, 0, 0
		for _, j := range s.order {
			if queue != "" && queue != j.Queue {
				continue
			}
			enqueued += in(j.CreatedAt)
			discarded += in(j.DiscardedAt)
			cancelled += in(j.CancelledAt)
			if j.State == ojs.StateCompleted {
				completed += in(j.CompletedAt)
			}
			for _, e := range j.Errors {
				failed += in(e.OccurredAt)
			}
		}
		points = append(points, object{"timestamp": at, "enqueued": enqueued, "processed": completed + failed, "completed": completed,
			"failed": failed, "discarded": discarded, "cancelled": cancelled})
	}
	return ok(object{"data": points, "data_points": points})
}

// stats counts the jobs of a queue; "": all.
func (s *Server) stats(queue string) object {
	counts, queues, minute := map[ojs.JobState]int{}, map[string]bool{}, s.now().Add(-time.Minute)
	for _, state := range states {
		counts[state] = 0
	}
	processed, failed := 0, 0
	for _, j := range s.order {
		queues[j.Queue] = true
		if queue != "" && queue != j.Queue {
			continue
		}
		counts[j.State]++
		if j.State == ojs.StateCompleted && j.CompletedAt.After(minute) {
			processed++
		}
		if j.State == ojs.StateDiscarded && j.DiscardedAt.After(minute) {
			failed++
		}
	}
	return object{"queues": len(queues), "workers": len(s.workers), "jobs": counts, "uptime_seconds": int64(time.Since(s.began).Seconds()),
		"throughput": object{"processed_per_minute": processed, "failed_per_minute": failed, "avg_latency_ms": 0}}
}
