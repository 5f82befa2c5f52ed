package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
)

// deadLetterRoutes are those of docs/reference/retries.md, Dead-letter endpoints, with their admin aliases.
func (a *API) deadLetterRoutes() []route {
	const filter = "queue type error_type error_code since until older_than "
	return []route{
		{"GET", "/dead-letter", api.Confined, noBody, paging + filter + "include", a.listDeadLetters("jobs", api.DefaultPage, api.MaxPage)},
		{"DELETE", "/dead-letter", api.Confined, oneBody, filter + "confirm dry_run", a.deletePurge},
		{"GET", "/dead-letter/stats", api.Confined, noBody, "queue", a.getDeadLetterStats},
		{"POST", "/dead-letter/retry", api.Confined, manyBody, "", a.retryDeadLetters},
		{"POST", "/dead-letter/purge", api.Confined, commandBody, filter + "dry_run", a.purgeByQuery},
		{"GET", "/dead-letter/:id", api.AboutDeadLetter, noBody, "", a.getDeadLetter},
		{"DELETE", "/dead-letter/:id", api.AboutDeadLetter, noBody, "", a.deleteDeadLetter},
		{"POST", "/dead-letter/:id/retry", api.AboutDeadLetter, oneBody, "", a.retryDeadLetter(false)},

		{"GET", "/admin/dead-letter", api.Confined, noBody, paging + filter + "include",
			a.listDeadLetters("items", defaultAdminPage, maxAdminPage)},
		{"DELETE", "/admin/dead-letter", api.Confined, oneBody, filter + "confirm dry_run", a.deletePurge},
		{"GET", "/admin/dead-letter/stats", api.Confined, noBody, "queue", a.getDeadLetterStats},
		{"POST", "/admin/dead-letter/retry", api.Confined, manyBody, "", a.retryDeadLetters},
		{"DELETE", "/admin/dead-letter/:id", api.AboutDeadLetter, noBody, "", a.adminDeleteDeadLetter},
		{"POST", "/admin/dead-letter/:id/retry", api.AboutDeadLetter, oneBody, "", a.retryDeadLetter(true)},
	}
}

// getDeadLetter shows any discarded job, with or without the mark of a dead letter (docs/reference/retries.md, Dead letters).
func (a *API) getDeadLetter(r *request) error {
	job, err := a.DeadLetters.Get(r.Request().Context(), deadLetterID(r))
	if err != nil {
		return err
	}
	return wrapped(r, job, shape{}, false)
}

// deadLetterID does not refuse a malformed id: the store answers for it as for an unknown one, with the text that was sent.
func deadLetterID(c echo.Context) deadletter.ID { return deadletter.ParseID(param(c, "id")) }

// retryDeadLetter shows the job as the retry has left it; a worker may have it by the time the client reads it. flat: the job is at the
// top level as well. It is not idempotent for clients: after a success the job is no dead letter, and a repetition is 404. The override is
// checked before anything is read.
func (a *API) retryDeadLetter(flat bool) handler {
	return func(r *request) error {
		// An override that would change the tenant is refused.
		override, wire := job.DecodeRetry(r.body, a.limits(r))
		if wire != nil {
			return wire
		}
		job, err := a.DeadLetters.RetryOne(r.Request().Context(), deadLetterID(r), override)
		if err != nil {
			return err
		}
		return wrapped(r, job, shape{}, flat)
	}
}

// adminRetryJob is 409 for a job in another state, where the dead-letter route is 404: its path names a job, not a dead
// letter.
func (a *API) adminRetryJob(r *request) error {
	override, wire := job.DecodeRetry(r.body, a.limits(r))
	if wire != nil {
		return wire
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	job, err := a.Jobs.Retry(r.Request().Context(), id, override)
	if err != nil {
		return err
	}
	return wrapped(r, job, shape{}, true)
}

// deleteDeadLetter removes the job for good, with its checkpoint and errors. The id in the answer is the canonical one.
func (a *API) deleteDeadLetter(r *request) error {
	id := deadLetterID(r)
	if err := a.DeadLetters.Delete(r.Request().Context(), id); err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"deleted": true, "job_id": id.String()})
}

