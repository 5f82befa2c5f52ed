package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Pages of the polling API. A page also ends at 8 MiB, or when 100 000 numbers of the log were looked at, whichever comes
// first.
const (
	defaultEvents = 100
	maxEvents     = 1000
)

// eventRoutes are the log and its streams (docs/reference/events.md). The path of the history has the id of a job in the place of the id of
// an event. A stream that is added here belongs into streamRoute, too.
func (a *API) eventRoutes() []route {
	const (
		filter = "types type event_types queues queue job_types job_type sources source job_id subject workflow_id since until format "
		stream = filter + "last_event_id after channel"
	)
	return []route{
		{"GET", "/events", api.Confined, noBody, paging + stream, a.listEvents},
		{"GET", "/events/:id", api.Confined, noBody, "format", a.getEvent},
		{"GET", "/events/:id/history", api.AboutJob, noBody, "", about(jobID, a.getEventHistory)},
		{"GET", "/events/stream", api.Confined, noBody, stream, a.streamEvents},
		{"GET", "/jobs/:id/events", api.AboutJob, noBody, stream, a.streamJob},
		{"GET", "/queues/:name/events", api.Confined, noBody, stream, a.streamQueue},
		{"GET", "/ws", api.Confined, noBody, "", a.serveSocket},
		{"GET", "/events/ws", api.Confined, noBody, "", a.serveSocket},
	}
}

// listEvents is polling (docs/reference/events.md, Polling) and, with page or per_page, the listing newest first
// (docs/reference/events.md, Newest first). It first waits for the publication of what this node has committed, up to 100 ms,
// so that a client finds the events of what it has just done. What it did on another node may not be published yet.
func (a *API) listEvents(r *request) error {
	if wantsStream(r.Request()) {
		return a.streamEvents(r)
	}
	q := a.eventFilter(r)
	after, err := api.ParseAfter(r.QueryParam("after")) // streams resume by other names, too
	r.refuse(err)
	q.After = after
	cloud := r.cloudEvents()
	if r.QueryParam("page") != "" || r.QueryParam("per_page") != "" {
		return a.listNewestEvents(r, q, cloud)
	}
	// A larger limit is cut, as in all lists.
	q.Limit = min(r.integer(defaultEvents, 1, "limit"), maxEvents)
	if r.err != nil {
		return r.err
	}
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	// A position that retention has overtaken is 410, because the client has lost events and must know it.
	page, err := a.Events.ListAfter(ctx, q)
	if err != nil {
		return api.EventError(err)
	}
	return respondEach(r, http.StatusOK, eventBytes(page.Events), func(b []byte, next flush) []byte {
		b = appendEvents(append(b, `{"events":`...), page.Events, cloud, next)
		return append(object{{"cursor", orNull(page.Cursor)}, {"has_more", page.HasMore}}.appendMembers(b), '}')
	})
}

// listNewestEvents has offsets for cursors, which new events shift, so a client that follows them may see an event twice. events and items
// are the same array, and the estimate of the answer counts both.
func (a *API) listNewestEvents(r *request, q eventlog.Query, cloud bool) error {
	p := r.numberedPage(api.DefaultPage, api.MaxPage)
	if r.err != nil {
		return r.err
	}
	q.Limit = p.limit
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	// total is counted among the newest 100 000 numbers, and no further than is cheap.
	events, total, err := a.Events.ListNewest(ctx, q, p.offset)
	if err != nil {
		return api.EventError(err)
	}
	return respondEach(r, http.StatusOK, 2*eventBytes(events), func(b []byte, next flush) []byte {
		b = appendEvents(append(b, `{"events":`...), events, cloud, next)
		b = appendEvents(append(b, `,"items":`...), events, cloud, next)
		return append(object{{"has_more", p.more(total, len(events))},
			{"pagination", p.shownNumbered(total, len(events))}}.appendMembers(b), '}')
	})
}

