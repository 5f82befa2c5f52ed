package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
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
		{"GET", "/events", confined, noBody, paging + stream, a.listEvents},
		{"GET", "/events/:id", confined, noBody, "format", a.getEvent},
		{"GET", "/events/:id/history", aboutJob, noBody, "", a.getEventHistory},
		{"GET", "/events/stream", confined, noBody, stream, a.streamEvents},
		{"GET", "/jobs/:id/events", aboutJob, noBody, stream, a.streamJob},
		{"GET", "/queues/:name/events", confined, noBody, stream, a.streamQueue},
		{"GET", "/ws", confined, noBody, "", a.serveSocket},
		{"GET", "/events/ws", confined, noBody, "", a.serveSocket},
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
func readEventQuery(c echo.Context) (eventlog.Query, error) {
	q, err := readEventFilter(c)
	if err != nil {
		return q, err
	}
	q.After, err = api.ParseAfter(c.QueryParam("after"))
	return q, err
}

// readEventFilter reads the filters of docs/reference/events.md, Filters. Patterns are checked later, by the log; here only
// what could not be compared with a text column is refused. It leaves Tenant to its caller.
func readEventFilter(c echo.Context) (eventlog.Query, error) {
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