// adminDeleteDeadLetter answers 204 without a body, as the admin UI expects.
func (a *API) adminDeleteDeadLetter(r *request) error {
	if err := a.DeadLetters.Delete(r.Request().Context(), deadLetterID(r)); err != nil {
		return err
	}
	return r.NoContent(http.StatusNoContent)
}

// listDeadLetters gives full envelopes under the name.
// It serves both lists; name is jobs or items. The order is that of dead_lettered_at, or of finished_at with include=all,
// newest first; the cursor has that time and the id, so it belongs to one of the two orders. A page may be short, even empty,
// although there are more (docs/reference/http.md, Pagination).
func (a *API) listDeadLetters(name string, standard, largest int) handler {
	return func(r *request) error {
		page := r.page(standard, largest)
		want := deadletter.Page{Offset: page.offset, Limit: page.limit, Before: behind(r, page, deadletter.ParseKey)}
		switch include := r.QueryParam("include"); include {
		case "":
		case "all":
			want.Everything = true
		default:
			r.refuse(spec.InvalidRequest("include", "all", include, "include must be all, which lists every discarded job, or absent."))
		}
		filter := a.deadLetterQuery(r)
		if r.err != nil {
			return r.err
		}
		found, err := a.DeadLetters.List(r.Request().Context(), filter, want)
		if err != nil {
			return err
		}
		cursor := ""
		if found.Next != nil {
			cursor = found.Next.String()
		}
		return respondJobs(r, name, found.Jobs, object{{"total", found.Total},
			{"pagination", page.shown(found.Total, cursor != "", cursor)}})
	}
}

// deadLetterQuery reads the filters of lists and purges.
// Calls with a body read the same filters from it, in package deadletter. A tenant is always part of the filter, so no call
// can forget it.
func (a *API) deadLetterQuery(r *request) deadletter.Filter {
	return deadletter.Filter{
		Tenant: a.tenant(r.Request()), Queues: r.texts("queue"), Types: r.texts("type"), ErrorTypes: r.texts("error_type"),
		ErrorCodes: r.texts("error_code"), Since: r.age("since"), Until: r.age("until"), OlderThan: r.age("older_than"),
	}
}

// retryDeadLetters commits each transaction of up to 1 000 jobs alone. A call that is cut off has retried the jobs of those before; a
// repetition takes the rest, because the retried ones are no dead letters any more.
func (a *API) retryDeadLetters(r *request) error {
	in, wire := deadletter.DecodeRetry(r.body, a.config.Server.MaxBatchSize)
	if wire != nil {
		return a.batchError(r, wire)
	}
	in.Filter.Tenant = a.tenant(r.Request())
	if in.DryRun {
		n, sample, err := a.DeadLetters.Matching(r.Request().Context(), in.Filter)
		if err != nil {
			return err
		}
		return r.answer(http.StatusOK, append(object{
			{"action", "retry"}, {"matched", n}, {"succeeded", n}, {"retried", n}, {"failed", 0}, {"errors", []string{}},
		}, dryRun(true, sample)...))
	}
	res, err := a.DeadLetters.Retry(r.Request().Context(), in.Filter)
	if err != nil {
		return err
	}
	failed := make([]map[string]string, len(res.Failed))
	// A job that another call has taken meanwhile is named, and is no reason to fail the rest.
	for i, f := range res.Failed {
		failed[i] = map[string]string{"job_id": spec.FormatID(f.ID), "error": f.Reason}
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		"action": "retry", "matched": res.Matched, "succeeded": res.Succeeded, "retried": res.Succeeded,
		"failed": len(res.Failed), "errors": failed,
	})
}

