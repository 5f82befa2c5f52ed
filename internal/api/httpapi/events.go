package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
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
		{"GET", "/events/:id/history", api.AboutJob, noBody, "", a.getEventHistory},
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
	q, err := readEventQuery(r)
	if err != nil {
		return err
	}
	q.Tenant = a.tenant(r.Request())
	cloud, err := readFormat(r)
	if err != nil {
		return err
	}
	if r.QueryParam("page") != "" || r.QueryParam("per_page") != "" {
		return a.listNewestEvents(r, q, cloud)
	}
	limit, err := wholeNumber(r, []string{"limit"}, defaultEvents, 1)
	if err != nil {
		return err
	}
	// A larger limit is cut, as in all lists.
	q.Limit = min(limit, maxEvents)
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	// A position that retention has overtaken is 410, because the client has lost events and must know it.
	page, err := a.Events.ListAfter(ctx, q)
	if err != nil {
		return api.EventError(err)
	}
	return respondEach(r, http.StatusOK, eventBytes(page.Events), func(b []byte, next flush) []byte {
		b = append(b, `{"events":`...)
		b = appendEvents(b, page.Events, cloud, next)
		b = append(b, `,"cursor":`...)
		if page.Cursor == "" {
			b = append(b, `null`...)
		} else {
			b = appendQuoted(b, page.Cursor)
		}
		b = append(b, `,"has_more":`...)
		b = strconv.AppendBool(b, page.HasMore)
		return append(b, '}')
	})
}

