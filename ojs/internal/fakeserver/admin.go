package fakeserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

func compareText(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }

// deadFilter are the conditions for dead letters, of a query or a body.
type deadFilter struct {
	text         func(name string) string
	since, until time.Time
}

var deadNames = []string{"queue", "type", "error_type", "error_code", "since", "until", "older_than"}

// deadFilterOf reads times; all else is compared as text.
func (s *Server) deadFilterOf(text func(string) string) (f deadFilter, refused *ojs.Error) {
	f.text = text
	for name, into := range map[string]*time.Time{"since": &f.since, "until": &f.until} {
		if value := text(name); value != "" {
			at, found := readTime(value, s.now())
			if !found {
				return f, newError(ojs.ErrInvalidRequest, object{"field": name}, "'%s' must be an RFC 3339 time, got %q.", name, value)
			}
			*into = at
		}
	}
	return f, nil
}

func (f deadFilter) match(j *record) bool {
	has := func(name, value string) bool {
		list := f.text(name)
		return list == "" || slices.Contains(strings.Split(list, ","), value)
	}
	e := j.Error
	if e == nil {
		e = &ojs.JobError{}
	}
	return j.State == ojs.StateDiscarded && j.dead && has("queue", j.Queue) && has("type", j.Type) && has("error_code", e.Code) &&
		has("error_type", e.Type) && !j.DiscardedAt.Before(f.since) && (f.until.IsZero() || j.DiscardedAt.Before(f.until))
}

func (s *Server) serveDeadLetters(path []string, r *Request) answer {
	filter, refused := s.deadFilterOf(r.Query.Get)
	if refused != nil {
		return refusal(refused)
	}
	switch {
	case len(path) == 0 && r.Method == http.MethodGet:
		all := []shownJob{}
		for _, j := range slices.Backward(s.order) {
			if filter.match(j) {
				all = append(all, j.show())
			}
		}
		return page(r, "jobs", all)
	case len(path) == 0:
		return noRoute(r)
	case path[0] == "stats":
		byQueue := map[string]int{}
		for _, j := range s.order {
			if filter.match(j) {
				byQueue[j.Queue]++
			}
		}
		total := 0
		for _, n := range byQueue {
			total += n
		}
		return ok(object{"total": total, "by_queue": byQueue})
	case path[0] == "retry":
		return s.retryDead(r)
	case path[0] == "purge":
		before := len(s.order)
		for _, j := range slices.Clone(s.order) {
			if filter.match(j) {
				s.remove(j)
			}
		}
		return ok(object{"deleted": before - len(s.order)})
	}
	// A job that was discarded without being a dead letter is read and retried in the same way; lists leave it out.
	j := s.jobs[strings.TrimPrefix(path[0], "job_")]
	switch {
	case j == nil || j.State != ojs.StateDiscarded:
		return notFound("dead_letter_job", path[0])
	case r.Method == http.MethodDelete:
		s.remove(j)
		return ok(object{"deleted": true, "job_id": j.ID})
	case len(path) == 2 && path[1] == "retry":
		if refused := s.override(j, r.Body); refused != nil {
			return refusal(refused)
		}
		s.revive(j)
	}
	return ok(object{"job": j.show()})
}

// retryDead makes the dead letters of a filter available again.
func (s *Server) retryDead(r *Request) answer {
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	in.others(ojs.ErrInvalidRequest, "filter", "confirm", "dry_run", "limit")
	conditions, there := in.inner(in.pick("filter"))
	if there {
		conditions.others(ojs.ErrInvalidRequest, append(deadNames, "ids", "state")...)
	}
	if !in.boolean(in.pick("confirm")) && !in.boolean(in.pick("dry_run")) {
		in.refuse(in.pick("confirm"), "true, because the call changes many jobs")
	}
	filter, refused := s.deadFilterOf(func(name string) string {
		if !there {
			return ""
		}
		text, _ := textOf(conditions.pick(name).value)
		return text
	})
	if p.first == nil {
		p.first = refused
	}
	if p.first != nil {
		return refusal(p.first)
	}
	n := 0
	for _, j := range s.order {
		if filter.match(j) {
			s.revive(j)
			n++
		}
	}
	return ok(object{"matched": n, "succeeded": n, "retried": n, "failed": 0})
}

