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
	"github.com/ojsd/ojsd/ojs"
)

// adminJobRoutes are those of docs/reference/admin.md, Jobs.
func (a *API) adminJobRoutes(v1 *echo.Group) {
	reading := []string{http.MethodGet, http.MethodHead}
	one := bodyLimit{a.config.Limits.Envelope(), "envelope"}
	v1.Match(reading, "/admin/jobs", a.searchJobs)
	v1.Match(reading, "/admin/jobs/:id", a.getAdminJob)
	v1.POST("/admin/jobs/:id/cancel", a.withBody(one, a.adminCancelJob))
	for _, op := range []job.BulkOp{job.BulkCancel, job.BulkRetry, job.BulkDelete} {
		v1.POST("/admin/jobs/bulk/"+string(op), a.withBody(one, a.confirmedBulk(op)))
	}
}

func (a *API) searchJobs(c echo.Context) error {
	page, err := readPageOf(c, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	f, err := jobSearch(c)
	if err != nil {
		return err
	}
	f.Offset, f.Limit = page.offset, page.limit
	if page.cursor != "" {
		id, ok := ojs.ParseID(page.cursor)
		if !ok || f.Sort != queue.SortCreated {
			return api.ErrCursor(page.cursor)
		}
		f.Cursor = &id
	}
	found, err := a.Jobs.Search(c.Request().Context(), f)
	if err != nil {
		return err
	}
	cursor := ""
	if found.Next != nil {
		cursor = ojs.FormatID(*found.Next)
	}
	return respondEach(c, http.StatusOK, shownBytes(found.Jobs), func(b []byte, next flush) []byte {
		b = appendJobs(append(b, `{"items":`...), found.Jobs, shape{}, next)
		b = page.append(append(b, `,"pagination":`...), found.Total, found.More, cursor)
		return append(b, '}')
	})
}

func jobSearch(c echo.Context) (f queue.Search, err error) {
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
	return "", ojs.ErrInvalidRequest(name, expected, text, name+" must be "+expected+".")
}

// getAdminJob shows everything about a job that its owner can be asked about.
func (a *API) getAdminJob(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	j, err := a.Jobs.Get(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendJobDetail(b, j) })
}

func appendJobDetail(b []byte, j *job.Record) []byte {
	b = appendJobFields(append(b, '{'), j, shape{})
	if len(j.Errors) == 0 {
		b = append(b, `,"errors":[]`...)
	}
	if j.Result == nil {
		b = append(b, `,"result":null`...)
	}
	policy, _ := retry.Decode(j.Retry) // shows the policy that applies: of an invalid one, the default
	policy.MaxAttempts = j.MaxAttempts
	b = append(append(b, `,"retry_policy":`...), policy.Encode()...)
	b = append(b, `,"metadata":{"id":"`...)
	b = append(ojs.AppendID(b, j.ID), '"')
	b = appendTimeOrNull(b, "created_at", j.CreatedAt)
	b = appendTimeOrNull(b, "enqueued_at", j.EnqueuedAt)
	b = appendTimeOrNull(b, "started_at", j.StartedAt)
	b = appendTimeOrNull(b, "scheduled_at", j.ScheduledAt)
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
func (a *API) adminCancelJob(c echo.Context, body []byte) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	in, wire := job.DecodeCancel(body)
	if wire != nil {
		return wire
	}
	cancel, err := api.NewCancel(a.actor(c, "cancelled_by", in.By), in.Reason)
	if err != nil {
		return err
	}
	j, err := a.Jobs.Cancel(c.Request().Context(), id, cancel)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		return appendWrapped(b, j, shape{previous: j.PreviousState.String}, true)
	})
}

// confirmedBulk serves /admin/jobs/bulk/{cancel,retry,delete}. It answers 200 whatever became of the jobs.
func (a *API) confirmedBulk(op job.BulkOp) func(c echo.Context, body []byte) error {
	return func(c echo.Context, body []byte) error {
		filter, wire := job.DecodeConfirmedBulk(op, body)
		if wire != nil {
			return wire
		}
		sel, err := a.selectJobs(c.Request().Context(), job.BulkSelect{Op: op, Filter: filter})
		if err != nil {
			return err
		}
		return a.once(c, queue.IdempotencyKey{Operation: string(op)}, len(sel.ids), func(ctx context.Context, tx *queue.Tx) (queue.Answer, bool, error) {
			res, err := tx.Bulk(ctx, queue.BulkChange{
				Op: op, IDs: sel.ids, States: queue.Eligible(op), Cancel: queue.Cancel{By: a.actor(c, "cancelled_by")},
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
type failedJob struct {
	JobID string `json:"job_id"`
	Error string `json:"error"`
}

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
