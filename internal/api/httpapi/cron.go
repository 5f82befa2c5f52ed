package httpapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/spec"
)

// maxCronPage is both default and maximum: clients of the specification expect all crons in one answer. The list cuts
// templates behind the first MiB, so 1 000 crons cannot make it large.
const (
	maxCronPage    = 1000
	historyPage    = 20
	maxHistoryPage = 200
)

// cronRoutes are those of docs/reference/scheduling.md, Cron endpoints, under both prefixes.
// Both prefixes have the same handlers; only the list differs, because the admin UI reads items below /crons.
func (a *API) cronRoutes() (routes []route) {
	for _, prefix := range []string{"/cron", "/crons"} {
		routes = append(routes, []route{
			{"POST", prefix, api.Confined, oneBody, "", a.postCron},
			{"GET", prefix, api.Confined, noBody, paging + "queue enabled", a.listCrons(prefix == "/crons")},
			{"GET", prefix + "/:name", api.Confined, noBody, "", a.getCron},
			{"PUT", prefix + "/:name", api.Confined, oneBody, "", a.putCron},
			{"PATCH", prefix + "/:name", api.Confined, oneBody, "", a.patchCron},
			{"DELETE", prefix + "/:name", api.Confined, noBody, "", a.deleteCron},
			{"POST", prefix + "/:name/pause", api.Confined, oneBody, "", a.enableCron(false)},
			{"POST", prefix + "/:name/resume", api.Confined, oneBody, "", a.enableCron(true)},
			{"POST", prefix + "/:name/trigger", api.Confined, oneBody, "", a.triggerCron},
			{"GET", prefix + "/:name/history", api.Confined, noBody, paging, a.getCronHistory},
		}...)
	}
	return routes
}

// The name comes from the body, for POST; it must then be there.
func (a *API) postCron(r *request) error { return a.register(r, r.body, "") }

// putCron registers under the name in the path. A malformed name is 400 here and 404 in the other calls, because this one
// would create the cron.
func (a *API) putCron(r *request) error {
	name := param(r, "name")
	if !cron.ValidName(name) {
		return spec.InvalidPayload("name", "a cron name", nil, "The name in the path must be lower-case letters, digits, - and ., starting with a letter or digit, at most 255 bytes long.")
	}
	return a.register(r, r.body, name)
}

// register creates the cron or replaces it whole. It is idempotent: the same registration at each deployment changes nothing
// about the next run.
func (a *API) register(c echo.Context, body []byte, name string) error {
	// A name in the body must be that of the path.
	in, wire := cron.Decode(body, name, a.limits(c))
	if wire != nil {
		return wire
	}
	// A name that another tenant has is 409.
	row, created, err := a.Crons.Put(c.Request().Context(), in)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		// The name needs no escapes (cron.ValidName).
		c.Response().Header().Set("Location", "/ojs/v1/cron/"+row.Name)
	}
	return respond(c, status, func(b []byte) []byte { return append(appendCronTwice(append(b, '{'), row), '}') })
}

// cronRef is the cron that the path names; what is no name is an unknown cron.
// It may be called only where the cron must exist.
func (a *API) cronRef(c echo.Context) (cron.Ref, error) {
	name := param(c, "name")
	if !cron.ValidName(name) {
		return cron.Ref{}, spec.NotFound("cron", name)
	}
	return cron.Ref{Tenant: a.tenant(c.Request()), Name: name}, nil
}

// patchCron merges the body into the stored cron. The function runs inside the transaction that has locked the row, so two
// changes at once do not lose one of them, and a tick that fires meanwhile waits. An error that it returns rolls back and is
// the answer.
func (a *API) patchCron(r *request) error {
	ref, err := a.cronRef(r)
	if err != nil {
		return err
	}
	row, err := a.Crons.Change(r.Request().Context(), ref, func(current *cron.Record) (*cron.Definition, error) {
		in, wire := cron.Patch(r.body, cron.DefinitionOf(current), a.limits(r))
		return in, asError(wire)
	})
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return append(appendCronTwice(append(b, '{'), row), '}') })
}

// enableCron pauses or resumes. Both are idempotent. Jobs that the cron has made are not touched.
func (a *API) enableCron(enabled bool) func(r *request) error {
	return func(r *request) error {
		if err := checkCommand(r.body); err != nil {
			return err
		}
		ref, err := a.cronRef(r)
		if err != nil {
			return err
		}
		row, err := a.Crons.Change(r.Request().Context(), ref, func(current *cron.Record) (*cron.Definition, error) {
			// All but enabled stays as it is stored.
			in := cron.DefinitionOf(current)
			in.Enabled = enabled
			return &in, nil
		})
		if err != nil {
			return err
		}
		return respond(r, http.StatusOK, func(b []byte) []byte {
			b = append(appendQuoted(append(b, `{"name":`...), row.Name), `,"paused":`...)
			b = append(strconv.AppendBool(b, !row.Enabled), ',')
			return append(appendCronTwice(b, row), '}')
		})
	}
}

// deleteCron is not idempotent: a second call is 404. A tick that has the row locked ends first, so its job may appear just
// before the answer.
func (a *API) deleteCron(r *request) error {
	ref, err := a.cronRef(r)
	if err != nil {
		return err
	}
	// It returns what was deleted, so that a client may register it again.
	row, err := a.Crons.Delete(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(appendQuoted(append(b, `{"deleted":true,"name":`...), row.Name), ',')
		return append(appendCronTwice(b, row), '}')
	})
}

