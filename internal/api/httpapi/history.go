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
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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
		{"GET", "/jobs/:id/history", aboutJob, noBody, "limit cursor", a.getJobHistory},
		{"GET", "/jobs/:id/retries", aboutJob, noBody, "", a.getRetries},
		{"GET", "/jobs/:id/lineage", aboutJob, noBody, "", a.getLineage},
		{"GET", "/history", confined, noBody, "limit cursor event_types actor_type queues job_types start end", a.listHistory},
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
func readHistoryQuery(c echo.Context) (q eventlog.HistoryQuery, err error) {
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
func historyFilter(c echo.Context, name string, words []string) ([]string, error) {
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
		for literal, value := range rawjson.Members(jsontext.Value(data)) {
			members[string(rawjson.Name(literal))] = value
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
	next, _ := rawjson.Text(failure["next_state"])
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
	by, _ := rawjson.Text(data["cancelled_by"])
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
