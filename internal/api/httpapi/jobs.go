package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func (a *API) jobRoutes() []route {
	return []route{
		{"POST", "/jobs", api.Confined, oneBody, "", a.postJob},
		{"GET", "/jobs", api.Confined, noBody, paging + "state queue type", a.listJobs},
		{"POST", "/jobs/batch", api.Confined, manyBody, "", a.postBatch},
		{"POST", "/jobs/bulk", api.Confined, manyBody, "", a.postBulk},
		{"POST", "/jobs/bulk/cancel", api.Confined, manyBody, "cancelled_by", a.bulkHandler(job.BulkCancel)},
		{"POST", "/jobs/bulk/retry", api.Confined, manyBody, "cancelled_by", a.bulkHandler(job.BulkRetry)},
		{"POST", "/jobs/bulk/delete", api.Confined, manyBody, "cancelled_by", a.bulkHandler(job.BulkDelete)},
		{"POST", "/jobs/results", api.Confined, oneBody, "", a.postResults},
		{"GET", "/jobs/:id", api.AboutJob, noBody, "", about(jobID, a.getJob)},
		{"PATCH", "/jobs/:id", api.AboutJob, oneBody, "", a.patchJob},
		{"DELETE", "/jobs/:id", api.AboutJob, noBody, "cancelled_by reason", about(jobID, a.deleteJob)},
		{"GET", "/jobs/:id/explain", api.AboutJob, noBody, "", about(jobID, a.getExplanation)},
		{"POST", "/jobs/:id/activate", api.AboutJob, commandBody, "", about(jobID, a.activateJob)},
		{"GET", "/jobs/:id/result", api.AboutJob, noBody, "wait timeout", a.getResult},
		{"GET", "/unique-jobs", api.Confined, noBody, paging, a.listUnique},
	}
}

// flat reports whether job fields are repeated beside the wrapper: for clients that are no SDK.
// It looks at the presence of OJS-Version and not at its value, which admit has checked. Clients without it are tools that
// read the members of a job at the top level (docs/reference/http.md, Official clients).
func flat(c echo.Context) bool {
	_, present := c.Request().Header["Ojs-Version"]
	return !present
}

// asError keeps a nil *ojs.Error from becoming a non-nil error.
// Decoders return *ojs.Error; returned as an error, a nil one would not equal nil.
func asError(err *ojs.Error) error {
	if err == nil {
		return nil
	}
	return err
}

// postJob stores one job. With the answer 201 the job is committed. The call shares a statement with concurrent ones, but its
// outcome is its own. A client that gets no answer does not know whether the job exists; it should send an id or an
// Idempotency-Key if that matters.
func (a *API) postJob(r *request) error {
	// Everything that needs no database is checked here; existence, ids, unique keys and queues are checked where the job is
	// stored.
	in, wire := job.DecodeJob(r.body, a.limits(r))
	if wire != nil {
		return wire
	}
	if err := blockFor(r, in); err != nil {
		return err
	}
	if r.Request().Header.Get("Idempotency-Key") != "" {
		return a.postJobOnce(r, r.body, in)
	}
	// If the outcome in the database is unknown, the store looks the job up by its id before it answers.
	job, err := a.Jobs.Enqueue(r.Request().Context(), in)
	if err != nil {
		return err
	}
	// The headers cost a statement, but only if the job or its queue has a limit.
	a.rateLimitHeaders(r, in)
	return created(r, in, job)
}

// postJobOnce is postJob with an idempotency key. It has a transaction of its own, so it is slower.
// The remembered body has the flat members if the first call had them; a replay with another OJS-Version gets the body of the
// first call.
func (a *API) postJobOnce(c echo.Context, body []byte, in *job.Job) error {
	key, err := a.idempotency(c, "job", "", body)
	if err != nil {
		return err
	}
	// The answer is the text to be sent, also for the first call.
	answer, err := a.enqueueOnce(c, key, []*job.Job{in}, func(stored []*job.Record) []byte {
		return appendWrapped(nil, stored[0], shape{existing: in.Outcome.Deduplicated}, flat(c))
	})
	if err != nil {
		return err
	}
	// A replay knows the job only by the stored answer, in which unknown attributes may differ from these names by their case.
	id, _ := jsonread.Text(jsonread.Find(jsonread.Find(answer.Body, "job"), "id"))
	a.rateLimitHeaders(c, in)
	c.Response().Header().Set("Location", "/ojs/v1/jobs/"+id)
	return send(c, answer.Status, answer.Body)
}