// triggerCron enqueues a job now. A repetition enqueues another one, so a client that got no answer should read the history
// before it tries again.
func (a *API) triggerCron(r *request) error {
	if err := checkCommand(r.body); err != nil {
		return err
	}
	ref, err := a.cronRef(r)
	if err != nil {
		return err
	}
	job, err := a.Crons.Trigger(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return respond(r, http.StatusCreated, func(b []byte) []byte {
		b = spec.AppendID(append(b, `{"job_id":"`...), job.ID)
		b = appendJob(append(b, `","job":`...), job, shape{})
		return append(appendText(b, "cron_name", ref.Name), '}')
	})
}

// In this answer the member cron is the object, so the alias of the expression is left out.
func (a *API) getCron(r *request) error {
	ref, err := a.cronRef(r)
	if err != nil {
		return err
	}
	row, err := a.Crons.Get(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(appendCronFields(append(b, '{'), row, false), ',')
		return append(appendCronTwice(b, row), '}')
	})
}

// items adds the member of that name.
func (a *API) listCrons(items bool) handler {
	return func(r *request) error {
		page, err := readNumberedPage(r, maxCronPage, maxCronPage)
		if err != nil {
			return err
		}
		l := cron.Filter{Tenant: a.tenant(r.Request()), Offset: page.offset, Limit: page.limit}
		if l.Queues, err = plainList(r, "queue"); err != nil {
			return err
		}
		if text := r.QueryParam("enabled"); text != "" {
			// It takes 1 and 0 as well.
			enabled, err := strconv.ParseBool(text)
			if err != nil {
				return spec.InvalidRequest("enabled", "true or false", text, "enabled must be true or false.")
			}
			l.Enabled = &enabled
		}
		rows, total, err := a.Crons.List(r.Request().Context(), l)
		if err != nil {
			return err
		}
		return respond(r, http.StatusOK, func(b []byte) []byte { return appendCronPage(b, rows, total, page, items) })
	}
}

// crons and cron_jobs are the same list under the names of two clients.
func appendCronPage(b []byte, rows []cron.Record, total int64, p page, items bool) []byte {
	b = appendCrons(append(b, `{"crons":`...), rows)
	b = appendCrons(append(b, `,"cron_jobs":`...), rows)
	if items {
		b = appendCrons(append(b, `,"items":`...), rows)
	}
	b = strconv.AppendInt(append(b, `,"count":`...), int64(len(rows)), 10)
	b = strconv.AppendInt(append(b, `,"total":`...), total, 10)
	b = p.appendNumbered(append(b, `,"pagination":`...), total, len(rows))
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

// getCronHistory lists ticks and triggers, newest first, also those that were skipped.
func (a *API) getCronHistory(r *request) error {
	ref, err := a.cronRef(r)
	if err != nil {
		return err
	}
	page, err := readNumberedPage(r, historyPage, maxHistoryPage)
	if err != nil {
		return err
	}
	// The newest 1 000 are kept, for 30 days.
	runs, total, err := a.Crons.History(r.Request().Context(), ref, page.offset, page.limit)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"executions":[`...)
		for i := range runs {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCronRun(b, &runs[i])
		}
		b = strconv.AppendInt(append(b, `],"total":`...), total, 10)
		b = page.appendNumbered(append(b, `,"pagination":`...), total, len(runs))
		return append(b, '}')
	})
}

// appendCronRun appends one execution (docs/reference/scheduling.md, Cron endpoints). state is that of the job now, null if
// it has none or it was pruned; outcome is what the tick did. started_at and completed_at are those of the job.
func appendCronRun(b []byte, r *cron.Run) []byte {
	b = append(b, `{"job_id":`...)
	if r.JobID.Valid {
		b = append(spec.AppendID(append(b, '"'), r.JobID.Bytes), '"')
	} else {
		b = append(b, `null`...)
	}
	b = appendOptional(b, "state", r.State, r.State != "")
	b = appendText(b, "outcome", r.Outcome)
	// reason says why a tick was skipped.
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

// appendCronFields appends the members of the one shape that serves all clients (docs/reference/scheduling.md, Cron object).
// Beside the wrapper of the same name the alias cron is left out. last_run_at and next_run_at are null before the first run
// and while the cron is paused; the other members are always there.
func appendCronFields(b []byte, row *cron.Record, alias bool) []byte {
	b = appendQuoted(append(b, `"id":`...), row.Name)
	b = appendText(b, "name", row.Name)
	b = appendText(b, "expression", row.Expression)
	if alias {
		b = appendText(b, "cron", row.Expression)
	}
	b = appendText(b, "schedule", row.Expression)
	b = appendText(b, "timezone", row.Timezone)
	// The template stands at the top level and in job_template; clients send and read both.
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

// appendTemplate leaves out args, meta and options of a cron that the list has cut.
func appendTemplate(b []byte, row *cron.Record) []byte {
	b = appendQuoted(append(b, `"type":`...), row.Type)
	if row.Cut() {
		return b
	}
	b = append(append(b, `,"args":`...), row.Args...)
	b = appendObject(append(b, `,"meta":`...), row.Meta)
	return appendObject(append(b, `,"options":`...), row.Options)
}

// appendObject appends {} for nil, which stands for an empty object in the stored rows of crons and workflows.
func appendObject(b, object []byte) []byte {
	if object == nil {
		return append(b, '{', '}')
	}
	return append(b, object...)
}
