package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func (a *API) jobRoutes() []route {
	return []route{
		{"POST", "/jobs", confined, oneBody, "", a.postJob},
		{"GET", "/jobs", confined, noBody, paging + "state queue type", a.listJobs},
		{"POST", "/jobs/batch", confined, manyBody, "", a.postBatch},
		{"POST", "/jobs/bulk", confined, manyBody, "", a.postBulk},
		{"POST", "/jobs/bulk/cancel", confined, manyBody, "cancelled_by", a.bulkHandler(job.BulkCancel)},
		{"POST", "/jobs/bulk/retry", confined, manyBody, "cancelled_by", a.bulkHandler(job.BulkRetry)},
		{"POST", "/jobs/bulk/delete", confined, manyBody, "cancelled_by", a.bulkHandler(job.BulkDelete)},
		{"POST", "/jobs/results", confined, oneBody, "", a.postResults},
		{"GET", "/jobs/:id", aboutJob, noBody, "", a.getJob},
		{"PATCH", "/jobs/:id", aboutJob, oneBody, "", a.patchJob},
		{"DELETE", "/jobs/:id", aboutJob, noBody, "cancelled_by reason", a.deleteJob},
		{"GET", "/jobs/:id/explain", aboutJob, noBody, "", a.getExplanation},
		{"POST", "/jobs/:id/activate", aboutJob, oneBody, "", a.activateJob},
		{"GET", "/jobs/:id/result", aboutJob, noBody, "wait timeout", a.getResult},
		{"GET", "/unique-jobs", confined, noBody, paging, a.listUnique},
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
	// A replay knows the job only by the stored answer.
	var first struct {
		Job struct {
			ID string `json:"id"`
		} `json:"job"`
	}
	if err := json.Unmarshal(answer.Body, &first); err != nil {
		return fmt.Errorf("read remembered job: %w", err)
	}
	a.rateLimitHeaders(c, in)
	c.Response().Header().Set("Location", "/ojs/v1/jobs/"+first.Job.ID)
	return send(c, answer.Status, answer.Body)
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
func (a *API) getJob(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	job, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, shape{}, flat(r)) })
}

// deleteJob cancels, and removes nothing. It is not idempotent: a second call is 409, because the job has ended. An active
// job is cancelled at once, without asking its worker.
func (a *API) deleteJob(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	// The parameters stand in the query, because not every client can send a body with DELETE.
	cancel, err := api.NewCancel(a.actor(r, "cancelled_by"), r.QueryParam("reason"))
	if err != nil {
		return err
	}
	job, err := a.Jobs.Cancel(r.Request().Context(), id, cancel)
	if err != nil {
		return err
	}
	as := shape{previous: job.PreviousState.String}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, as, flat(r)) })
}

// activateJob releases a pending job. A repetition is 409.
func (a *API) activateJob(r *request) error {
	if err := checkCommand(r.body); err != nil {
		return err
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	job, err := a.Jobs.Activate(r.Request().Context(), id)
	if err != nil {
		return err
	}
	// No other state leads here.
	as := shape{previous: string(ojs.StatePending), activated: true}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, as, flat(r)) })
}

// checkCommand accepts no body, {} or any JSON object.
// Commands have no members that matter, but a broken body shows a mistake of the client.
func checkCommand(body []byte) error {
	if blank(body) {
		return nil
	}
	_, wire := rawjson.Check(body)
	return asError(wire)
}

// listJobs pages by id, newest first. The cursor is the last id that was looked at; new jobs have larger ids, so they do not
// shift the pages behind it. A page may be short although there are more (docs/reference/http.md, Pagination).
func (a *API) listJobs(r *request) error {
	page, err := readPage(r)
	if err != nil {
		return err
	}
	states, err := stateList(r)
	if err != nil {
		return err
	}
	queues, err := plainList(r, "queue")
	if err != nil {
		return err
	}
	types, err := plainList(r, "type")
	if err != nil {
		return err
	}
	// Filters of one kind are alternatives, those of different kinds must all hold.
	l := queue.List{Tenant: a.tenant(r.Request()), States: states, Queues: queues, Types: types, Offset: page.offset, Limit: page.limit}
	if l.Before, err = page.behind(); err != nil {
		return err
	}
	found, err := a.Jobs.List(r.Request().Context(), l)
	if err != nil {
		return err
	}
	cursor := ""
	if found.Next != nil {
		cursor = spec.FormatID(*found.Next)
	}
	return respondEach(r, http.StatusOK, shownBytes(found.Jobs), func(b []byte, next flush) []byte {
		b = append(b, `{"jobs":`...)
		b = appendJobs(b, found.Jobs, shape{}, next)
		b = append(b, `,"total":`...)
		b = strconv.AppendInt(b, found.Total, 10)
		b = page.append(append(b, `,"pagination":`...), found.Total, cursor != "", cursor)
		return append(b, '}')
	})
}

// stateList reads the states that a list asks for.
// Values that are states by name only need no check for what a text column can hold.
func stateList(c echo.Context) ([]string, error) {
	states := list(c, "state")
	for _, s := range states {
		if !ojs.JobState(s).Valid() {
			return nil, spec.InvalidRequest("state", "a job state", s, "state must name job states, such as available or completed.")
		}
	}
	return states, nil
}

// appendJobs appends the array. jobs must hold no nil.
func appendJobs(b []byte, jobs []*job.Record, as shape, next flush) []byte {
	b = append(b, '[')
	for i, job := range jobs {
		if i > 0 {
			b = append(b, ',')
		}
		b = next(appendJob(b, job, as))
	}
	return append(b, ']')
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