// wrapped answers with {"job":{…}}. flat has the members of the job at the top level as well, which admin tools read whether OJS-Version
// was sent or not.
func wrapped(c echo.Context, job *job.Record, as shape, flat bool) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, as, flat) })
}

// created answers with the stored job, or with the one because of which nothing was stored.
// Location names the job that the client has now, which for a duplicate is the older one.
func created(c echo.Context, in *job.Job, job *job.Record) error {
	status := http.StatusCreated
	if in.Outcome.Deduplicated {
		status = http.StatusOK
	}
	showPressure(c, in)
	var b [64]byte
	c.Response().Header()["Location"] = []string{string(spec.AppendID(append(b[:0], "/ojs/v1/jobs/"...), job.ID))}
	return respond(c, status, func(b []byte) []byte {
		return appendWrapped(b, job, shape{existing: in.Outcome.Deduplicated}, flat(c))
	})
}

// jobID reads the id in the path; what is no id is an unknown job (docs/reference/http.md, Unmatched requests).
// A leading job_ is accepted.
func jobID(c echo.Context) ([16]byte, error) {
	id, err := job.ParseID(param(c, "id"))
	return id, asError(err)
}

// getJob shows a job of any state, finished ones included. It reads what is committed, so a client sees the effect of every
// call that was answered before.
func (a *API) getJob(r *request, id [16]byte) error {
	job, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return wrapped(r, job, shape{}, flat(r))
}

// deleteJob cancels, and removes nothing. It is not idempotent: a second call is 409, because the job has ended. An active
// job is cancelled at once, without asking its worker.
func (a *API) deleteJob(r *request, id [16]byte) error {
	// The parameters stand in the query, because not every client can send a body with DELETE.
	cancel, err := api.NewCancel(a.actor(r, "cancelled_by"), r.QueryParam("reason"))
	if err != nil {
		return err
	}
	job, err := a.Jobs.Cancel(r.Request().Context(), id, cancel)
	if err != nil {
		return err
	}
	return wrapped(r, job, shape{previous: job.PreviousState.String}, flat(r))
}

// activateJob releases a pending job. A repetition is 409.
func (a *API) activateJob(r *request, id [16]byte) error {
	job, err := a.Jobs.Activate(r.Request().Context(), id)
	if err != nil {
		return err
	}
	// No other state leads here.
	return wrapped(r, job, shape{previous: string(ojs.StatePending), activated: true}, flat(r))
}

// listJobs pages by id, newest first. The cursor is the last id that was looked at; new jobs have larger ids, so they do not
// shift the pages behind it. A page may be short although there are more (docs/reference/http.md, Pagination).
func (a *API) listJobs(r *request) error {
	page := r.page(api.DefaultPage, api.MaxPage)
	// Filters of one kind are alternatives, those of different kinds must all hold.
	filter := queue.List{
		Tenant: a.tenant(r.Request()), States: r.jobStates(), Queues: r.texts("queue"), Types: r.texts("type"),
		Offset: page.offset, Limit: page.limit, Before: behind(r, page, spec.ParseID),
	}
	if r.err != nil {
		return r.err
	}
	found, err := a.Jobs.List(r.Request().Context(), filter)
	if err != nil {
		return err
	}
	cursor := ""
	if found.Next != nil {
		cursor = spec.FormatID(*found.Next)
	}
	return respondJobs(r, "jobs", found.Jobs, object{{"total", found.Total}, {"pagination", page.shown(found.Total, cursor != "", cursor)}})
}

// respondJobs answers with a page of jobs under the name; rest stands behind it.
func respondJobs(c echo.Context, name string, jobs []*job.Record, rest object) error {
	return respondEach(c, http.StatusOK, shownBytes(jobs), func(b []byte, next flush) []byte {
		b = appendJobs(append(append(append(b, `{"`...), name...), `":`...), jobs, shape{}, next)
		return append(rest.appendMembers(b), '}')
	})
}

