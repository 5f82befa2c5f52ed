package httpapi

import (
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	fields "github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/tenant"
	"github.com/ojsd/ojsd/ojs"
)

// queueRoutes are those of docs/reference/queues.md.
// Tenants may list and read queues in which they have had jobs; everything that changes a queue is for operators.
func (a *API) queueRoutes() []route {
	return []route{
		{"GET", "/queues", confined, noBody, paging, a.listQueues},
		{"POST", "/queues", operators, configBody, "", a.postQueue},
		{"GET", "/queues/:name", confined, noBody, "", a.getQueue},
		{"DELETE", "/queues/:name", operators, configBody, "strategy target_queue", a.deleteQueue},
		{"GET", "/queues/:name/stats", confined, noBody, "", a.getQueueStats},
		{"GET", "/queues/:name/priority-stats", operators, noBody, "", a.getPriorityStats},
		{"POST", "/queues/:name/pause", operators, configBody, "paused_by", a.pauseQueue},
		{"POST", "/queues/:name/resume", operators, configBody, "resumed_by", a.resumeQueue},
		{"POST", "/queues/:name/drain", operators, configBody, "resumed_by", a.drainQueue},
		{"POST", "/queues/:name/purge", operators, configBody, "cancelled_by", a.purgeQueue},
		{"GET", "/queues/:name/config", operators, noBody, "", a.getQueueConfig},
		{"PUT", "/queues/:name/config", operators, configBody, "", a.putQueueConfig},
	}
}

// queueName reads the name in the path; with standard, queueconfig.Default is one.
// A malformed name is 400 here, because most of these calls would create the queue.
func queueName(c echo.Context, standard bool) (string, error) {
	name := param(c, "name")
	if standard && name == queueconfig.Default {
		return name, nil
	}
	return name, api.CheckQueue("name", name)
}

// optionalObject reads a body that may be missing; nil: it is.
// An array or a text is 400 even where a body is optional.
func optionalObject(body []byte) (jsontext.Value, error) {
	if blank(body) {
		return nil, nil
	}
	object, wire := rawjson.Check(body)
	return object, asError(wire)
}

// The cursor is the last name shown.
func (a *API) listQueues(r *request) error {
	page, err := readPage(r)
	if err != nil {
		return err
	}
	// Any name is a position, whether a queue has it or not.
	if page.cursor != "" && !job.ValidQueue(page.cursor) {
		return api.ErrCursor(page.cursor)
	}
	items, total, more, err := a.queuePage(r, page)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		next := ""
		b = append(b, `{"queues":[`...)
		for i, q := range items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQueueStatus(append(b, '{'), q.name, q.status), `,"created_at":"`...)
			b = append(append(b, spec.FormatTime(q.createdAt.Time)...), `"}`...)
			// page.append shows it only if there is more.
			next = q.name
		}
		b = strconv.AppendInt(append(b, `],"total":`...), total, 10)
		return append(page.append(append(b, `,"pagination":`...), total, more, next), '}')
	})
}

// queueItem is a queue in the list.
// It has what both sources of the list know.
type queueItem struct {
	name, status string
	createdAt    pgtype.Timestamptz
}

// queuePage lists all queues, or to a tenant those in which it has had jobs.
// A tenant is shown no queue of others, not even its name.
func (a *API) queuePage(c echo.Context, p page) (items []queueItem, total int64, more bool, err error) {
	ctx, caller := c.Request().Context(), a.tenant(c.Request())
	if caller == "" {
		// With an error the page is empty and not shown.
		found, err := a.Queues.List(ctx, p.cursor, p.offset, p.limit)
		for _, q := range found.Queues {
			items = append(items, queueItem{q.Name, q.Status, q.CreatedAt})
		}
		return items, found.Total, found.More, err
	}
	if err := checkTenantOffset(p); err != nil {
		return nil, 0, false, err
	}
	own, err := a.Tenants.QueuesPage(ctx, caller, tenant.Filter{After: p.cursor, Offset: p.offset, Limit: p.limit})
	for _, q := range own.Queues {
		items = append(items, queueItem{q.Name, q.Status, q.CreatedAt})
	}
	return items, own.Total, own.More, err
}

// appendQueueStatus appends the members of the short form of a queue to an object that has been opened.
// paused is the status as a boolean, which SDKs read.
func appendQueueStatus(b []byte, name, status string) []byte {
	b = appendQuoted(append(b, `"name":`...), name)
	b = appendText(b, "status", status)
	return strconv.AppendBool(append(b, `,"paused":`...), status == queueconfig.Paused)
}