// appendEvents appends each event in the form of the event log, with the compatibility members unless cloud is set.
func appendEvents(b []byte, events []eventlog.Event, cloud bool, next flush) []byte {
	return appendEach(b, events, next, func(b []byte, e *eventlog.Event) []byte { return e.Append(b, true, cloud) })
}

// eventBytes is about how many bytes the events take in an answer.
// It counts the texts and not the punctuation.
func eventBytes(events []eventlog.Event) (n int) {
	for i := range events {
		n += len(events[i].Head) + len(events[i].Compat) + len(events[i].Data)
	}
	return n
}

// eventFilter reads the filters of docs/reference/events.md, Filters. Patterns are checked later, by the log; here only
// what could not be compared with a text column is refused.
func (a *API) eventFilter(r *request) eventlog.Query {
	// The first name of each filter is the one that errors use.
	q := eventlog.Query{
		Tenant: a.tenant(r.Request()), Types: r.filter("types", "type", "event_types"), Queues: r.filter("queues", "queue"),
		JobTypes: r.filter("job_types", "job_type"), Sources: r.filter("sources", "source"),
	}
	q.JobID = r.filterID("job_id")
	// A subject is compared as it is: an id of a job, a worker, or the name of a queue or cron.
	if q.Subject = r.QueryParam("subject"); !api.Storable(q.Subject) {
		r.refuse(spec.InvalidRequest("subject", "text without U+0000", q.Subject, "subject must be text without U+0000."))
	}
	q.WorkflowID = r.filterID("workflow_id")
	q.Since, q.Until = r.time("since"), r.time("until")
	return q
}

// filter is texts with a bound.
func (r *request) filter(names ...string) []string {
	values := r.texts(names...)
	r.refuse(api.CheckFilterSize(names[0], values))
	return values
}

func (r *request) filterID(name string) *[16]byte {
	id, err := api.ParseFilterID(name, r.QueryParam(name))
	r.refuse(err)
	return id
}

// cloudEvents reports whether events are shown in the CloudEvents form.
func (r *request) cloudEvents() bool { return r.oneOf("format", "ojs", "cloudevents") == "cloudevents" }

// getEvent shows one event. Its id has the time of the event, so a made-up id with the right numbers is unknown: the store
// compares the whole text. What another tenant owns is 404, too.
func (a *API) getEvent(r *request) error {
	text := param(r, "id")
	ctx := r.Request().Context()
	// The path is checked before format, so that an unknown event is 404 in any form.
	position, err := eventlog.ParsePosition(text)
	if err != nil {
		return spec.NotFound("event", text)
	}
	cloud := r.cloudEvents()
	if r.err != nil {
		return r.err
	}
	a.Events.WaitCaughtUp(ctx)
	event, found, err := a.Events.Get(ctx, position, text)
	if err != nil {
		return api.EventError(err)
	}
	// An event without a tenant, such as that of a queue, is not shown to tenants either.
	if caller := a.tenant(r.Request()); !found || caller != "" && event.Tenant != caller {
		return spec.NotFound("event", text)
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return event.Append(b, true, cloud) })
}

// getEventHistory shows a job's transitions (docs/reference/events.md, Event history of a job).
// It reads at most 10 000 events or 8 MiB. The history ends with the retention of events, so it may begin in the middle of
// the life of a job.
func (a *API) getEventHistory(r *request, id [16]byte) error {
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	// Internal rows are among them, as job.state_changed.
	history, more, err := a.Events.History(ctx, id)
	if err != nil {
		return api.EventError(err)
	}
	if len(history) == 0 { // events may have been dropped while the job lives
		if _, err := a.Jobs.Get(ctx, id); err != nil {
			return err
		}
	}
	// data is never absent in the log.
	events := sliceutil.Map(history, func(h eventlog.Transition) object {
		return object{
			{"type", h.Type}, {"state", h.To}, {"from", given(h.From)}, {"timestamp", spec.FormatTime(h.Time)}, {"id", h.ID},
			{"data", []byte(h.Data)},
		}
	})
	return r.answer(http.StatusOK, object{{"job_id", id}, {"events", events}, {"has_more", given(more)}})
}