// jobStates reads the states that a list asks for.
// Values that are states by name only need no check for what a text column can hold.
func (r *request) jobStates() []string {
	states := r.list("state")
	for _, s := range states {
		if !ojs.JobState(s).Valid() {
			r.refuse(spec.InvalidRequest("state", "a job state", s, "state must name job states, such as available or completed."))
		}
	}
	return states
}

// appendJobs appends the array. jobs must hold no nil.
func appendJobs(b []byte, jobs []*job.Record, as shape, next flush) []byte {
	return appendEach(b, jobs, next, func(b []byte, job **job.Record) []byte { return appendJob(b, *job, as) })
}

func shownJob(j *job.Record) func(b []byte) []byte {
	return func(b []byte) []byte { return appendJob(b, j, shape{}) }
}

// shownBytes is about how many bytes the jobs take in an answer. nil jobs take some for an error.
// It decides whether an answer is streamed and how long its client has for it, so it may be wrong by some per cent.
func shownBytes(jobs []*job.Record) int {
	const fields = 600 // all but what clients fill
	n := fields * len(jobs)
	for _, j := range jobs {
		if j == nil {
			continue
		}
		n += len(j.Args) + len(j.Meta) + len(j.Extra) + len(j.Error) + len(j.Result) + len(j.Checkpoint) + len(j.ProgressData)
		for _, e := range j.Errors {
			n += len(e)
		}
		for _, e := range j.PreviousErrors {
			n += len(e)
		}
	}
	return n
}

// adminJobRoutes are those of docs/reference/admin.md, Jobs.
// The list is about all jobs in all states and has no confirmation; the three bulk calls refuse a body without "confirm":true
// before they read anything. They take a filter only, which is small, where /jobs/bulk may list ids.
func (a *API) adminJobRoutes() []route {
	return []route{
		{"GET", "/admin/jobs", api.Confined, noBody, paging + "state queue type contains since until sort order", a.searchJobs},
		{"GET", "/admin/jobs/:id", api.AboutJob, noBody, "", about(jobID, a.getAdminJob)},
		{"PATCH", "/admin/jobs/:id", api.AboutJob, oneBody, "", a.patchJob},
		{"POST", "/admin/jobs/:id/cancel", api.AboutJob, oneBody, "cancelled_by", about(jobID, a.adminCancelJob)},
		{"POST", "/admin/jobs/:id/retry", api.AboutJob, oneBody, "", a.adminRetryJob},
		{"POST", "/admin/jobs/bulk/cancel", api.Confined, oneBody, "cancelled_by", a.confirmedBulk(job.BulkCancel)},
		{"POST", "/admin/jobs/bulk/retry", api.Confined, oneBody, "cancelled_by", a.confirmedBulk(job.BulkRetry)},
		{"POST", "/admin/jobs/bulk/delete", api.Confined, oneBody, "cancelled_by", a.confirmedBulk(job.BulkDelete)},
	}
}

// maxContains bounds the text that a search compares with each job.
const maxContains = 255

// searchJobs lists jobs of any state. The snapshot in which the ids are found is also that in which the jobs are read, so a
// page never shows a job in a state that the filter excludes. It has a share of the connections like all lists:
// queue.Store.Search may answer 503 while others read.
//
// A cursor is an id in the order of creation alone. The other orders sort a bounded set of matches, in which a job may move
// or vanish between two pages, so an id says nothing about the place behind it; there, the cursor is an offset.
func (a *API) searchJobs(r *request) error {
	page := r.page(defaultAdminPage, maxAdminPage)
	// Ages are not resolved here, because they count from the clock of the database, which the store asks; the clock of this node may be
	// wrong.
	f := queue.Search{Tenant: a.tenant(r.Request()), States: r.jobStates(), Queues: r.texts("queue")}
	// A trailing * is cut and not escaped: the statement compares prefixes as text, so % and _ of a client mean themselves.
	for _, t := range r.texts("type") {
		if prefix, cut := strings.CutSuffix(t, "*"); cut {
			f.TypePrefixes = append(f.TypePrefixes, prefix)
		} else {
			f.Types = append(f.Types, t)
		}
	}
	if f.Contains = r.QueryParam("contains"); !api.Storable(f.Contains) || len(f.Contains) > maxContains {
		r.refuse(spec.InvalidRequest("contains", "text of at most 255 bytes without U+0000", f.Contains, "contains must be text of at most 255 bytes without U+0000."))
	}
	f.Since, f.Until = r.age("since"), r.age("until")
	f.Sort = r.oneOf("sort", queue.SortCreated, queue.SortScheduled, queue.SortPriority, queue.SortStarted)
	f.Ascending = r.oneOf("order", "desc", "asc") == "asc"
	numbered := f.Sort != queue.SortCreated
	if numbered {
		r.seek(&page)
	} else {
		f.Cursor = behind(r, page, spec.ParseID)
	}
	if r.err != nil {
		return r.err
	}
	f.Offset, f.Limit = page.offset, page.limit
	found, err := a.Jobs.Search(r.Request().Context(), f)
	if err != nil {
		return err
	}
	cursor := ""
	if numbered {
		cursor = page.next(len(found.Jobs))
	} else if found.Next != nil {
		cursor = spec.FormatID(*found.Next)
	}
	return respondJobs(r, "items", found.Jobs, object{{"pagination", page.shown(found.Total, found.More, cursor)}})
}