// deletePurge takes its filter from the body, or from the query if there is no body.
func (a *API) deletePurge(r *request) error {
	if blank(r.body) {
		if _, sent := r.QueryParams()["confirm"]; sent && r.QueryParam("confirm") != "true" || !sent && !r.flag("dry_run") {
			r.refuse(spec.InvalidRequest("confirm", "true", r.QueryParam("confirm"),
				"confirm must be true: this deletes every dead letter that matches."))
		}
		return a.purgeByQuery(r)
	}
	if name := firstParameter(r); name != "" {
		return spec.InvalidRequest(name, "absent beside a body", r.QueryParam(name), name+" stands in the query, and the call has a body: send the filter in one of them.")
	}
	in, wire := deadletter.DecodePurge(r.body, a.config.Server.MaxBatchSize)
	if wire != nil {
		return a.batchError(r, wire)
	}
	in.Filter.Tenant = a.tenant(r.Request())
	return a.purge(r, in)
}

// firstParameter is the first declared parameter that was sent; "": none was.
func firstParameter(r *request) string {
	sent := r.QueryParams()
	i := slices.IndexFunc(r.parameters, func(name string) bool { return len(sent[name]) > 0 })
	if i < 0 {
		return ""
	}
	return r.parameters[i]
}

// purgeByQuery is the whole of POST /dead-letter/purge, where the call is the confirmation.
func (a *API) purgeByQuery(r *request) error {
	// An unset variable of a script must not delete everything. Lists ignore empty parameters.
	for _, name := range r.parameters {
		if values, sent := r.QueryParams()[name]; sent && strings.Trim(strings.Join(values, ""), ", ") == "" {
			r.refuse(spec.InvalidRequest(name, "a value", "", name+" is empty; leave it out to delete without that filter."))
		}
	}
	in := deadletter.Bulk{Filter: a.deadLetterQuery(r), DryRun: r.flag("dry_run")}
	if r.err != nil {
		return r.err
	}
	return a.purge(r, in)
}

// purge deletes in portions that commit one by one. deleted and purged_count are equal.
func (a *API) purge(r *request, in deadletter.Bulk) (err error) {
	var n int64
	var sample [][16]byte
	if in.DryRun {
		n, sample, err = a.DeadLetters.Matching(r.Request().Context(), in.Filter)
	} else {
		n, err = a.DeadLetters.Purge(r.Request().Context(), in.Filter)
	}
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, append(object{{"action", "purge"}, {"deleted", n}, {"purged_count", n}}, dryRun(in.DryRun, sample)...))
}

// getDeadLetterStats shows counts of dead letters, without other discarded jobs. retention has the settings of this node and
// when this node prunes next; another node may prune before.
func (a *API) getDeadLetterStats(r *request) error {
	queues := r.texts("queue")
	if r.err != nil {
		return r.err
	}
	s, err := a.DeadLetters.Stats(r.Request().Context(), a.tenant(r.Request()), queues)
	if err != nil {
		return err
	}
	// max_age and max_count are absent without a limit.
	retention := map[string]any{"next_prune_at": spec.FormatTime(s.Now.Add(a.prune()))}
	if age := a.config.DeadLetter.MaxAge; age > 0 {
		retention["max_age"] = days(age)
	}
	if count := a.config.DeadLetter.MaxCount; count > 0 {
		retention["max_count"] = count
	}
	body := map[string]any{"total": s.Total, "by_queue": s.ByQueue, "by_type": s.ByType, "by_error_type": s.ByErrorType,
		"retention": retention}
	if s.Total > 0 {
		// Of an empty list there is neither.
		body["oldest_at"], body["newest_at"] = spec.FormatTime(s.Oldest), spec.FormatTime(s.Newest)
	}
	return sendJSON(r, http.StatusOK, body)
}

// days prints whole days as such.
// Other durations are shown as jsonread.FormatDuration writes them.
func days(d time.Duration) string {
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return "P" + strconv.FormatInt(int64(d/day), 10) + "D"
	}
	return jsonread.FormatDuration(d)
}
