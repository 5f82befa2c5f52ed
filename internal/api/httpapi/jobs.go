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
	"github.com/ojsd/ojsd/ojs"
)

// flat reports whether job fields are repeated beside the wrapper: for clients that are no SDK.
func flat(c echo.Context) bool {
	_, present := c.Request().Header["Ojs-Version"]
	return !present
}

// asError keeps a nil *ojs.Error from becoming a non-nil error.
func asError(err *ojs.Error) error {
	if err == nil {
		return nil
	}
	return err
}

func (a *API) postJob(c echo.Context, body []byte) error {
	in, wire := job.DecodeJob(body, a.limits(c))
	if wire != nil {
		return wire
	}
	if err := blockFor(c, in); err != nil {
		return err
	}
	if c.Request().Header.Get("Idempotency-Key") != "" {
		return a.postJobOnce(c, body, in)
	}
	job, err := a.Jobs.Enqueue(c.Request().Context(), in)
	if err != nil {
		return err
	}
	a.rateLimitHeaders(c, in)
	return created(c, in, job)
}

// postJobOnce is postJob with an idempotency key. It has a transaction of its own, so it is slower.
func (a *API) postJobOnce(c echo.Context, body []byte, in *job.Job) error {
	key, err := a.idempotency(c, "job", "", body)
	if err != nil {
		return err
	}
	answer, err := a.enqueueOnce(c, key, []*job.Job{in}, func(stored []*job.Record) []byte {
		return appendWrapped(nil, stored[0], shape{existing: in.Outcome.Deduplicated}, flat(c))
	})
	if err != nil {
		return err
	}
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
func created(c echo.Context, in *job.Job, job *job.Record) error {
	status := http.StatusCreated
	if in.Outcome.Deduplicated {
		status = http.StatusOK
	}
	showPressure(c, in)
	var b [64]byte
	c.Response().Header()["Location"] = []string{string(ojs.AppendID(append(b[:0], "/ojs/v1/jobs/"...), job.ID))}
	return respond(c, status, func(b []byte) []byte {
		return appendWrapped(b, job, shape{existing: in.Outcome.Deduplicated}, flat(c))
	})
}

// jobID reads the id in the path; what is no id is an unknown job (docs/reference/http.md, Unmatched requests).
func jobID(c echo.Context) ([16]byte, error) {
	id, err := job.ParseID(param(c, "id"))
	return id, asError(err)
}

func (a *API) getJob(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	job, err := a.Jobs.Get(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, shape{}, flat(c)) })
}

func (a *API) deleteJob(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	cancel, err := api.NewCancel(a.actor(c, "cancelled_by"), c.QueryParam("reason"))
	if err != nil {
		return err
	}
	job, err := a.Jobs.Cancel(c.Request().Context(), id, cancel)
	if err != nil {
		return err
	}
	as := shape{previous: job.PreviousState.String}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, as, flat(c)) })
}

func (a *API) activateJob(c echo.Context, body []byte) error {
	if err := checkCommand(body); err != nil {
		return err
	}
	id, err := jobID(c)
	if err != nil {
		return err
	}
	job, err := a.Jobs.Activate(c.Request().Context(), id)
	if err != nil {
		return err
	}
	as := shape{previous: string(ojs.StatePending), activated: true}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, as, flat(c)) })
}

// checkCommand accepts no body, {} or any JSON object.
func checkCommand(body []byte) error {
	if blank(body) {
		return nil
	}
	_, wire := rawjson.Check(body)
	return asError(wire)
}

func (a *API) listJobs(c echo.Context) error {
	page, err := readPage(c)
	if err != nil {
		return err
	}
	states, err := stateList(c)
	if err != nil {
		return err
	}
	queues, err := plainList(c, "queue")
	if err != nil {
		return err
	}
	types, err := plainList(c, "type")
	if err != nil {
		return err
	}
	l := queue.List{Tenant: a.tenant(c.Request()), States: states, Queues: queues, Types: types, Offset: page.offset, Limit: page.limit}
	if page.cursor != "" {
		id, ok := ojs.ParseID(page.cursor)
		if !ok {
			return api.ErrCursor(page.cursor)
		}
		l.Before = &id
	}
	found, err := a.Jobs.List(c.Request().Context(), l)
	if err != nil {
		return err
	}
	cursor := ""
	if found.Next != nil {
		cursor = ojs.FormatID(*found.Next)
	}
	return respondEach(c, http.StatusOK, shownBytes(found.Jobs), func(b []byte, next flush) []byte {
		b = append(b, `{"jobs":`...)
		b = appendJobs(b, found.Jobs, shape{}, next)
		b = append(b, `,"total":`...)
		b = strconv.AppendInt(b, found.Total, 10)
		b = page.append(append(b, `,"pagination":`...), found.Total, cursor != "", cursor)
		return append(b, '}')
	})
}

// stateList reads the states that a list asks for.
func stateList(c echo.Context) ([]string, error) {
	states := list(c, "state")
	for _, s := range states {
		if !ojs.JobState(s).Valid() {
			return nil, ojs.ErrInvalidRequest("state", "a job state", s, "state must name job states, such as available or completed.")
		}
	}
	return states, nil
}

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