// New events shift the offsets that are its cursors, so a client that follows them may see an event twice. events and items
// are the same array, and the estimate of the answer counts both.
func (a *API) listNewestEvents(c echo.Context, q eventlog.Query, cloud bool) error {
	p, err := readNumberedPage(c, api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	q.Limit = p.limit
	ctx := c.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	// total is counted up to 10 000, among the newest 100 000 numbers.
	events, total, err := a.Events.ListNewest(ctx, q, p.offset)
	if err != nil {
		return api.EventError(err)
	}
	return respondEach(c, http.StatusOK, 2*eventBytes(events), func(b []byte, next flush) []byte {
		b = append(b, `{"events":`...)
		b = appendEvents(b, events, cloud, next)
		b = append(b, `,"items":`...)
		b = appendEvents(b, events, cloud, next)
		b = append(b, `,"has_more":`...)
		b = strconv.AppendBool(b, p.more(total, len(events)))
		b = p.appendNumbered(append(b, `,"pagination":`...), total, len(events))
		return append(b, '}')
	})
}

// appendEvents appends each event in the form of the event log, with the compatibility members unless cloud is set.
func appendEvents(b []byte, events []eventlog.Event, cloud bool, next flush) []byte {
	b = append(b, '[')
	for i, e := range events {
		if i > 0 {
			b = append(b, ',')
		}
		b = next(e.Append(b, true, cloud))
	}
	return append(b, ']')
}

// eventBytes is about how many bytes the events take in an answer.
// It counts the texts and not the punctuation.
func eventBytes(events []eventlog.Event) (n int) {
	for i := range events {
		n += len(events[i].Head) + len(events[i].Compat) + len(events[i].Data)
	}
	return n
}

// readEventQuery reads the filters that all event routes share.
// after is read here and not in readEventFilter: streams resume by other names, too.
func readEventQuery(c *request) (eventlog.Query, error) {
	q, err := readEventFilter(c)
	if err != nil {
		return q, err
	}
	q.After, err = api.ParseAfter(c.QueryParam("after"))
	return q, err
}

// readEventFilter reads the filters of docs/reference/events.md, Filters. Patterns are checked later, by the log; here only
// what could not be compared with a text column is refused. It leaves Tenant to its caller.
func readEventFilter(c *request) (eventlog.Query, error) {
	var q eventlog.Query
	// The first name of each filter is the one that errors use.
	for _, filter := range []struct {
		to    *[]string
		names []string
	}{
		{&q.Types, []string{"types", "type", "event_types"}}, {&q.Queues, []string{"queues", "queue"}},
		{&q.JobTypes, []string{"job_types", "job_type"}}, {&q.Sources, []string{"sources", "source"}},
	} {
		values, err := plainList(c, filter.names...)
		if err != nil {
			return q, err
		}
		if err := api.CheckFilterSize(filter.names[0], values); err != nil {
			return q, err
		}
		*filter.to = values
	}
	var err error
	if q.JobID, err = api.ParseFilterID("job_id", c.QueryParam("job_id")); err != nil {
		return q, err
	}
	// A subject is compared as it is: an id of a job, a worker, or the name of a queue or cron.
	if q.Subject = c.QueryParam("subject"); !api.Storable(q.Subject) {
		return q, spec.InvalidRequest("subject", "text without U+0000", q.Subject, "subject must be text without U+0000.")
	}
	if q.WorkflowID, err = api.ParseFilterID("workflow_id", c.QueryParam("workflow_id")); err != nil {
		return q, err
	}
	if q.Since, err = timeParam(c, "since"); err != nil {
		return q, err
	}
	q.Until, err = timeParam(c, "until")
	return q, err
}

// timeParam reads an optional time.
// The zero time means that the parameter is absent.
func timeParam(c echo.Context, name string) (time.Time, error) {
	text := timeText(c, name)
	if text == "" {
		return time.Time{}, nil
	}
	at, ok := job.ParseTime(text)
	if !ok {
		return time.Time{}, spec.InvalidRequest(name, "an RFC 3339 time", text, name+" must be an RFC 3339 time with offset.")
	}
	return at, nil
}

// timeText is a parameter that is a time. The + of its offset arrives as a space if the client did not encode it, and no time
// has a space.
// Without the replacement every time with a positive offset would be refused.
func timeText(c echo.Context, name string) string {
	return strings.ReplaceAll(c.QueryParam(name), " ", "+")
}

// readFormat reports whether events are shown in the CloudEvents form.
func readFormat(c echo.Context) (cloud bool, err error) {
	switch format := c.QueryParam("format"); format {
	case "", "ojs":
		return false, nil
	case "cloudevents":
		return true, nil
	default:
		return false, spec.InvalidRequest("format", "ojs or cloudevents", format, "format must be ojs or cloudevents.")
	}
}

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
	cloud, err := readFormat(r)
	if err != nil {
		return err
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
func (a *API) getEventHistory(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
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
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"job_id":"`...)
		b = append(b, spec.FormatID(id)...)
		b = append(b, `","events":[`...)
		for i, h := range history {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"type":"`...)
			b = append(b, h.Type...)
			b = append(b, '"')
			b = appendText(b, "state", h.To)
			if h.From != "" {
				b = appendText(b, "from", h.From)
			}
			b = appendText(b, "timestamp", spec.FormatTime(h.Time))
			b = appendText(b, "id", h.ID)
			// data is never absent in the log.
			b = append(append(b, `,"data":`...), h.Data...)
			b = append(b, '}')
		}
		if more {
			return append(b, `],"has_more":true}`...)
		}
		return append(b, `]}`...)
	})
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
		"job.created", "job.state_changed", "job.attempt_started", "job.attempt_completed", "job.attempt_failed", "job.cancelled", "job.discarded",
	}
	actorTypes = []string{"worker", "client", "system", "user"}
)

// historyRoutes show the event log as the history of jobs (docs/reference/jobs.md, History).
func (a *API) historyRoutes() []route {
	return []route{
		{"GET", "/jobs/:id/history", api.AboutJob, noBody, "limit cursor", a.getJobHistory},
		{"GET", "/jobs/:id/retries", api.AboutJob, noBody, "", a.getRetries},
		{"GET", "/jobs/:id/lineage", api.AboutJob, noBody, "", a.getLineage},
		{"GET", "/history", api.Confined, noBody, "limit cursor event_types actor_type queues job_types start end", a.listHistory},
	}
}