// getAdminJob shows everything about a job that its owner can be asked about.
// It reads the job once, whole, so that its members are of one moment. errors and result are always there, because the admin UI reads
// them without asking whether they exist; the ordinary envelope leaves both out. metadata repeats the times with null for
// those that have not come.
func (a *API) getAdminJob(r *request, id [16]byte) error {
	j, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	var beside object
	if len(j.Errors) == 0 {
		beside = append(beside, member{"errors", []object{}})
	}
	if j.Result == nil {
		beside = append(beside, member{"result", nil})
	}
	policy, _ := job.ParseStoredRetry(j.Retry) // shows the policy that applies: of an invalid one, the default
	// The column wins over the stored policy: it holds what an enqueue, the queue and a manual retry have made of it.
	policy.MaxAttempts = j.MaxAttempts
	// The table has one time of the end. Which of the three names shows it follows from the state, and is the same choice as
	// in appendJobFields: a discarded job was completed, too, if a failed attempt discarded it, and not if it expired before
	// it ran.
	completed, cancelled, discarded := j.FinishedAt, j.FinishedAt, j.FinishedAt
	state := ojs.JobState(j.State)
	completed.Valid = completed.Valid && (state == ojs.StateCompleted || state == ojs.StateDiscarded && j.Failed)
	cancelled.Valid = cancelled.Valid && state == ojs.StateCancelled
	discarded.Valid = discarded.Valid && state == ojs.StateDiscarded
	beside = append(beside, object{{"retry_policy", jsontext.Value(policy.Encode())}, {"metadata", object{
		{"id", j.ID}, {"created_at", j.CreatedAt}, {"enqueued_at", j.EnqueuedAt}, {"started_at", j.StartedAt},
		{"scheduled_at", j.ScheduledAt},
		{"completed_at", completed}, {"cancelled_at", cancelled}, {"discarded_at", discarded},
	}}}...)
	return respond(r, http.StatusOK, func(b []byte) []byte {
		return append(beside.appendMembers(appendJobFields(append(b, '{'), j, shape{})), '}')
	})
}

// adminCancelJob is deleteJob with its parameters in the body.
// The actor is, in this order, the API key, X-OJS-Actor, the parameter cancelled_by, and the member cancelled_by. Its answer
// always has the job at the top level as well, whether OJS-Version was sent or not.
func (a *API) adminCancelJob(r *request, id [16]byte) error {
	in, wire := job.DecodeCancel(r.body)
	if wire != nil {
		return wire
	}
	cancel, err := api.NewCancel(a.actor(r, "cancelled_by", in.By), in.Reason)
	if err != nil {
		return err
	}
	// The workflow of the job has been advanced when it returns, as after an ack.
	j, err := a.Jobs.Cancel(r.Request().Context(), id, cancel)
	if err != nil {
		return err
	}
	return wrapped(r, j, shape{previous: j.PreviousState.String}, true)
}

