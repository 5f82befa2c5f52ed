package httpapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/ojs"
)

const (
	maxCronPage    = 1000
	historyPage    = 20
	maxHistoryPage = 200
)

// cronRoutes are those of docs/reference/scheduling.md, Cron endpoints, under both prefixes.
func (a *API) cronRoutes(v1 *echo.Group) {
	body := bodyLimit{a.config.Limits.Envelope(), "envelope"}
	get := []string{http.MethodGet, http.MethodHead}
	for _, prefix := range []string{"/cron", "/crons"} {
		v1.POST(prefix, a.withBody(body, a.postCron))
		v1.Match(get, prefix, a.listCrons(prefix == "/crons"))
		v1.Match(get, prefix+"/:name", a.getCron)
		v1.PUT(prefix+"/:name", a.withBody(body, a.putCron))
		v1.PATCH(prefix+"/:name", a.withBody(body, a.patchCron))
		v1.DELETE(prefix+"/:name", a.deleteCron)
		v1.POST(prefix+"/:name/pause", a.withBody(body, a.enableCron(false)))
		v1.POST(prefix+"/:name/resume", a.withBody(body, a.enableCron(true)))
		v1.POST(prefix+"/:name/trigger", a.withBody(body, a.triggerCron))
		v1.Match(get, prefix+"/:name/history", a.getCronHistory)
	}
}

func (a *API) postCron(c echo.Context, body []byte) error { return a.register(c, body, "") }

func (a *API) putCron(c echo.Context, body []byte) error {
	name := param(c, "name")
	if !cron.ValidName(name) {
		return ojs.ErrInvalidPayload("name", "a cron name", nil, "The name in the path must be lower-case letters, digits, - and ., starting with a letter or digit, at most 255 bytes long.")
	}
	return a.register(c, body, name)
}

func (a *API) register(c echo.Context, body []byte, name string) error {
	in, wire := cron.Decode(body, name, a.limits(c))
	if wire != nil {
		return wire
	}
	row, created, err := a.Crons.Put(c.Request().Context(), in)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		c.Response().Header().Set("Location", "/ojs/v1/cron/"+row.Name)
	}
	return respond(c, status, func(b []byte) []byte { return append(appendCronTwice(append(b, '{'), row), '}') })
}

// cronName reads the name in the path; what is no name is an unknown cron.
func cronName(c echo.Context) (string, error) {
	name := param(c, "name")
	if !cron.ValidName(name) {
		return "", ojs.ErrNotFound("cron", name)
	}
	return name, nil
}

func (a *API) patchCron(c echo.Context, body []byte) error {
	name, err := cronName(c)
	if err != nil {
		return err
	}
	row, err := a.Crons.Change(c.Request().Context(), name, func(current *cron.Record) (*cron.Definition, error) {
		in, wire := cron.Patch(body, cron.DefinitionOf(current), a.limits(c))
		return in, asError(wire)
	})
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return append(appendCronTwice(append(b, '{'), row), '}') })
}

func (a *API) enableCron(enabled bool) func(c echo.Context, body []byte) error {
	return func(c echo.Context, body []byte) error {
		if err := checkCommand(body); err != nil {
			return err
		}
		name, err := cronName(c)
		if err != nil {
			return err
		}
		row, err := a.Crons.Change(c.Request().Context(), name, func(current *cron.Record) (*cron.Definition, error) {
			in := cron.DefinitionOf(current)
			in.Enabled = enabled
			return &in, nil
		})
		if err != nil {
			return err
		}
		return respond(c, http.StatusOK, func(b []byte) []byte {
			b = append(appendQuoted(append(b, `{"name":`...), row.Name), `,"paused":`...)
			b = append(strconv.AppendBool(b, !row.Enabled), ',')
			return append(appendCronTwice(b, row), '}')
		})
	}
}

func (a *API) deleteCron(c echo.Context) error {
	name, err := cronName(c)
	if err != nil {
		return err
	}
	row, err := a.Crons.Delete(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = append(appendQuoted(append(b, `{"deleted":true,"name":`...), row.Name), ',')
		return append(appendCronTwice(b, row), '}')
	})
}

func (a *API) triggerCron(c echo.Context, body []byte) error {
	if err := checkCommand(body); err != nil {
		return err
	}
	name, err := cronName(c)
	if err != nil {
		return err
	}
	job, err := a.Crons.Trigger(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return respond(c, http.StatusCreated, func(b []byte) []byte {
		b = ojs.AppendID(append(b, `{"job_id":"`...), job.ID)
		b = appendJob(append(b, `","job":`...), job, shape{})
		return append(appendText(b, "cron_name", name), '}')
	})
}

func (a *API) getCron(c echo.Context) error {
	name, err := cronName(c)
	if err != nil {
		return err
	}
	row, err := a.Crons.Get(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = append(appendCronFields(append(b, '{'), row, false), ',')
		return append(appendCronTwice(b, row), '}')
	})
}