// It pages by event id, oldest first; the cursor is the last one shown. Total counts the history of the job as far as it is
// kept, up to 10 000.
func (a *API) getJobHistory(r *request) error {
	// Parameters are checked before the id, so a malformed one is 400 also for an unknown job.
	limit, err := wholeNumber(r, []string{"limit"}, defaultHistory, 1)
	if err != nil {
		return err
	}
	after, err := historyCursor(r)
	if err != nil {
		return err
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	page, err := a.Events.JobHistory(ctx, id, after, min(limit, api.MaxPage))
	if err != nil {
		return api.EventError(err)
	}
	// Progress.Get is 404 for an unknown job.
	if page.Total == 0 { // events may have been dropped while the job lives
		if _, err := a.Progress.Get(ctx, id); err != nil {
			return err
		}
	}
	return respondEach(r, http.StatusOK, recordBytes(page.Events), func(b []byte, next flush) []byte {
		b = appendRecords(b, page, next)
		b = append(b, `,"total":`...)
		return append(strconv.AppendInt(b, page.Total, 10), '}')
	})
}

// historyCursor reads an event id; nil: from the beginning. Any well-formed id is a position.
func historyCursor(c echo.Context) (*eventlog.Position, error) {
	text := c.QueryParam("cursor")
	if text == "" {
		return nil, nil
	}
	position, err := eventlog.ParsePosition(text)
	if err != nil {
		return nil, api.ErrCursor(text)
	}
	return &position, nil
}

// listHistory shows the history of all jobs, newest first. query_time_ms includes the wait for publication and the encoding
// so far.
func (a *API) listHistory(r *request) error {
	// It measures a duration, so the clock of the node is good enough.
	start := time.Now()
	q, err := readHistoryQuery(r)
	q.Tenant = a.tenant(r.Request())
	if err != nil {
		return err
	}
	ctx := r.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	page, err := a.Events.HistoryNewest(ctx, q)
	if err != nil {
		return api.EventError(err)
	}
	return respondEach(r, http.StatusOK, recordBytes(page.Events), func(b []byte, next flush) []byte {
		b = appendRecords(b, page, next)
		b = append(b, `,"total_estimate":`...)
		b = strconv.AppendInt(b, page.Total, 10)
		b = append(b, `,"query_time_ms":`...)
		return append(strconv.AppendInt(b, time.Since(start).Milliseconds(), 10), '}')
	})
}

// readHistoryQuery leaves Tenant to its caller. start and end are the names of the history extension for since and until.
func readHistoryQuery(c *request) (q eventlog.HistoryQuery, err error) {
	limit, err := wholeNumber(c, []string{"limit"}, defaultHistory, 1)
	if err != nil {
		return q, err
	}
	q.Limit = min(limit, maxHistory)
	if q.Before, err = historyCursor(c); err != nil {
		return q, err
	}
	for _, filter := range []struct {
		to    *[]string
		name  string
		words []string
	}{
		// queues and job_types take any name; one that does not exist finds nothing.
		{&q.Types, "event_types", historyTypes}, {&q.Actors, "actor_type", actorTypes}, {&q.Queues, "queues", nil}, {&q.JobTypes, "job_types", nil},
	} {
		if *filter.to, err = historyFilter(c, filter.name, filter.words); err != nil {
			return q, err
		}
	}
	if q.Since, err = timeParam(c, "start"); err != nil {
		return q, err
	}
	q.Until, err = timeParam(c, "end")
	return q, err
}

// historyFilter reads a comma list; words are the values there are, nil: any.
// A word that cannot occur is refused, because it would silently find nothing.
func historyFilter(c *request, name string, words []string) ([]string, error) {
	values, err := plainList(c, name)
	if err != nil {
		return nil, err
	}
	if err := api.CheckFilterSize(name, values); err != nil {
		return nil, err
	}
	for _, v := range values {
		if words != nil && !slices.Contains(words, v) {
			all := strings.Join(words, ", ")
			return nil, spec.InvalidRequest(name, all, v, name+" must be any of "+all+".")
		}
	}
	return values, nil
}

// appendRecords appends the object's beginning: events and next_cursor.
// next_cursor is null at the end. It may be set with few or no events: the page then ended because of how many numbers were
// looked at.
func appendRecords(b []byte, page eventlog.HistoryPage, next flush) []byte {
	b = append(b, `{"events":[`...)
	for i := range page.Events {
		if i > 0 {
			b = append(b, ',')
		}
		b = next(appendRecord(b, &page.Events[i]))
	}
	b = append(b, `],"next_cursor":`...)
	if !page.More {
		return append(b, `null`...)
	}
	return appendQuoted(b, page.End.String())
}

// recordBytes estimates what appendRecords appends.
// 256 bytes stand for the members beside data.
func recordBytes(events []eventlog.Event) (n int) {
	for i := range events {
		n += 256 + len(events[i].Data)
	}
	return n
}

// The event must be one of a job: JobID is set. data is rewritten by recordData, so new members of events do not appear here
// by themselves.
func appendRecord(b []byte, e *eventlog.Event) []byte {
	kind, data := e.HistoryType(), membersOf(e.Data)
	b = e.Position.Append(append(b, `{"id":"`...))
	b = append(b, `","job_id":"`...)
	// The history has events of jobs only.
	b = append(b, spec.FormatID(*e.JobID)...)
	b = appendText(append(b, '"'), "event_type", kind)
	b = appendText(b, "timestamp", spec.FormatTime(e.Time))
	actorType, actorID := actorOf(e, data)
	b = append(b, `,"actor":{`...)
	b = append(b, appendText(nil, "type", actorType)[1:]...)
	b = appendText(b, "id", actorID)
	b = append(b, `},"data":{`...)
	if members := recordData(e, kind, data); len(members) > 0 {
		b = append(b, members[1:]...)
	}
	return append(b, `}}`...)
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

// recordData appends the members that the table of docs/reference/jobs.md, History names, each with a comma in front.
// A member that the event does not have is left out; no value is invented.
func recordData(e *eventlog.Event, kind string, data map[string]jsontext.Value) (b []byte) {
	copied := func(names ...string) {
		for _, name := range names {
			if v := data[name]; v != nil {
				b = append(append(append(append(b, ',', '"'), name...), '"', ':'), v...)
			}
		}
	}
	switch kind {
	case "job.created":
		return appendText(appendText(b, "queue", e.Queue), "type", e.JobType)
	case "job.attempt_started":
		copied("worker_id", "attempt")
	case "job.attempt_completed":
		copied("duration_ms", "attempt")
	case "job.attempt_failed":
		copied("error")
		b = strconv.AppendBool(append(b, `,"will_retry":`...), willRetry(data))
		copied("attempt")
	case "job.cancelled":
		copied("reason")
	case "job.discarded":
		copied("total_attempts", "last_error")
	default:
		if e.From != "" {
			b = appendText(b, "from", e.From)
		}
		if e.To != "" {
			b = appendText(b, "to", e.To)
		}
	}
	return b
}

// willRetry reads the data of job.failed; next_state is the state in which the failure has left the job.
func willRetry(failure map[string]jsontext.Value) bool {
	next, _ := jsonread.Text(failure["next_state"])
	return next != string(ojs.StateDiscarded)
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

// failedRun is one failed attempt, as the CLI shows it (docs/reference/jobs.md, History).
// state is what followed (retryable, discarded or available). started is zero if the start is not in the log any more.
// nextRetry is "" without a retry.
type failedRun struct {
	attempt             int64
	state, message      string
	started             time.Time
	failedAt, nextRetry string
}

// It shows the failures among the newest 1 000 starts and failures, oldest first. A job may have more, and the events are kept for a
// shorter time than the job may live, so the list may begin later than the first attempt.
func (a *API) getRetries(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	ctx := r.Request().Context()
	// The job is read first, so that an unknown one is 404 and not an empty list.
	job, err := a.Jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	policy, _ := retry.Decode(job.Retry) // shows the policy that applies: of an invalid one, the default
	a.Events.WaitCaughtUp(ctx)
	events, err := a.Events.NewestOfJob(ctx, id, eventlog.Query{Types: []string{"job.started", "job.failed"}, Limit: maxHistory})
	if err != nil {
		return api.EventError(err)
	}
	runs := failedRuns(events)
	// A job that never failed has neither, and the list is empty.
	if len(runs) == 0 { // retention may have dropped the events
		runs = recordedRuns(job.Errors)
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"job_id":"`...)
		b = append(b, spec.FormatID(id)...)
		b = append(b, `","retries":[`...)
		for i, run := range runs {
			if i > 0 {
				b = append(b, ',')
			}
			b = run.append(b)
		}
		b = append(b, `],"policy":{"max_attempts":`...)
		b = strconv.AppendInt(b, job.MaxAttempts, 10)
		b = appendText(b, "initial_interval", jsonread.FormatDuration(policy.InitialInterval))
		b = appendText(b, "backoff_strategy", policy.Strategy)
		return append(b, `}}`...)
	})
}

// failedRuns finds the failures among a job's events, each with the start before it.
// events are in the order of the log, where a start precedes its failure.
func failedRuns(events []eventlog.Event) (runs []failedRun) {
	var started time.Time
	for _, e := range events {
		switch e.Type {
		// A start that was lost without a failure of its own is replaced by the next one.
		case "job.started":
			started = e.Time
		case "job.failed":
			data := membersOf(e.Data)
			run := failedRun{message: errorText(data["error"]), started: started, failedAt: spec.FormatTime(e.Time)}
			run.attempt, _ = jsonread.Int(data["attempt"])
			run.state, _ = jsonread.Text(data["next_state"])
			// It is absent for a failure after which the job is not tried again.
			run.nextRetry, _ = jsonread.Text(data["retry_at"])
			runs = append(runs, run)
		}
	}
	return runs
}

// recordedRuns reads the job's own list of failures, which knows less.
// It does not say what followed, so each is shown as retryable, and it has no starts.
func recordedRuns(errors [][]byte) (runs []failedRun) {
	for _, e := range errors {
		data := membersOf(string(e))
		run := failedRun{message: errorText(e), state: string(ojs.StateRetryable)}
		run.attempt, _ = jsonread.Int(data["attempt"])
		run.failedAt, _ = jsonread.Text(data["occurred_at"])
		runs = append(runs, run)
	}
	return runs
}

// The CLI shows a text; the message says more than the code.
func errorText(e jsontext.Value) string {
	members := membersOf(string(e))
	for _, name := range []string{"message", "code"} {
		if text, _ := jsonread.Text(members[name]); text != "" {
			return text
		}
	}
	return ""
}

func (r failedRun) append(b []byte) []byte {
	b = append(b, `{"attempt":`...)
	b = strconv.AppendInt(b, r.attempt, 10)
	b = appendText(b, "state", r.state)
	b = appendText(b, "error", r.message)
	if !r.started.IsZero() {
		b = appendText(b, "started_at", spec.FormatTime(r.started))
	}
	// failed_at is the time of the event, or that of the stored failure; both are by the clock of the database.
	b = appendText(b, "failed_at", r.failedAt)
	if r.nextRetry != "" {
		b = appendText(b, "next_retry_at", r.nextRetry)
	}
	return append(b, '}')
}

// getLineage shows where a job comes from: its workflow, if it has one. No job is the parent of another.
// The members are those of the lineage endpoint of other servers; parent_id is always null and children always empty.
func (a *API) getLineage(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	stored, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	text, workflow := spec.FormatID(id), `null`
	// It is what the job shows as workflow_id.
	if own := job.WorkflowOf(stored.Extra); own != "" {
		workflow = `"` + own + `"`
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"job_id":"`+text+`","parent_id":null,"workflow_id":`+workflow+`,"root_id":"`...)
		return append(b, text+`","children":[]}`...)
	})
}