// confirmedBulk serves /admin/jobs/bulk/{cancel,retry,delete}. It answers 200 whatever became of the jobs.
// The filter is evaluated before the transaction begins, so a job may have left its state when the change reaches it. The
// statement of the change compares the state again; such a job comes back among the errors, with the state that it has by
// then.
//
// The key has an operation and no text, so nothing is remembered for a repetition: a second call takes the jobs that match
// then.
func (a *API) confirmedBulk(op job.BulkOp) func(r *request) error {
	return func(r *request) error {
		in, wire := job.DecodeConfirmedBulk(op, r.body)
		if wire != nil {
			return wire
		}
		sel, err := a.selectJobs(r, in)
		if err != nil {
			return err
		}
		return a.once(r, queue.IdempotencyKey{Operation: string(op)}, len(sel.ids), func(ctx context.Context, tx *queue.Tx) (queue.Answer,
			bool, error) {
			// Atomic is not set: whatever can be changed is changed.
			res, err := tx.Bulk(ctx, queue.BulkChange{
				Op: op, IDs: sel.ids, States: queue.Eligible(op), Cancel: queue.Cancel{By: a.actor(r, "cancelled_by")},
			})
			if err != nil {
				return queue.Answer{}, false, err
			}
			answer, err := sel.confirmedAnswer(in, res)
			return answer, !in.DryRun, err
		})
	}
}

// confirmedAnswer appends no items, as the bulk calls outside of /admin do, but names only the jobs that did not change: the
// filter may have matched 10 000. They are skipped rather than failed: the error says in which state a job was found, or that it is gone.
// errors is [] and never null.
func (s selection) confirmedAnswer(in job.BulkSelect, res queue.BulkResult) (queue.Answer, error) {
	failed := []object{}
	for i, id := range s.ids {
		if !res.Changed[id] {
			failed = append(failed, object{{"job_id", s.texts[i]}, {"error", skipReason(id, res)}})
		}
	}
	body := map[string]any{
		"action": string(in.Op), "matched": len(s.ids), "succeeded": len(res.Changed), bulkWords[in.Op]: len(res.Changed),
		"failed": len(failed), "errors": failed,
	}
	if s.more {
		body["has_more"] = true
	}
	if in.DryRun {
		changed := slices.DeleteFunc(slices.Clone(s.texts), func(text string) bool { id, _ := spec.ParseID(text); return !res.Changed[id] })
		body["dry_run"], body["sample"] = true, changed[:min(len(changed), queue.Sampled)]
	}
	text, err := marshal(body)
	return queue.Answer{Status: http.StatusOK, Body: text}, err
}

// patchJob changes the priority of a job (docs/reference/jobs.md, Priority).
// It is idempotent. The store lowers the fetch cursors of this node before it answers, so a job that was moved forward is
// found by the next fetch.
func (a *API) patchJob(r *request) error {
	// Members other than priority are refused, because nothing else of a job can be changed.
	priority, wire := job.DecodePriority(r.body)
	if wire != nil {
		return wire
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	// A job that is neither available nor scheduled is 409.
	stored, previous, err := a.Jobs.SetPriority(r.Request().Context(), id, priority)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"id", id}, {"priority", priority}, {"previous_priority", previous}, {"job", shownJob(stored)}})
}

// getPriorityStats is docs/reference/jobs.md, Jobs by priority.
// It is for operators, because it counts the jobs of all tenants.
func (a *API) getPriorityStats(r *request, name string) error {
	stats, err := a.Jobs.PriorityStats(r.Request().Context(), name)
	if err != nil {
		return err
	}
	// An object of numbers is easy to look up, and an array keeps the order.
	counts, distribution := make(object, len(stats.Counts)), make([]object, len(stats.Counts))
	for i, p := range stats.Counts {
		counts[i] = member{strconv.Itoa(int(p.Priority)), p.Count}
		distribution[i] = object{{"priority", p.Priority}, {"count", p.Count}}
	}
	// estimated says that the queue has more jobs than were counted one by one; total is exact in either case.
	return r.answer(http.StatusOK, object{
		{"queue", name}, {"counts_by_priority", counts}, {"distribution", distribution}, {"total", stats.Total},
		{"estimated", given(stats.Estimated)},
	})
}

// getExplanation tells why a job is not running (docs/reference/jobs.md, Explain).
// The answer is made in SQL, so that applications get the same from ojs.explain. It is computed at the moment of the call and
// locks nothing. For a tenant the figures that count jobs or workers of others are taken out; the job itself was checked by
// confine.
func (a *API) getExplanation(r *request, id [16]byte) error {
	explanation, err := a.Jobs.Explain(r.Request().Context(), id)
	if err != nil {
		return err
	}
	if caller := a.tenant(r.Request()); caller != "" {
		if explanation, err = queueadmin.TenantExplanation(explanation, caller); err != nil {
			return err
		}
	}
	return send(r, http.StatusOK, jsonread.Compact(explanation))
}