// Pages of GET /history. That of one job ends at api.MaxPage.
const (
	defaultHistory = 50
	maxHistory     = 1000
)

var (
	// historyTypes and actorTypes are what Event.HistoryType and actorOf can answer. A new one belongs into the SQL
	// functions, too.
	historyTypes = []string{
		"job.created", "job.state_changed", "job.attempt_started", "job.attempt_completed", "job.attempt_failed", "job.cancelled",
		"job.discarded",
	}
	actorTypes = []string{"worker", "client", "system", "user"}
)

// historyRoutes show the event log as the history of jobs (docs/reference/jobs.md, History).
func (a *API) historyRoutes() []route {
	return []route{
		{"GET", "/jobs/:id/history", api.AboutJob, noBody, "limit cursor", a.getJobHistory},
		{"GET", "/jobs/:id/retries", api.AboutJob, noBody, "", about(jobID, a.getRetries)},
		{"GET", "/jobs/:id/lineage", api.AboutJob, noBody, "", about(jobID, a.getLineage)},
		{"GET", "/history", api.Confined, noBody, "limit cursor event_types actor_type queues job_types start end", a.listHistory},
	}
}

// getJobHistory pages by event id, oldest first; the cursor is the last one shown. Total counts the history of the job as far as it is
// kept, up to 10 000.
func (a *API) getJobHistory(r *request) error {
	// Parameters are checked before the id, so a malformed one is 400 also for an unknown job.
	limit, after := min(r.integer(defaultHistory, 1, "limit"), api.MaxPage), r.historyCursor()
	id, err := jobID(r)
	r.refuse(err)
	if r.err != nil {
		return r.err
	}
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	page, err := a.Events.JobHistory(ctx, id, after, limit)
	if err != nil {
		return api.EventError(err)
	}
	// Progress.Get is 404 for an unknown job.
	if page.Total == 0 { // events may have been dropped while the job lives
		if _, err := a.Progress.Get(ctx, id); err != nil {
			return err
		}
	}
	return respondHistory(r, page, "total", func() object { return nil })
}

// historyCursor reads an event id; nil: from the beginning. Any well-formed id is a position.
func (r *request) historyCursor() *eventlog.Position {
	return behind(r, page{cursor: r.QueryParam("cursor")}, func(text string) (eventlog.Position, bool) {
		position, err := eventlog.ParsePosition(text)
		return position, err == nil
	})
}

// listHistory shows the history of all jobs, newest first. query_time_ms includes the wait for publication and the encoding
// so far.
func (a *API) listHistory(r *request) error {
	// It measures a duration, so the clock of the node is good enough.
	start := time.Now()
	// start and end are the names of the history extension for since and until. queues and job_types take any name; one that does not
	// exist finds nothing.
	q := eventlog.HistoryQuery{
		Tenant: a.tenant(r.Request()), Limit: min(r.integer(defaultHistory, 1, "limit"), maxHistory), Before: r.historyCursor(),
		Types: r.wordsOf("event_types", historyTypes), Actors: r.wordsOf("actor_type", actorTypes), Queues: r.filter("queues"),
		JobTypes: r.filter("job_types"), Since: r.time("start"), Until: r.time("end"),
	}
	if r.err != nil {
		return r.err
	}
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	page, err := a.Events.HistoryNewest(ctx, q)
	if err != nil {
		return api.EventError(err)
	}
	return respondHistory(r, page, "total_estimate", func() object { return object{{"query_time_ms", time.Since(start).Milliseconds()}} })
}

// wordsOf is filter for words that are known.
// One that cannot occur is refused, because it would silently find nothing.
func (r *request) wordsOf(name string, words []string) []string {
	values := r.filter(name)
	for _, v := range values {
		if !slices.Contains(words, v) {
			all := strings.Join(words, ", ")
			r.refuse(spec.InvalidRequest(name, all, v, name+" must be any of "+all+"."))
		}
	}
	return values
}