// override changes a job that is retried by hand, as the body says.
func (s *Server) override(j *record, body json.RawMessage) *ojs.Error {
	if len(body) == 0 || string(body) == "null" {
		return nil
	}
	p := &problems{}
	in, isObject := p.open(body)
	if !isObject {
		return p.first
	}
	in.others(ojs.ErrInvalidRequest, "override")
	o, there := in.inner(in.pick("override"))
	if !there {
		return p.first
	}
	o.others(ojs.ErrInvalidRequest, "queue", "args", "priority", "meta", "retry")
	job := object{"type": j.Type, "args": j.RawArgs}
	options := object{"queue": j.Queue, "priority": j.Priority}
	for _, name := range []string{"args", "meta"} {
		if m := o.pick(name); m.value != nil {
			job[name] = m.value
		}
	}
	for _, name := range []string{"queue", "priority", "retry"} {
		if m := o.pick(name); m.value != nil {
			options[name] = m.value
		}
	}
	job["options"] = options
	text, err := json.Marshal(job)
	if err != nil {
		return invalidPayload("override", "%v", err)
	}
	sub, refused := readJob(text, s.now())
	if p.first == nil {
		p.first = refused
	}
	if p.first != nil {
		return p.first
	}
	j.RawArgs, j.Queue, j.Priority = sub.Args, sub.Queue, sub.Priority
	j.Meta = maps.Clone(j.Meta)
	maps.Copy(j.Meta, sub.Meta)
	if o.pick("retry").value != nil {
		j.MaxAttempts, j.request.Retry = sub.MaxAttempts, sub.Retry
	}
	return nil
}

// revive has all its attempts again.
func (s *Server) revive(j *record) {
	j.Attempt, j.Error, j.Errors, j.DiscardedAt, j.CompletedAt, j.dead = 0, nil, nil, time.Time{}, time.Time{}, false
	s.available(j)
	s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
}

// remove leaves the step of a job as it was.
func (s *Server) remove(j *record) {
	delete(s.jobs, j.ID)
	s.order = slices.DeleteFunc(s.order, func(o *record) bool { return o == j })
}

// serveQueues has a queue as long as one of its jobs is.
func (s *Server) serveQueues(path []string, r *Request) answer {
	counts := map[string]map[ojs.JobState]int{}
	for _, j := range s.order {
		if counts[j.Queue] == nil {
			counts[j.Queue] = map[ojs.JobState]int{}
		}
		counts[j.Queue][j.State]++
	}
	if len(path) == 0 {
		all := []object{}
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			all = append(all, object{"name": name, "status": s.queueStatus(name), "paused": s.paused[name]})
		}
		return page(r, "queues", all)
	}
	name := path[0]
	if _, kind := checkQueue(quoted(name)); kind != "" {
		return refusal(newError(ojs.ErrInvalidRequest, object{"field": "name"}, "%q is no name of a queue.", name))
	}
	c := counts[name]
	shown := object{"queue": name, "name": name, "status": s.queueStatus(name), "paused": s.paused[name]}
	if r.Header.Get("OJS-Version") == "" { // clients of the specification read an object there
		info := object{"name": name, "status": s.queueStatus(name), "paused": s.paused[name]}
		for _, state := range states {
			info[string(state)] = c[state]
		}
		shown["queue"] = info
	}
	switch action := strings.Join(path[1:], "/"); action {
	case "":
		if c == nil {
			return notFound("queue", name)
		}
		shown["depth"], shown["running"], shown["config"] = c[ojs.StateAvailable], c[ojs.StateActive], object{}
		return ok(shown)
	case "pause", "resume":
		s.paused[name] = action == "pause"
		delete(s.draining, name)
		shown["status"], shown["paused"] = s.queueStatus(name), s.paused[name]
		if info, flat := shown["queue"].(object); flat {
			info["status"], info["paused"] = shown["status"], shown["paused"]
		}
		return ok(shown)
	case "drain":
		s.draining[name] = true
		shown["status"] = s.queueStatus(name)
		remaining := 0
		for _, state := range states {
			if !state.Terminal() {
				remaining += c[state]
			}
		}
		shown["remaining"] = remaining
		return ok(shown)
	case "purge":
		return s.purgeQueue(name, r)
	case "priority-stats":
		byPriority := map[int]int{}
		for _, j := range s.order {
			if j.Queue == name && j.State == ojs.StateAvailable {
				byPriority[j.Priority]++
			}
		}
		list := []object{}
		for _, priority := range slices.Backward(slices.Sorted(maps.Keys(byPriority))) {
			list = append(list, object{"priority": priority, "count": byPriority[priority]})
		}
		return ok(object{"queue": name, "distribution": list})
	case "stats":
		stats := object{"queue": name, "dead": c[ojs.StateDiscarded]}
		total := 0
		for _, state := range states {
			stats[string(state)], shown[string(state)] = c[state], c[state]
			total += c[state]
		}
		maps.Copy(stats, s.lastHour(name))
		shown["total"], shown["depth"], shown["stats"], shown["computed_at"] = total, c[ojs.StateAvailable], stats, s.now()
		return ok(shown)
	}
	return noRoute(r)
}