// listUnique lists the jobs that hold unique keys (docs/reference/unique.md, List).
// It is a list of jobs and pages by id, newest first; the jobs that were looked at are bounded. Keys of tenants are those
// that their jobs have.
func (a *API) listUnique(r *request) error {
	p := r.page(defaultAdminPage, maxAdminPage)
	filter := queue.UniqueList{Tenant: a.tenant(r.Request()), Offset: p.offset, Limit: p.limit, Before: behind(r, p, spec.ParseID)}
	if r.err != nil {
		return r.err
	}
	page, err := a.Jobs.ListUnique(r.Request().Context(), filter)
	if err != nil {
		return err
	}
	next := ""
	// The cursor is the id of the last job shown, while lists of jobs have that of the last one looked at: here the page is
	// not cut by its bytes.
	if page.More {
		next = spec.FormatID(page.Jobs[len(page.Jobs)-1].ID)
	}
	items := each(page.Jobs, func(j *queue.UniqueJob) object {
		return object{{"key", j.Key}, {"job_id", j.ID}, {"type", j.Type}, {"queue", j.Queue}, {"state", j.State},
			{"locked_until", j.LockedUntil}}
	})
	return r.answer(http.StatusOK, object{{"items", items}, {"pagination", p.shown(page.Total, page.More, next)}})
}

// In s. A larger timeout counts as the maximum.
const (
	defaultResultWait = 30 // s
	maxResultWait     = 60
)

// getResult is docs/reference/jobs.md, Results, with wait a long poll.
// While it waits it holds no connection of the pool. It also ends early, as if the time were over, when the node stops, so a
// client asks another node.
func (a *API) getResult(r *request) error {
	wait, seconds := time.Duration(0), r.integer(defaultResultWait, 1, "timeout") // which is checked without wait, too
	switch text := r.QueryParam("wait"); text {
	case "", "false", "0":
	case "true", "1":
		wait = time.Duration(min(seconds, maxResultWait)) * time.Second
	default:
		r.refuse(spec.InvalidRequest("wait", "true or false", text, "wait must be true or false."))
	}
	id, err := jobID(r)
	r.refuse(err)
	if r.err != nil {
		return r.err
	}
	// It reads before it waits, so a job that has ended costs one read.
	res, err := a.Jobs.AwaitResult(r.Request().Context(), id, wait)
	if err != nil {
		return err
	}
	switch {
	// 410 and not 404: the job exists, and its result will not come back.
	case res.Pruned:
		// result_ttl is set by the job, so the client can send a longer one with the next.
		return spec.NewError(ojs.ErrResultPruned, "The result of job "+spec.FormatID(id)+" is not kept any more; its result_ttl is over.",
			map[string]any{"job_id": spec.FormatID(id)})
	// Without wait a job that has not ended is an ordinary answer.
	case wait > 0 && !ojs.JobState(res.State).Terminal():
		return spec.NewError(ojs.ErrWaitTimeout, "Job "+spec.FormatID(id)+" is still in state "+res.State+"; ask again.",
			map[string]any{"job_id": spec.FormatID(id), "current_state": res.State})
	}
	return r.answer(http.StatusOK, append(object{{"job_id", id}}, showResult(res)...))
}

// showResult has result always, null without one. A job in backoff has failed, but not for good: its error is not shown.
// completed_at is left out for a job that was cancelled or expired.
func showResult(res *queue.Result) object {
	shown, state := object{{"state", res.State}, {"result", res.Result}}, ojs.JobState(res.State)
	if state.Terminal() && res.Error != nil {
		shown = append(shown, member{"error", res.Error})
	}
	if state == ojs.StateCompleted || state == ojs.StateDiscarded && res.Failed {
		shown = append(shown, member{"completed_at", given(res.FinishedAt)})
	}
	return shown
}

