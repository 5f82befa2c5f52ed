package fakeserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

func compareText(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }

// serveDeadLetters retries many without the filter.
func (s *Server) serveDeadLetters(path []string, r *Request) answer {
	match := func(j *record) bool {
		return j.State == ojs.StateDiscarded && j.dead && in(r, "queue", j.Queue) && in(r, "type", j.Type) &&
			(j.Error == nil || in(r, "error_code", j.Error.Code))
	}
	switch {
	case len(path) == 0:
		all := []ojs.Job{}
		for _, j := range slices.Backward(s.order) {
			if match(j) {
				all = append(all, j.Job)
			}
		}
		return page(r, "jobs", all)
	case path[0] == "retry":
		n := 0
		for _, j := range s.order {
			if j.State == ojs.StateDiscarded && j.dead {
				s.revive(j)
				n++
			}
		}
		return ok(object{"succeeded": n})
	case path[0] == "purge":
		before := len(s.order)
		for _, j := range slices.Clone(s.order) {
			if match(j) {
				s.remove(j)
			}
		}
		return ok(object{"deleted": before - len(s.order)})
	}
	j := s.jobs[path[0]]
	switch {
	case j == nil || j.State != ojs.StateDiscarded || !j.dead:
		return notFound("dead_letter_job", path[0])
	case r.Method == http.MethodDelete:
		s.remove(j)
		return ok(object{"deleted": true})
	case len(path) == 2 && path[1] == "retry":
		s.revive(j)
	}
	return ok(object{"job": j.Job})
}

// revive has all its attempts again.
func (s *Server) revive(j *record) {
	j.Attempt, j.Error, j.Errors, j.DiscardedAt, j.dead = 0, nil, nil, time.Time{}, false
	s.available(j)
	s.emit(ojs.EventJobEnqueued, j, object{"state": "available"})
}

// remove leaves the step of a job as it was.
func (s *Server) remove(j *record) {
	delete(s.jobs, j.ID)
	s.order = slices.DeleteFunc(s.order, func(o *record) bool { return o == j })
}

// serveCrons keeps definitions as they were sent, which never fire; trigger makes a job.
func (s *Server) serveCrons(path []string, r *Request) answer {
	if len(path) == 0 && r.Method == http.MethodPost {
		var body map[string]any
		if err := json.Unmarshal(r.Body, &body); err != nil {
			return invalid("body", err)
		}
		name, _ := body["name"].(string)
		c := object{"enabled": true, "created_at": s.now(), "run_count": 0}
		maps.Copy(c, body)
		s.crons[name] = c
		return created(object{"cron_job": c})
	}
	if len(path) == 0 {
		all := []object{}
		for _, name := range slices.Sorted(maps.Keys(s.crons)) {
			all = append(all, s.crons[name])
		}
		return page(r, "cron_jobs", all)
	}
	c := s.crons[path[0]]
	if c == nil {
		return notFound("cron", path[0])
	}
	switch action := strings.Join(path[1:], "/"); {
	case r.Method == http.MethodDelete:
		delete(s.crons, path[0])
	case action == "pause":
		c["enabled"] = false
	case action == "resume":
		c["enabled"] = true
	case action == "history":
		return page(r, "executions", []object{})
	case action == "trigger":
		return s.trigger(c)
	}
	return ok(object{"cron_job": c})
}

// trigger decodes the template like an enqueue, with an id of the server.
func (s *Server) trigger(cron object) answer {
	var sub submission
	data, err := json.Marshal(cron)
	if err == nil {
		err = json.Unmarshal(data, &sub)
	}
	if err != nil {
		return invalid("job", err)
	}
	sub.ID = ""
	p, refused := s.prepare(sub)
	j := p.job
	switch {
	case refused != nil:
		return refuse(statusOf(refused), refused)
	case p.twin != nil:
		j = p.twin
	default:
		s.store(p)
	}
	return created(object{"job_id": j.ID, "job": j.Job})
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
	switch {
	case len(path) == 0:
		all := []object{}
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			all = append(all, object{"name": name, "status": s.queueStatus(name), "paused": s.paused[name]})
		}
		return page(r, "queues", all)
	case len(path) == 2 && (path[1] == "pause" || path[1] == "resume"):
		s.paused[path[0]] = path[1] == "pause"
		return ok(object{"queue": path[0], "status": s.queueStatus(path[0])})
	case len(path) == 2 && path[1] == "stats":
		c := counts[path[0]]
		return ok(object{"queue": path[0], "status": s.queueStatus(path[0]), "computed_at": s.now(), "stats": object{
			"available": c[ojs.StateAvailable], "active": c[ojs.StateActive], "scheduled": c[ojs.StateScheduled],
			"retryable": c[ojs.StateRetryable], "discarded": c[ojs.StateDiscarded],
		}})
	}
	return noRoute(r)
}

func (s *Server) queueStatus(name string) string {
	if s.paused[name] {
		return "paused"
	}
	return "active"
}

func (s *Server) serveWebhooks(path []string, r *Request) answer {
	if len(path) == 0 && r.Method == http.MethodPost {
		w := object{"active": true}
		if err := json.Unmarshal(r.Body, &w); err != nil {
			return invalid("body", err)
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
		if err := json.Unmarshal(r.Body, &w); err != nil {
			return invalid("body", err)
		}
	}
	return ok(object{"subscription": w})
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