var states = []ojs.JobState{
	ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable, ojs.StateCompleted,
	ojs.StateCancelled, ojs.StateDiscarded,
}

// lastHour are the figures of a queue for the last hour.
func (s *Server) lastHour(queue string) object {
	since, completed, failed := s.now().Add(-time.Hour), 0, 0
	var ran, waited time.Duration
	for _, j := range s.order {
		if j.Queue != queue {
			continue
		}
		if j.State == ojs.StateCompleted && j.CompletedAt.After(since) {
			completed++
			ran += j.CompletedAt.Sub(j.StartedAt)
			waited += j.StartedAt.Sub(j.EnqueuedAt)
		}
		if j.State == ojs.StateDiscarded && j.DiscardedAt.After(since) {
			failed++
		}
	}
	average := func(d time.Duration) float64 { return float64(d.Milliseconds()) / float64(max(completed, 1)) }
	return object{
		"completed_last_hour": completed, "failed_last_hour": failed, "avg_duration_ms": average(ran), "avg_wait_ms": average(waited),
		"throughput_per_second": float64(completed) / time.Hour.Seconds(),
	}
}

func (s *Server) purgeQueue(name string, r *Request) answer {
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	in.others(ojs.ErrInvalidRequest, "states", "older_than", "confirm", "cancelled_by", "dry_run")
	m := in.pick("states")
	chosen := in.texts(m, false, "an array of states but active", func(s string) bool { return ojs.JobState(s).Valid() && s != "active" })
	if len(chosen) == 0 {
		in.refuse(m, "a non-empty array of states but active")
	}
	if !in.boolean(in.pick("confirm")) && !in.boolean(in.pick("dry_run")) {
		in.refuse(in.pick("confirm"), "true, because the call deletes jobs")
	}
	if p.first != nil {
		return refusal(p.first)
	}
	n, dry := 0, in.boolean(in.pick("dry_run"))
	for _, j := range slices.Clone(s.order) {
		if j.Queue == name && slices.Contains(chosen, string(j.State)) {
			n++
			if dry {
				continue
			}
			if !j.State.Terminal() {
				s.end(j, ojs.StateCancelled)
			}
			s.remove(j)
		}
	}
	return ok(object{"deleted": n, "purged_count": n, "has_more": false})
}

func (s *Server) queueStatus(name string) string {
	switch {
	case s.draining[name]:
		return "draining"
	case s.paused[name]:
		return "paused"
	}
	return "active"
}

func (s *Server) serveWebhooks(path []string, r *Request) answer {
	if len(path) == 0 && r.Method == http.MethodPost {
		w := object{"active": true}
		if refused := readWebhook(r.Body, w, true); refused != nil {
			return refusal(refused)
		}
		id := "sub_" + ojs.NewID()
		w["id"] = id
		s.webhooks[id] = w
		return created(object{"subscription": w})
	}
	if len(path) == 0 {
		all := []object{}
		for _, id := range slices.Sorted(maps.Keys(s.webhooks)) {
			all = append(all, s.webhooks[id])
		}
		return page(r, "subscriptions", all)
	}
	w := s.webhooks[path[0]]
	switch {
	case w == nil:
		return notFound("webhook_subscription", path[0])
	case len(path) == 2 && path[1] == "test":
		return ok(object{"success": true, "status_code": http.StatusOK})
	case r.Method == http.MethodDelete:
		delete(s.webhooks, path[0])
	case r.Method == http.MethodPatch || len(path) == 2:
		if refused := readWebhook(r.Body, w, false); refused != nil {
			return refusal(refused)
		}
	}
	return ok(object{"subscription": w})
}

var (
	webhookNames = []string{
		"url", "events", "secret", "filter", "metadata", "active", "timeout_ms", "max_in_flight", "ordering", "payload_format",
		"standard_webhooks", "overlap_seconds",
	}
	webhookShown = []string{"id", "created_at", "updated_at", "success_count", "failure_count", "last_delivery_at"}
)

