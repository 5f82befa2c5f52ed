package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// adminJobRoutes are those of docs/reference/admin.md, Jobs.
// The list is about all jobs in all states and has no confirmation; the three bulk calls refuse a body without "confirm":true
// before they read anything. They take a filter only, which is small, where /jobs/bulk may list ids.
func (a *API) adminJobRoutes() []route {
	return []route{
		{"GET", "/admin/jobs", confined, noBody, paging + "state queue type since until sort order", a.searchJobs},
		{"GET", "/admin/jobs/:id", aboutJob, noBody, "", a.getAdminJob},
		{"PATCH", "/admin/jobs/:id", aboutJob, oneBody, "", a.patchJob},
		{"POST", "/admin/jobs/:id/cancel", aboutJob, oneBody, "cancelled_by", a.adminCancelJob},
		{"POST", "/admin/jobs/:id/retry", aboutJob, oneBody, "", a.adminRetryJob},
		{"POST", "/admin/jobs/bulk/cancel", confined, oneBody, "cancelled_by", a.confirmedBulk(job.BulkCancel)},
		{"POST", "/admin/jobs/bulk/retry", confined, oneBody, "cancelled_by", a.confirmedBulk(job.BulkRetry)},
		{"POST", "/admin/jobs/bulk/delete", confined, oneBody, "cancelled_by", a.confirmedBulk(job.BulkDelete)},
	}
}

// searchJobs lists jobs of any state. The snapshot in which the ids are found is also that in which the jobs are read, so a
// page never shows a job in a state that the filter excludes. It has a share of the connections like all lists:
// queue.Store.Search may answer 503 while others read.
//
// A cursor is an id in the order of creation alone. The other orders sort a bounded set of matches, in which a job may move
// or vanish between two pages, so an id says nothing about the place behind it; there, the cursor is an offset.
func (a *API) searchJobs(r *request) error {
	page, err := readPageOf(r, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	f, err := jobSearch(r)
	if err != nil {
		return err
	}
	numbered := f.Sort != queue.SortCreated
	if numbered {
		err = page.seek()
	} else {
		f.Cursor, err = page.behind()
	}
	if err != nil {
		return err
	}
	f.Tenant, f.Offset, f.Limit = a.tenant(r.Request()), page.offset, page.limit
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
	return respondEach(r, http.StatusOK, shownBytes(found.Jobs), func(b []byte, next flush) []byte {
		b = appendJobs(append(b, `{"items":`...), found.Jobs, shape{}, next)
		b = page.append(append(b, `,"pagination":`...), found.Total, found.More, cursor)
		return append(b, '}')
	})
}

// jobSearch reads the filters. It leaves Tenant, Cursor, Offset and Limit to its caller. Ages are not resolved here, because
// they count from the clock of the database, which the store asks; the clock of this node may be wrong.
func jobSearch(c echo.Context) (f queue.Search, err error) {
	// The first mistake is reported; mistakes in a query are not collected.
	if f.States, err = stateList(c); err != nil {
		return f, err
	}
	if f.Queues, err = plainList(c, "queue"); err != nil {
		return f, err
	}
	types, err := plainList(c, "type")
	if err != nil {
		return f, err
	}
	// A trailing * is cut and not escaped: the statement compares prefixes as text, so % and _ of a client mean themselves.
	for _, t := range types {
		if prefix, cut := strings.CutSuffix(t, "*"); cut {
			f.TypePrefixes = append(f.TypePrefixes, prefix)
		} else {
			f.Types = append(f.Types, t)
		}
	}
	if f.Since, err = ageParameter(c, "since"); err != nil {
		return f, err
	}
	if f.Until, err = ageParameter(c, "until"); err != nil {
		return f, err
	}
	if f.Sort, err = oneOf(c, "sort", queue.SortCreated, queue.SortScheduled, queue.SortPriority); err != nil {
		return f, err
	}
	order, err := oneOf(c, "order", "desc", "asc")
	f.Ascending = order == "asc"
	return f, err
}

// oneOf reads a parameter that has few values. The first is the default.
// An empty value counts as absent, as everywhere in queries.
func oneOf(c echo.Context, name string, values ...string) (string, error) {
	text := c.QueryParam(name)
	if text == "" {
		return values[0], nil
	}
	for _, v := range values {
		if text == v {
			return v, nil
		}
	}
	expected := strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
	return "", spec.InvalidRequest(name, expected, text, name+" must be "+expected+".")
}

// getAdminJob shows everything about a job that its owner can be asked about.
// It reads the job once, whole, so that its members are of one moment.
func (a *API) getAdminJob(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	j, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendJobDetail(b, j) })
}

