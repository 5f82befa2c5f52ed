package httpapi

import (
	"net/http"
	"strconv"

	"github.com/ojsd/ojsd/internal/progress"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// reportRoom is what a report may have besides its data or checkpoint.
const reportRoom = 65_536

func (a *API) progressRoutes(v1 *echo.Group) {
	report := bodyLimit{job.MaxCheckpoint + job.MaxProgressData + reportRoom, "envelope"}
	v1.PUT("/jobs/:id/progress", a.withBody(report, a.putProgress))
	v1.POST("/workers/progress", a.withBody(report, a.postProgress))
	v1.Match([]string{http.MethodGet, http.MethodHead}, "/jobs/:id/progress", a.getProgress)
}

func (a *API) putProgress(c echo.Context, body []byte) error {
	in, wire := job.DecodeProgressFor(param(c, "id"), body, a.config.Limits)
	return a.reportProgress(c, in, wire)
}

func (a *API) postProgress(c echo.Context, body []byte) error {
	in, wire := job.DecodeProgress(body, a.config.Limits)
	return a.reportProgress(c, in, wire)
}

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

func (a *API) getProgress(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	p, err := a.Progress.Get(c.Request().Context(), id)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h["Cache-Control"] = []string{"no-cache"}
	if p.Progress.Valid {
		h["X-Ojs-Progress"] = []string{string(appendFloat(nil, p.Progress.Float64))}
	}
	if !p.UpdatedAt.IsZero() {
		h["Last-Modified"] = []string{p.UpdatedAt.UTC().Format(http.TimeFormat)}
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendProgress(b, p) })
}

func appendProgress(b []byte, p progress.Progress) []byte {
	b = ojs.AppendID(append(b, `{"job_id":"`...), p.JobID)
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
	b = appendTime(b, "updated_at", pgtype.Timestamptz{Time: p.UpdatedAt, Valid: true})
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

func appendFloat(b []byte, f float64) []byte { return jsontext.AppendFloat(b, f, 64) }

// appendReports appends what workers have reported of a job and what it left: progress, checkpoint, times of its result.
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
	if j.ResultTtlS.Valid && j.ResultTtlS.Int64 >= 0 {
		b = appendTime(b, "result_expires_at", pgtype.Timestamptz{Time: after(j.FinishedAt.Time, j.ResultTtlS.Int64), Valid: true})
	}
	return strconv.AppendInt(append(b, `,"result_size_bytes":`...), int64(len(j.Result)), 10)
}