// postResults has null for ids of other tenants and unknown ids alike. Results beyond 8 MiB are cut, not the list.
func (a *API) postResults(r *request) error {
	in, wire := job.DecodeResults(r.body)
	if wire != nil {
		return wire
	}
	// The look and the read are two statements; the tenant of a job never changes.
	own, err := a.ownJobs(r, in.IDs)
	if err != nil {
		return err
	}
	results, err := a.Jobs.Results(r.Request().Context(), onlyOwn(in.IDs, own))
	if err != nil {
		return err
	}
	// The store answers in the order of the ids that it got, which lack those of other tenants and malformed ones.
	byID := make(map[[16]byte]*queue.Result, len(results))
	for _, res := range results {
		if res != nil {
			byID[res.ID] = res
		}
	}
	bytes := 0 // an estimate
	for _, text := range in.Texts {
		bytes += 64
		if id, _ := spec.ParseID(text); byID[id] != nil {
			bytes += 128 + len(byID[id].Result) + len(byID[id].Error)
		}
	}
	return respondEach(r, http.StatusOK, bytes, func(b []byte, next flush) []byte {
		b = append(b, `{"results":{`...)
		for i, text := range in.Texts {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, text), ':')
			id, _ := spec.ParseID(text)
			res := byID[id]
			if res == nil {
				b = append(b, `null`...)
				continue
			}
			// Of a result that was cut the client should ask for this one alone.
			b = next(append(showResult(res), member{"result_truncated", given(res.Cut)}).append(b))
		}
		return append(b, `}}`...)
	})
}

// Names of the headers of bounded queues (docs/reference/backpressure.md).
// OJS-Block-Timeout is a request header, the others are of answers.
const (
	headerBlockTimeout  = "OJS-Block-Timeout"
	headerQueueDepth    = "X-OJS-Queue-Depth"
	headerQueueBound    = "X-OJS-Queue-Bound"
	headerQueuePressure = "X-OJS-Queue-Pressure"
)

// blockFor sets how long the enqueue of the jobs may wait for room, as the header says.
// It must be called after decoding and before the store, which reads BlockFor of the first job for all jobs of a call. An
// invalid header is 400 even if no queue of the call is bounded, so that a mistake is found before the queue is full.
func blockFor(c echo.Context, jobs ...*job.Job) error {
	wait, err := blockTimeout(c)
	for _, j := range jobs {
		j.BlockFor = wait
	}
	return err
}

// blockTimeout is 0 without the header: a full queue is answered at once.
func blockTimeout(c echo.Context) (time.Duration, error) {
	return api.ParseBlockTimeout(headerBlockTimeout, c.Request().Header.Get(headerBlockTimeout))
}

// showPressure shows how full the fullest queue of the jobs is.
// It may be called only after the enqueue, which sets Outcome, and before the body is begun. Jobs of queues without a bound,
// or with enough room, have no pressure, and the answer no headers.
func showPressure(c echo.Context, jobs ...*job.Job) {
	var most *job.Pressure
	for _, j := range jobs {
		// The last of equally full queues is shown; which one does not matter.
		if p := j.Outcome.Pressure; p != nil && (most == nil || p.Share >= most.Share) {
			most = p
		}
	}
	if most == nil {
		return
	}
	h := c.Response().Header()
	h.Set(headerQueueDepth, strconv.FormatInt(most.Depth, 10))
	// A queue that only its bytes bound has no number of jobs to show.
	if most.MaxDepth > 0 {
		h.Set(headerQueueBound, strconv.FormatInt(most.MaxDepth, 10))
	}
	// Two decimals, at most 1.00.
	h.Set(headerQueuePressure, strconv.FormatFloat(most.Share, 'f', 2, 64))
}

// queueFull are the details of a full queue that clients look for beside the code.
// The members are any because Details are: absent ones stay absent, and a number keeps its type. It is embedded by pointer in
// shownError, so an error of another kind has none of them.
type queueFull struct {
	Queue    any `json:"queue,omitempty"`
	Depth    any `json:"depth,omitempty"`
	Bound    any `json:"bound,omitempty"`
	Strategy any `json:"strategy,omitempty"`
}

// newQueueFull repeats the details in the headers, too.
func newQueueFull(h http.Header, e *ojs.Error) *queueFull {
	for name, key := range map[string]string{headerQueueDepth: "depth", headerQueueBound: "bound"} {
		if n, known := e.Details[key].(int64); known {
			h.Set(name, strconv.FormatInt(n, 10))
		}
	}
	return &queueFull{e.Details["queue"], e.Details["depth"], e.Details["bound"], e.Details["strategy"]}
}
