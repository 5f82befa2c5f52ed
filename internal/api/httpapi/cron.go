package httpapi

import (
	"net/http"

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
			{"GET", prefix + "/:name", api.Confined, noBody, "", about(a.cronRef, a.getCron)},
			{"PUT", prefix + "/:name", api.Confined, oneBody, "", a.putCron},
			{"PATCH", prefix + "/:name", api.Confined, oneBody, "", about(a.cronRef, a.patchCron)},
			{"DELETE", prefix + "/:name", api.Confined, noBody, "", about(a.cronRef, a.deleteCron)},
			{"POST", prefix + "/:name/pause", api.Confined, commandBody, "", about(a.cronRef, a.enableCron(false))},
			{"POST", prefix + "/:name/resume", api.Confined, commandBody, "", about(a.cronRef, a.enableCron(true))},
			{"POST", prefix + "/:name/trigger", api.Confined, commandBody, "", about(a.cronRef, a.triggerCron)},
			{"GET", prefix + "/:name/history", api.Confined, noBody, paging, about(a.cronRef, a.getCronHistory)},
		}...)
	}
	return routes
}

// postCron takes the name from the body; it must then be there.
func (a *API) postCron(r *request) error { return a.registerCron(r, "") }

// putCron registers under the name in the path. A malformed name is 400 here and 404 in the other calls, because this one
// would create the cron.
func (a *API) putCron(r *request) error {
	name := param(r, "name")
	if !cron.ValidName(name) {
		return spec.InvalidPayload("name", "a cron name", nil,
			"The name in the path must be lower-case letters, digits, - and ., starting with a letter or digit, at most 255 bytes long.")
	}
	return a.registerCron(r, name)
}

// registerCron creates the cron or replaces it whole. It is idempotent: the same registration at each deployment changes nothing
// about the next run.
func (a *API) registerCron(r *request, name string) error {
	// A name in the body must be that of the path.
	in, wire := cron.Decode(r.body, name, a.limits(r))
	if wire != nil {
		return wire
	}
	// A name that another tenant has is 409.
	row, created, err := a.Crons.Put(r.Request().Context(), in)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		// The name needs no escapes (cron.ValidName).
		r.Response().Header().Set("Location", "/ojs/v1/cron/"+row.Name)
	}
	return r.answer(status, cronTwice(row))
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
func (a *API) patchCron(r *request, ref cron.Ref) error {
	row, err := a.Crons.Change(r.Request().Context(), ref, func(current *cron.Record) (*cron.Definition, error) {
		in, wire := cron.Patch(r.body, cron.DefinitionOf(current), a.limits(r))
		return in, asError(wire)
	})
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, cronTwice(row))
}

// enableCron pauses or resumes. Both are idempotent. Jobs that the cron has made are not touched.
func (a *API) enableCron(enabled bool) func(r *request, ref cron.Ref) error {
	return func(r *request, ref cron.Ref) error {
		row, err := a.Crons.Change(r.Request().Context(), ref, func(current *cron.Record) (*cron.Definition, error) {
			// All but enabled stays as it is stored.
			in := cron.DefinitionOf(current)
			in.Enabled = enabled
			return &in, nil
		})
		if err != nil {
			return err
		}
		return r.answer(http.StatusOK, append(object{{"name", row.Name}, {"paused", !row.Enabled}}, cronTwice(row)...))
	}
}

// deleteCron is not idempotent: a second call is 404. A tick that has the row locked ends first, so its job may appear just
// before the answer. It shows what was deleted, so that a client may register it again.
func (a *API) deleteCron(r *request, ref cron.Ref) error {
	row, err := a.Crons.Delete(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, append(object{{"deleted", true}, {"name", row.Name}}, cronTwice(row)...))
}