// respondHistory answers with a page of the history: its total under the name, and rest.
// next_cursor is null at the end. It may be set with few or no events: the page then ended because of how many numbers were
// looked at.
func respondHistory(c echo.Context, page eventlog.HistoryPage, total string, rest func() object) error {
	end := ""
	if page.More {
		end = page.End.String()
	}
	bytes := 0 // an estimate, in which 256 stand for the members beside data
	for i := range page.Events {
		bytes += 256 + len(page.Events[i].Data)
	}
	return respondEach(c, http.StatusOK, bytes, func(b []byte, next flush) []byte {
		b = appendEach(append(b, `{"events":`...), page.Events, next, func(b []byte, e *eventlog.Event) []byte { return showRecord(e).append(b) })
		b = object{{"next_cursor", orNull(end)}, {total, page.Total}}.appendMembers(b)
		return append(rest().appendMembers(b), '}')
	})
}

// showRecord gets an event of a job: JobID is set. data has the members that the table of docs/reference/jobs.md, History names, so new
// members of events do not appear here by themselves. One that the event does not have is left out; no value is invented.
func showRecord(e *eventlog.Event) object {
	kind, data := e.HistoryType(), membersOf(e.Data)
	var shown object
	copied := func(names ...string) {
		for _, name := range names {
			if v := data[name]; v != nil {
				shown = append(shown, member{name, v})
			}
		}
	}
	switch kind {
	case "job.created":
		shown = object{{"queue", e.Queue}, {"type", e.JobType}}
	case "job.attempt_started":
		copied("worker_id", "attempt")
	case "job.attempt_completed":
		copied("duration_ms", "attempt")
	case "job.attempt_failed":
		copied("error")
		next, _ := jsonread.Text(data["next_state"]) // in which the failure has left the job
		shown = append(shown, member{"will_retry", next != string(ojs.StateDiscarded)})
		copied("attempt")
	case "job.cancelled":
		copied("reason")
	case "job.discarded":
		copied("total_attempts", "last_error")
	default:
		shown = object{{"from", given(e.From)}, {"to", given(e.To)}}
	}
	actorType, actorID := actorOf(e, data)
	return object{
		{"id", e.Position.String()}, {"job_id", *e.JobID}, {"event_type", kind}, {"timestamp", spec.FormatTime(e.Time)},
		{"actor", object{{"type", actorType}, {"id", actorID}}}, {"data", shown},
	}
}

// membersOf gives the members of an event's data by name.
// The values point into a copy of data. What is no object has no members.
func membersOf(data string) map[string]jsontext.Value {
	members := map[string]jsontext.Value{}
	if strings.HasPrefix(data, "{") {
		for literal, value := range jsonread.Members(jsontext.Value(data)) {
			members[string(jsonread.Name(literal))] = value
		}
	}
	return members
}

// actorOf names who caused the event; ojs.history_actor in SQL says the same of the type.
// They must agree, because SQL filters by actor_type what this function shows. The source is ojs://<service>/<rest>; cancels
// name their author in the data, because their source is only the API.
func actorOf(e *eventlog.Event, data map[string]jsontext.Value) (kind, id string) {
	var head struct {
		Source string `json:"source"`
	}
	_ = json.Unmarshal([]byte(e.Head+"}"), &head) // ours: valid
	// What is left is <service>/<rest>; the service is the same for all events of a deployment.
	source := strings.TrimPrefix(head.Source, "ojs://")
	if slash := strings.IndexByte(source, '/'); slash >= 0 {
		source = source[slash+1:]
	}
	// The id of the worker is escaped in a source, which is a URI.
	if worker, ok := strings.CutPrefix(source, "workers/"); ok {
		if text, err := url.PathUnescape(worker); err == nil {
			worker = text
		}
		return "worker", worker
	}
	by, _ := jsonread.Text(data["cancelled_by"])
	switch {
	// The scheduler, crons and the like.
	case source != "api" && !strings.HasPrefix(source, "api/"):
		return "system", source
	// The server itself has cancelled the job.
	case strings.HasPrefix(by, "system:"), strings.HasPrefix(by, "workflow:"):
		return "system", by
	case by == "", by == "api":
		return "client", source
	case by == "sql", strings.HasPrefix(by, "key:"):
		return "client", by
	}
	return "user", by
}