// readWebhook reads a subscription, or what changes in one. Without a secret one is made, as by servers that are set up so.
func readWebhook(body json.RawMessage, into object, fresh bool) *ojs.Error {
	p := &problems{}
	r, isObject := p.open(body)
	if !isObject {
		return p.first
	}
	r.others(ojs.ErrInvalidRequest, slices.Concat(webhookNames, webhookShown)...)
	policy := r
	policy.kind = ojs.ErrValidation
	target := r.pick("url")
	if text := r.text(target, "a URL", nil); target.value != nil {
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			policy.refuse(target, "an absolute URL with http or https")
		}
	} else if fresh {
		r.refuse(target, "a URL")
	}
	events := r.pick("events")
	if events.value == nil && fresh {
		r.refuse(events, "a non-empty array of types of events, or prefixes as in job.*")
	}
	for _, pattern := range r.texts(events, false, "an array of types of events", isName) {
		prefix, wild := strings.CutSuffix(pattern, "*")
		known := func(name string) bool { return name == pattern || wild && strings.HasPrefix(name, prefix) }
		if !slices.ContainsFunc(ojs.EventTypes, known) {
			policy.refuse(events, "types of events that there are")
		}
	}
	r.text(r.pick("secret"), "8 to 256 printable ASCII characters", func(text string) bool { return len(text) >= 8 && len(text) <= 256 })
	r.boolean(r.pick("active"))
	if p.first == nil && json.Unmarshal(body, &into) != nil {
		return invalidPayload("body", "The body must be one JSON object.")
	}
	return p.first
}

// match reports whether an event passes the filters of a query.
func match(r *Request, e *ojs.Event) bool {
	var data struct {
		Queue   string `json:"queue"`
		JobType string `json:"job_type"`
	}
	_ = json.Unmarshal(e.Data, &data) // it is ours
	types := r.Query.Get("types")
	passes := types == "" || slices.ContainsFunc(strings.Split(types, ","), func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")
		return pattern == e.Type || wild && strings.HasPrefix(e.Type, prefix)
	})
	return passes && in(r, "queues", data.Queue) && in(r, "job_types", data.JobType) && in(r, "job_id", e.Subject)
}

// after lists the events behind an id. An unknown id is before all.
func (s *Server) after(id string) []*ojs.Event {
	return s.events[slices.IndexFunc(s.events, func(e *ojs.Event) bool { return e.ID == id })+1:]
}

// serveEvents has no limit of a page.
func (s *Server) serveEvents(r *Request) answer {
	if r.Query.Get("per_page") != "" {
		newest := []*ojs.Event{}
		if n := len(s.events); n > 0 {
			newest = s.events[n-1:]
		}
		return ok(object{"events": newest, "items": newest})
	}
	list, cursor := []*ojs.Event{}, r.Query.Get("after")
	if cursor != "" && !idPattern.MatchString(strings.TrimPrefix(cursor, "evt_")) {
		return refusal(newError(ojs.ErrInvalidRequest, object{"field": "after"}, "'after' must be the id of an event, got %q.", cursor))
	}
	for _, e := range s.after(cursor) {
		cursor = e.ID
		if match(r, e) {
			list = append(list, e)
		}
	}
	return ok(object{"events": list, "cursor": cursor, "has_more": false})
}

// stream writes events as they come, until the reader closes it or ctx is done. It sends no keep-alives and never drops events.
// A reader that does not close it leaves a goroutine behind.
func (s *Server) stream(ctx context.Context, r *Request) answer {
	if !s.has("urn:ojs:ext:realtime") {
		return noRoute(r)
	}
	ctx, cancel := context.WithCancel(ctx)
	reader, writer := io.Pipe()
	// Without an id it begins with the first event of the server: nothing is ever too old here.
	position := r.Header.Get("Last-Event-Id")
	go func() {
		for {
			s.mu.Lock()
			news, changed := s.after(position), s.changed
			s.mu.Unlock()
			for _, e := range news {
				position = e.ID
				if !match(r, e) {
					continue
				}
				data, err := json.Marshal(e)
				if err == nil {
					_, err = fmt.Fprintf(writer, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Type, data)
				}
				if err != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				_ = writer.CloseWithError(ctx.Err())
				return
			}
		}
	}()
	return answer{status: http.StatusOK, stream: &streamBody{reader, cancel}}
}

// streamBody ends its writer when it is closed.
type streamBody struct {
	*io.PipeReader

	cancel context.CancelFunc
}

func (b *streamBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