// triggerCron enqueues a job now. A repetition enqueues another one, so a client that got no answer should read the history
// before it tries again.
func (a *API) triggerCron(r *request, ref cron.Ref) error {
	job, err := a.Crons.Trigger(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	r.Response().Header().Set("Location", "/ojs/v1/jobs/"+spec.FormatID(job.ID))
	return r.answer(http.StatusCreated, object{{"job_id", job.ID}, {"job", shownJob(job)}, {"cron_name", ref.Name}})
}

// getCron shows the object as member cron, so the alias of the expression is left out.
func (a *API) getCron(r *request, ref cron.Ref) error {
	row, err := a.Crons.Get(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, append(showCron(row, false), cronTwice(row)...))
}

// listCrons has crons and cron_jobs, the same list under the names of two clients, and with items a third one.
func (a *API) listCrons(items bool) handler {
	return func(r *request) error {
		page := r.numberedPage(maxCronPage, maxCronPage)
		filter := cron.Filter{Tenant: a.tenant(r.Request()), Offset: page.offset, Limit: page.limit, Queues: r.texts("queue"),
			Enabled: r.boolean("enabled")}
		if r.err != nil {
			return r.err
		}
		rows, total, err := a.Crons.List(r.Request().Context(), filter)
		if err != nil {
			return err
		}
		list := each(rows, func(row *cron.Record) object { return showCron(row, true) })
		shown := object{{"crons", list}, {"cron_jobs", list}}
		if items {
			shown = append(shown, member{"items", list})
		}
		return r.answer(http.StatusOK, append(shown, object{{"count", len(rows)}, {"total", total},
			{"pagination", page.shownNumbered(total, len(rows))}}...))
	}
}

// getCronHistory lists ticks and triggers, newest first, also those that were skipped (docs/reference/scheduling.md, Cron endpoints).
func (a *API) getCronHistory(r *request, ref cron.Ref) error {
	page := r.numberedPage(historyPage, maxHistoryPage)
	if r.err != nil {
		return r.err
	}
	// The newest 1 000 are kept, for 30 days.
	runs, total, err := a.Crons.History(r.Request().Context(), ref, page.offset, page.limit)
	if err != nil {
		return err
	}
	// state is that of the job now, null if it has none or it was pruned; outcome is what the tick did, and reason why it was skipped.
	// started_at and completed_at are those of the job.
	list := each(runs, func(run *cron.Run) object {
		return object{
			{"job_id", run.JobID}, {"state", orNull(run.State)}, {"outcome", run.Outcome},
			{"reason", run.Reason}, {"scheduled_at", given(run.ScheduledAt)},
			{"started_at", run.StartedAt}, {"completed_at", run.FinishedAt},
		}
	})
	return r.answer(http.StatusOK, object{{"executions", list}, {"total", total}, {"pagination", page.shownNumbered(total, len(runs))}})
}

// cronTwice are the members under which suites and SDKs read a cron.
func cronTwice(row *cron.Record) object {
	shown := showCron(row, true)
	return object{{"cron", shown}, {"cron_job", shown}}
}

// showCron is the one shape that serves all clients (docs/reference/scheduling.md, Cron object).
// Beside the wrapper of the same name the alias cron is left out. last_run_at and next_run_at are null before the first run
// and while the cron is paused; the other members are always there. The template stands at the top level and in job_template;
// clients send and read both. A cron that the list has cut shows its type alone.
func showCron(row *cron.Record, alias bool) object {
	template := object{{"type", row.Type}}
	if !row.Cut() {
		template = append(template, object{{"args", row.Args}, {"meta", orEmpty(row.Meta)}, {"options", orEmpty(row.Options)}}...)
	}
	status := "active"
	if !row.Enabled {
		status = "paused"
	}
	shown := object{{"id", row.Name}, {"name", row.Name}, {"expression", row.Expression}}
	if alias {
		shown = append(shown, member{"cron", row.Expression})
	}
	shown = append(append(shown, object{{"schedule", row.Expression}, {"timezone", row.Timezone}}...), template...)
	return append(shown, object{
		{"queue", row.Queue}, {"job_template", template}, {"overlap_policy", row.OverlapPolicy}, {"enabled", row.Enabled},
		{"status", status},
		{"description", row.Description}, {"last_run_at", row.LastRunAt}, {"next_run_at", row.NextRunAt},
		{"run_count", row.RunCount}, {"created_at", given(row.CreatedAt)}, {"updated_at", given(row.UpdatedAt)},
	}...)
}

// orEmpty is {} for nil, which stands for an empty object in the stored rows of crons and workflows.
func orEmpty(stored []byte) []byte {
	if stored == nil {
		return []byte(`{}`)
	}
	return stored
}