func (a *API) listCrons(items bool) echo.HandlerFunc {
	return func(c echo.Context) error {
		page, err := readNumberedPage(c, maxCronPage, maxCronPage)
		if err != nil {
			return err
		}
		l := cron.Filter{Tenant: a.tenant(c.Request()), Offset: page.offset, Limit: page.limit}
		if l.Queues, err = plainList(c, "queue"); err != nil {
			return err
		}
		if text := c.QueryParam("enabled"); text != "" {
			enabled, err := strconv.ParseBool(text)
			if err != nil {
				return ojs.ErrInvalidRequest("enabled", "true or false", text, "enabled must be true or false.")
			}
			l.Enabled = &enabled
		}
		rows, total, err := a.Crons.List(c.Request().Context(), l)
		if err != nil {
			return err
		}
		return respond(c, http.StatusOK, func(b []byte) []byte { return appendCronPage(b, rows, total, page, items) })
	}
}

func appendCronPage(b []byte, rows []cron.Record, total int64, p page, items bool) []byte {
	b = appendCrons(append(b, `{"crons":`...), rows)
	b = appendCrons(append(b, `,"cron_jobs":`...), rows)
	if items {
		b = appendCrons(append(b, `,"items":`...), rows)
	}
	b = strconv.AppendInt(append(b, `,"count":`...), int64(len(rows)), 10)
	b = strconv.AppendInt(append(b, `,"total":`...), total, 10)
	b = p.append(append(b, `,"pagination":`...), total, int64(p.offset+len(rows)) < total, "")
	return append(b, '}')
}

func appendCrons(b []byte, rows []cron.Record) []byte {
	b = append(b, '[')
	for i := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendCronFields(append(b, '{'), &rows[i], true), '}')
	}
	return append(b, ']')
}

func (a *API) getCronHistory(c echo.Context) error {
	name, err := cronName(c)
	if err != nil {
		return err
	}
	page, err := readNumberedPage(c, historyPage, maxHistoryPage)
	if err != nil {
		return err
	}
	runs, total, err := a.Crons.History(c.Request().Context(), name, page.offset, page.limit)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"executions":[`...)
		for i := range runs {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCronRun(b, &runs[i])
		}
		b = strconv.AppendInt(append(b, `],"total":`...), total, 10)
		b = page.append(append(b, `,"pagination":`...), total, int64(page.offset+len(runs)) < total, "")
		return append(b, '}')
	})
}

func appendCronRun(b []byte, r *cron.Run) []byte {
	b = append(b, `{"job_id":`...)
	if r.JobID.Valid {
		b = append(ojs.AppendID(append(b, '"'), r.JobID.Bytes), '"')
	} else {
		b = append(b, `null`...)
	}
	b = appendOptional(b, "state", r.State, r.State != "")
	b = appendText(b, "outcome", r.Outcome)
	b = appendOptional(b, "reason", r.Reason.String, r.Reason.Valid)
	b = appendTime(b, "scheduled_at", r.ScheduledAt)
	b = appendTimeOrNull(b, "started_at", r.StartedAt)
	b = appendTimeOrNull(b, "completed_at", r.FinishedAt)
	return append(b, '}')
}

// appendCronTwice appends the cron under the names that suites and SDKs read, without a leading comma.
func appendCronTwice(b []byte, row *cron.Record) []byte {
	b = append(appendCronFields(append(b, `"cron":{`...), row, true), '}')
	return append(appendCronFields(append(b, `,"cron_job":{`...), row, true), '}')
}

// appendCronFields appends the members of the one shape that serves all clients (docs/reference/scheduling.md, Cron object). Beside the wrapper
// of the same name the alias cron is left out.
func appendCronFields(b []byte, row *cron.Record, alias bool) []byte {
	b = appendQuoted(append(b, `"id":`...), row.Name)
	b = appendText(b, "name", row.Name)
	b = appendText(b, "expression", row.Expression)
	if alias {
		b = appendText(b, "cron", row.Expression)
	}
	b = appendText(b, "schedule", row.Expression)
	b = appendText(b, "timezone", row.Timezone)
	b = appendTemplate(append(b, ','), row)
	b = appendText(b, "queue", row.Queue)
	b = append(appendTemplate(append(b, `,"job_template":{`...), row), '}')
	b = appendText(b, "overlap_policy", row.OverlapPolicy)
	b = strconv.AppendBool(append(b, `,"enabled":`...), row.Enabled)
	status := "active"
	if !row.Enabled {
		status = "paused"
	}
	b = appendText(b, "status", status)
	b = appendOptional(b, "description", row.Description.String, row.Description.Valid)
	b = appendTimeOrNull(b, "last_run_at", row.LastRunAt)
	b = appendTimeOrNull(b, "next_run_at", row.NextRunAt)
	b = strconv.AppendInt(append(b, `,"run_count":`...), row.RunCount, 10)
	b = appendTime(b, "created_at", row.CreatedAt)
	return appendTime(b, "updated_at", row.UpdatedAt)
}

func appendTemplate(b []byte, row *cron.Record) []byte {
	b = appendQuoted(append(b, `"type":`...), row.Type)
	if row.Cut() {
		return b
	}
	b = append(append(b, `,"args":`...), row.Args...)
	b = appendObject(append(b, `,"meta":`...), row.Meta)
	return appendObject(append(b, `,"options":`...), row.Options)
}

func appendObject(b, object []byte) []byte {
	if object == nil {
		return append(b, '{', '}')
	}
	return append(b, object...)
}