// appendJobDetail appends the job of GET /admin/jobs/{id}. errors and result are always there, because the admin UI reads
// them without asking whether they exist; the ordinary envelope leaves both out. metadata repeats the times with null for
// those that have not come.
func appendJobDetail(b []byte, j *job.Record) []byte {
	b = appendJobFields(append(b, '{'), j, shape{})
	if len(j.Errors) == 0 {
		b = append(b, `,"errors":[]`...)
	}
	if j.Result == nil {
		b = append(b, `,"result":null`...)
	}
	policy, _ := retry.Decode(j.Retry) // shows the policy that applies: of an invalid one, the default
	// The column wins over the stored policy: it holds what an enqueue, the queue and a manual retry have made of it.
	policy.MaxAttempts = j.MaxAttempts
	b = append(append(b, `,"retry_policy":`...), policy.Encode()...)
	b = append(b, `,"metadata":{"id":"`...)
	b = append(spec.AppendID(b, j.ID), '"')
	b = appendTimeOrNull(b, "created_at", j.CreatedAt)
	b = appendTimeOrNull(b, "enqueued_at", j.EnqueuedAt)
	b = appendTimeOrNull(b, "started_at", j.StartedAt)
	b = appendTimeOrNull(b, "scheduled_at", j.ScheduledAt)
	// The table has one time of the end. Which of the three names shows it follows from the state, and is the same choice as
	// in appendJobTimes: a discarded job was completed, too, if a failed attempt discarded it, and not if it expired before
	// it ran.
	completed, cancelled, discarded := j.FinishedAt, j.FinishedAt, j.FinishedAt
	state := ojs.JobState(j.State)
	completed.Valid = completed.Valid && (state == ojs.StateCompleted || state == ojs.StateDiscarded && j.Failed)
	cancelled.Valid = cancelled.Valid && state == ojs.StateCancelled
	discarded.Valid = discarded.Valid && state == ojs.StateDiscarded
	b = appendTimeOrNull(b, "completed_at", completed)
	b = appendTimeOrNull(b, "cancelled_at", cancelled)
	b = appendTimeOrNull(b, "discarded_at", discarded)
	return append(b, '}', '}')
}

// adminCancelJob is deleteJob with its parameters in the body.
// The actor is, in this order, the API key, X-OJS-Actor, the parameter cancelled_by, and the member cancelled_by. Its answer
// always has the job at the top level as well, whether OJS-Version was sent or not.
func (a *API) adminCancelJob(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
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
	return respond(r, http.StatusOK, func(b []byte) []byte {
		return appendWrapped(b, j, shape{previous: j.PreviousState.String}, true)
	})
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
		filter, wire := job.DecodeConfirmedBulk(op, r.body)
		if wire != nil {
			return wire
		}
		sel, err := a.selectJobs(r, job.BulkSelect{Op: op, Filter: filter})
		if err != nil {
			return err
		}
		return a.once(r, queue.IdempotencyKey{Operation: string(op)}, len(sel.ids), func(ctx context.Context, tx *queue.Tx) (queue.Answer, bool, error) {
			// Atomic is not set: whatever can be changed is changed.
			res, err := tx.Bulk(ctx, queue.BulkChange{
				Op: op, IDs: sel.ids, States: queue.Eligible(op), Cancel: queue.Cancel{By: a.actor(r, "cancelled_by")},
			})
			if err != nil {
				return queue.Answer{}, false, err
			}
			answer, err := sel.confirmedAnswer(op, res)
			return answer, true, err
		})
	}
}

// failedJob is a job that a bulk call did not change.
// It is skipped rather than failed: the error says in which state it was found, or that it is gone.
type failedJob struct {
	JobID string `json:"job_id"`
	Error string `json:"error"`
}

// confirmedAnswer appends no items, as the bulk calls outside of /admin do, but names only the jobs that did not change: the
// filter may have matched 10 000. errors is [] and never null.
func (s selection) confirmedAnswer(op job.BulkOp, res queue.BulkResult) (queue.Answer, error) {
	failed := []failedJob{}
	for i, id := range s.ids {
		if !res.Changed[id] {
			failed = append(failed, failedJob{s.texts[i], skipReason(id, res)})
		}
	}
	body := map[string]any{
		"action": string(op), "matched": len(s.ids), "succeeded": len(res.Changed), bulkWords[op]: len(res.Changed), "failed": len(failed), "errors": failed,
	}
	if s.more {
		body["has_more"] = true
	}
	text, err := marshal(body)
	return queue.Answer{Status: http.StatusOK, Body: text}, err
}
