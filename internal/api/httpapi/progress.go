package httpapi

import (
	"net/http"
	"strconv"

	"github.com/ojsd/ojsd/internal/progress"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func (a *API) progressRoutes() []route {
	return append(a.checkpointRoutes(),
		route{"PUT", "/jobs/:id/progress", confined, reportBody, "", a.putProgress},
		route{"POST", "/workers/progress", confined, reportBody, "", a.postProgress},
		route{"GET", "/jobs/:id/progress", aboutJob, noBody, "", a.getProgress},
		route{"GET", "/jobs/:id/progress/stream", aboutJob, noBody, "", a.streamProgress},
	)
}

// putProgress takes a share from 0 to 1, postProgress a percentage.
func (a *API) putProgress(r *request) error {
	in, wire := job.DecodeProgressFor(param(r, "id"), r.body, a.config.Limits)
	return a.reportProgress(r, in, wire)
}

func (a *API) postProgress(r *request) error {
	in, wire := job.DecodeProgress(r.body, a.config.Limits)
	return a.reportProgress(r, in, wire)
}

// A report renews the reservation. For a job that is not active it changes nothing and is 200 with accepted false, because a
// worker cannot know better. The id may come from the body, where confine cannot see it, so the handler checks whose job it
// is, for both routes.
func (a *API) reportProgress(c echo.Context, in job.ProgressReport, wire *ojs.Error) error {
	if wire != nil {
		return wire
	}
	if err := a.ownJob(c, in.JobID); err != nil {
		return err
	}
	p, err := a.Progress.Report(c.Request().Context(), in)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendProgress(b, p) })
}

// getProgress may be polled. Last-Modified is the time of the latest report or change of state; there is no ETag.
func (a *API) getProgress(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	p, err := a.Progress.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	h := r.Response().Header()
	// no-cache permits a proxy to keep it if it asks again; other answers are no-store.
	h["Cache-Control"] = []string{"no-cache"}
	if p.Progress.Valid {
		// It lets a client poll with HEAD.
		h["X-Ojs-Progress"] = []string{string(appendFloat(nil, p.Progress.Float64))}
	}
	if !p.UpdatedAt.IsZero() {
		h["Last-Modified"] = []string{p.UpdatedAt.UTC().Format(http.TimeFormat)}
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendProgress(b, p) })
}

// progress, message and data are null until something was reported.
func appendProgress(b []byte, p progress.Progress) []byte {
	b = spec.AppendID(append(b, `{"job_id":"`...), p.JobID)
	b = appendText(append(b, '"'), "state", string(p.State))
	b = append(b, `,"progress":`...)
	if p.Progress.Valid {
		b = appendFloat(b, p.Progress.Float64)
	} else {
		b = append(b, `null`...)
	}
	b = append(b, `,"message":`...)
	if p.Message.Valid {
		b = appendQuoted(b, p.Message.String)
	} else {
		b = append(b, `null`...)
	}
	b = appendOrNull(append(b, `,"data":`...), p.Data)
	// updated_at is always there: without a report it is the latest change of the job.
	b = appendMoment(b, "updated_at", &p.UpdatedAt)
	if p.Refused {
		b = append(b, `,"accepted":false`...)
	}
	return append(b, '}')
}

func appendOrNull(b, value []byte) []byte {
	if value == nil {
		return append(b, `null`...)
	}
	return append(b, value...)
}

// It writes the shortest text that reads back as the same number.
func appendFloat(b []byte, f float64) []byte { return jsontext.AppendFloat(b, f, 64) }

// appendReports appends what workers have reported of a job and what it left: progress, checkpoint, times of its result.
// last_checkpoint is shown to the worker that fetches the job only. The three members of the result come with a result that
// is kept.
func appendReports(b []byte, j *job.Record, as shape) []byte {
	if j.Progress.Valid {
		b = appendFloat(append(b, `,"progress":`...), j.Progress.Float64)
	}
	if j.ProgressData != nil {
		b = append(append(b, `,"progress_data":`...), j.ProgressData...)
	}
	if as.fetched {
		if state, _, _ := job.CheckpointParts(j.Checkpoint); state != nil {
			b = append(append(b, `,"last_checkpoint":`...), state...)
		}
	}
	if j.Result == nil || j.State != string(ojs.StateCompleted) {
		return b
	}
	b = appendTime(b, "result_stored_at", j.FinishedAt)
	// -1 means as long as the job, so no time is shown. NULL means the default, whose end is not shown either.
	if j.ResultTtlS.Valid && j.ResultTtlS.Int64 >= 0 {
		expires := after(j.FinishedAt.Time, j.ResultTtlS.Int64)
		b = appendMoment(b, "result_expires_at", &expires)
	}
	return strconv.AppendInt(append(b, `,"result_size_bytes":`...), int64(len(j.Result)), 10)
}