// postQueue creates a queue, 409 if it exists: clients use it to find out whether a name is free. Settings may stand beside
// name, as the CLI sends them, and in config; the latter win.
func (a *API) postQueue(r *request) error {
	object, wire := rawjson.Check(r.body)
	if wire != nil {
		return wire
	}
	name, isText := rawjson.Text(fields.Present(fields.Find(object, "name")))
	if !isText {
		return spec.InvalidPayload("name", "the name of the queue", rawjson.Show(fields.Find(object, "name")), "'name' is required: send the name of the queue.")
	}
	// The name in a body is refused with the type of the field, invalid_queue, and not with invalid_request, which is for
	// parameters.
	if _, kind, expected := job.QueueProblem(fields.Quote(name)); kind != "" {
		return spec.InvalidField(kind, "name", expected, name, "'name' must be "+expected+".")
	}
	// Members of a queue that are no settings, such as name and config, are ignored by it.
	change, wire := queueconfig.ParseChange(object, "$") // as the CLI sends it
	if wire != nil {
		return wire
	}
	if config := fields.Present(fields.Find(object, "config")); config != nil {
		if config[0] != '{' {
			return spec.InvalidPayload("config", "an object", rawjson.Show(config), "'config' must be an object, got "+rawjson.Describe(config)+".")
		}
		nested, wire := queueconfig.ParseChange(config, "$.config")
		if wire != nil {
			return wire
		}
		// What config sets wins over the same setting beside name.
		change.And(nested)
	}
	// Two calls at once: one creates, the other is 409.
	q, err := a.Queues.Create(r.Request().Context(), name, change)
	if err != nil {
		return err
	}
	r.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/queues/"+name)
	return respond(r, http.StatusCreated, func(b []byte) []byte {
		b = appendQueueHead(append(b, '{'), q)
		b = append(append(b, `,"config":`...), q.Own()...)
		b = append(append(append(b, `,"created_at":"`...), spec.FormatTime(q.CreatedAt)...), '"')
		b = appendQueueStatus(append(b, `,"queue":{`...), q.Name, q.Status)
		return append(b, `}}`...)
	})
}

// state and status are equal.
func appendQueueHead(b []byte, q *queueadmin.Detail) []byte {
	b = appendQuoted(append(b, `"name":`...), q.Name)
	b = appendText(b, "state", q.Status)
	return appendText(b, "status", q.Status)
}

// getQueue reads the queue and its figures in two transactions; the counts are of one instant, that of the second. For a
// tenant they are those of its own jobs, and what is kept for all jobs together is 0.
func (a *API) getQueue(r *request) error {
	name, err := queueName(r, false)
	if err != nil {
		return err
	}
	q, err := a.Queues.Get(r.Request().Context(), name)
	if err != nil {
		return err
	}
	f, err := a.Queues.Figures(r.Request().Context(), name)
	if err != nil {
		return err
	}
	caller := a.tenant(r.Request())
	if caller != "" {
		// A tenant must not learn from figures how much others work.
		f.CompletedToday, f.FailedToday = 0, 0 // those of the jobs of all
		if f.Stats, err = a.Tenants.OfQueue(r.Request().Context(), caller, f.Stats); err != nil {
			return err
		}
	}
	depth := f.Counts[ojs.StateAvailable]
	return respond(r, http.StatusOK, func(b []byte) []byte {
		integer := func(b []byte, name string, n int64) []byte {
			return strconv.AppendInt(append(append(append(b, `,"`...), name...), `":`...), n, 10)
		}
		b = appendQueueHead(append(b, '{'), q)
		b = strconv.AppendBool(append(b, `,"paused":`...), q.Status == queueconfig.Paused)
		b = integer(integer(b, "depth", depth), "running", f.Counts[ojs.StateActive])
		// The configuration may name producers and weights of others.
		if caller == "" {
			b = append(append(b, `,"config":`...), q.Own()...)
		}
		b = strconv.AppendInt(append(b, `,"stats":{"depth":`...), depth, 10)
		b = integer(integer(b, "available", f.Counts[ojs.StateAvailable]), "active", f.Counts[ojs.StateActive])
		b = integer(integer(b, "completed_today", f.CompletedToday), "failed_today", f.FailedToday)
		b = appendQueueStatus(append(b, `},"queue":{`...), q.Name, q.Status)
		b = append(append(b, `},"created_at":"`...), spec.FormatTime(q.CreatedAt)...)
		b = append(append(append(b, `","updated_at":"`...), spec.FormatTime(q.UpdatedAt)...), '"')
		// Until the last active job has ended, a resume takes the deletion back.
		if q.Deleting {
			b = append(b, `,"deleting":true`...)
		}
		return append(b, '}')
	})
}