// getRetries shows the failures among the newest 1 000 starts and failures, oldest first, each with the start before it, as the CLI shows
// them (docs/reference/jobs.md, History). A job may have more, and the events are kept for a shorter time than the job may live, so the
// list may begin later than the first attempt. All times are by the clock of the database.
func (a *API) getRetries(r *request, id [16]byte) error {
	ctx := r.Request().Context()
	// The job is read first, so that an unknown one is 404 and not an empty list.
	record, err := a.Jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	policy, _ := job.ParseStoredRetry(record.Retry) // shows the policy that applies: of an invalid one, the default
	a.Events.WaitCaughtUp(ctx)
	events, err := a.Events.NewestOfJob(ctx, id, eventlog.Query{Types: []string{"job.started", "job.failed"}, Limit: maxHistory})
	if err != nil {
		return api.EventError(err)
	}
	runs, started := []object{}, time.Time{}
	for _, e := range events { // in the order of the log, where a start precedes its failure
		if e.Type == "job.started" {
			// A start that was lost without a failure of its own is replaced by the next one.
			started = e.Time
			continue
		}
		// state is what followed: retryable, discarded or available. started_at is left out if the start is not in the log any more,
		// next_retry_at if the job is not tried again.
		data := membersOf(e.Data)
		attempt, _ := jsonread.Int(data["attempt"])
		state, _ := jsonread.Text(data["next_state"])
		nextRetry, _ := jsonread.Text(data["retry_at"])
		runs = append(runs, object{
			{"attempt", attempt}, {"state", state}, {"error", errorText(data["error"])}, {"started_at", started},
			{"failed_at", spec.FormatTime(e.Time)}, {"next_retry_at", given(nextRetry)},
		})
	}
	// Retention may have dropped the events. The job's own list of failures knows less: it does not say what followed, so each is shown as
	// retryable, and it has no starts. A job that never failed has neither, and the list is empty.
	if len(runs) == 0 {
		runs = sliceutil.Map(record.Errors, func(e []byte) object {
			data := membersOf(string(e))
			attempt, _ := jsonread.Int(data["attempt"])
			failedAt, _ := jsonread.Text(data["occurred_at"])
			return object{{"attempt", attempt}, {"state", string(ojs.StateRetryable)}, {"error", errorText(e)}, {"failed_at", failedAt}}
		})
	}
	return r.answer(http.StatusOK, object{{"job_id", id}, {"retries", runs}, {"policy", object{
		{"max_attempts", record.MaxAttempts}, {"initial_interval", jsonread.FormatDuration(policy.InitialInterval)},
		{"backoff_strategy", policy.Strategy},
	}}})
}

// errorText is what the CLI shows; the message says more than the code.
func errorText(e jsontext.Value) string {
	members := membersOf(string(e))
	for _, name := range []string{"message", "code"} {
		if text, _ := jsonread.Text(members[name]); text != "" {
			return text
		}
	}
	return ""
}

// getLineage shows where a job comes from: its workflow, if it has one. No job is the parent of another.
// The members are those of the lineage endpoint of other servers; parent_id is always null and children always empty.
func (a *API) getLineage(r *request, id [16]byte) error {
	stored, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	// It is what the job shows as workflow_id.
	workflow := job.WorkflowOf(stored.Extra)
	return r.answer(http.StatusOK, object{{"job_id", id}, {"parent_id", nil}, {"workflow_id", orNull(workflow)}, {"root_id", id},
		{"children", []object{}}})
}
