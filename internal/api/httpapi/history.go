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
	"github.com/ojsd/ojsd/ojs"
)

const (
	defaultHistory = 50
	maxHistory     = 1000
)

var (
	historyTypes = []string{
		"job.created", "job.state_changed", "job.attempt_started", "job.attempt_completed", "job.attempt_failed", "job.cancelled", "job.discarded",
	}
	actorTypes = []string{"worker", "client", "system", "user"}
)

// historyRoutes show the event log as the history of jobs (docs/reference/jobs.md, History).
func (a *API) historyRoutes(v1 *echo.Group) {
	get := []string{http.MethodGet, http.MethodHead}
	v1.Match(get, "/jobs/:id/history", a.getJobHistory)
	v1.Match(get, "/jobs/:id/retries", a.getRetries)
	v1.Match(get, "/jobs/:id/lineage", a.getLineage)
	v1.Match(get, "/history", a.listHistory)
}

func (a *API) getJobHistory(c echo.Context) error {
	limit, err := wholeNumber(c, []string{"limit"}, defaultHistory, 1)
	if err != nil {
		return err
	}
	after, err := historyCursor(c)
	if err != nil {
		return err
	}
	id, err := jobID(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	page, err := a.Events.JobHistory(ctx, id, after, min(limit, api.MaxPage))
	if err != nil {
		return api.EventError(err)
	}
	if page.Total == 0 { // events may have been dropped while the job lives
		if _, err := a.Progress.Get(ctx, id); err != nil {
			return err
		}
	}
	return respondEach(c, http.StatusOK, recordBytes(page.Events), func(b []byte, next flush) []byte {
		b = appendRecords(b, page, next)
		b = append(b, `,"total":`...)
		return append(strconv.AppendInt(b, page.Total, 10), '}')
	})
}

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

func (a *API) listHistory(c echo.Context) error {
	start := time.Now()
	q, err := readHistoryQuery(c)
	q.Tenant = a.tenant(c.Request())
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	page, err := a.Events.HistoryNewest(ctx, q)
	if err != nil {
		return api.EventError(err)
	}
	return respondEach(c, http.StatusOK, recordBytes(page.Events), func(b []byte, next flush) []byte {
		b = appendRecords(b, page, next)
		b = append(b, `,"total_estimate":`...)
		b = strconv.AppendInt(b, page.Total, 10)
		b = append(b, `,"query_time_ms":`...)
		return append(strconv.AppendInt(b, time.Since(start).Milliseconds(), 10), '}')
	})
}

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
			return nil, ojs.ErrInvalidRequest(name, all, v, name+" must be any of "+all+".")
		}
	}
	return values, nil
}

// appendRecords appends the object's beginning: events and next_cursor.
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
func recordBytes(events []eventlog.Event) (n int) {
	for i := range events {
		n += 256 + len(events[i].Data)
	}
	return n
}

func appendRecord(b []byte, e *eventlog.Event) []byte {
	kind, data := e.HistoryType(), membersOf(e.Data)
	b = e.Position.Append(append(b, `{"id":"`...))
	b = append(b, `","job_id":"`...)
	b = append(b, ojs.FormatID(*e.JobID)...)
	b = appendText(append(b, '"'), "event_type", kind)
	b = appendText(b, "timestamp", ojs.FormatTime(e.Time))
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

func willRetry(failure map[string]jsontext.Value) bool {
	next, _ := rawjson.Text(failure["next_state"])
	return next != string(ojs.StateDiscarded)
}

// actorOf names who caused the event; ojs.history_actor in SQL says the same of the type.
func actorOf(e *eventlog.Event, data map[string]jsontext.Value) (kind, id string) {
	var head struct {
		Source string `json:"source"`
	}
	_ = json.Unmarshal([]byte(e.Head+"}"), &head) // ours: valid
	source := strings.TrimPrefix(head.Source, "ojs://")
	if slash := strings.IndexByte(source, '/'); slash >= 0 {
		source = source[slash+1:]
	}
	if worker, ok := strings.CutPrefix(source, "workers/"); ok {
		if text, err := url.PathUnescape(worker); err == nil {
			worker = text
		}
		return "worker", worker
	}
	by, _ := rawjson.Text(data["cancelled_by"])
	switch {
	case source != "api" && !strings.HasPrefix(source, "api/"):
		return "system", source
	case strings.HasPrefix(by, "system:"), strings.HasPrefix(by, "workflow:"):
		return "system", by
	case by == "", by == "api":
		return "client", source
	case by == "sql", strings.HasPrefix(by, "key:"):
		return "client", by
	}
	return "user", by
}
