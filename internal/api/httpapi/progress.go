package httpapi

import (
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func (a *API) progressRoutes() []route {
	return append(a.checkpointRoutes(),
		route{"PUT", "/jobs/:id/progress", api.Confined, reportBody, "", a.putProgress},
		route{"POST", "/workers/progress", api.Confined, reportBody, "", a.postProgress},
		route{"GET", "/jobs/:id/progress", api.AboutJob, noBody, "", a.getProgress},
		route{"GET", "/jobs/:id/progress/stream", api.AboutJob, noBody, "", a.streamProgress},
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
func appendProgress(b []byte, p queue.Progress) []byte {
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

// checkpointRoutes are those of docs/reference/jobs.md, Progress. The durable helpers of the JS and Python SDKs put their prefix in front
// twice (docs/reference/jobs.md, Checkpoints). PUT and POST do the same.
func (a *API) checkpointRoutes() []route {
	routes := []route{
		{"PUT", "/jobs/:id/checkpoint", api.AboutJob, checkpointBody, "", a.checkpointSaver(false)},
		{"POST", "/jobs/:id/checkpoint", api.AboutJob, checkpointBody, "", a.checkpointSaver(false)},
		{"GET", "/jobs/:id/checkpoint", api.AboutJob, noBody, "", a.getCheckpoint},
		{"DELETE", "/jobs/:id/checkpoint", api.AboutJob, noBody, "", a.deleteCheckpoint},
	}
	for _, prefix := range []string{"", basePath} {
		routes = append(routes,
			route{"POST", prefix + "/checkpoints/:id", api.AboutJob, checkpointBody, "", a.checkpointSaver(true)},
			route{"DELETE", prefix + "/checkpoints/:id", api.AboutJob, noBody, "", a.deleteCheckpoint},
			route{"GET", prefix + "/checkpoints/:id/resume", api.AboutJob, noBody, "", a.getResume},
		)
	}
	return routes
}

// optionalState is for the durable helpers, which leave state out when it is undefined; refusing it would fail their job. A
// save is not idempotent: it increases sequence, unless the client sends one, of which a repetition is 409.
func (a *API) checkpointSaver(optionalState bool) func(r *request) error {
	return func(r *request) error {
		in, wire := job.DecodeCheckpoint(param(r, "id"), r.body, optionalState, a.config.Limits)
		if wire != nil {
			return wire
		}
		saved, err := a.Progress.SaveCheckpoint(r.Request().Context(), in)
		if err != nil {
			return err
		}
		return respond(r, http.StatusOK, func(b []byte) []byte {
			b = appendSaved(b, saved)
			b = append(b, `,"checkpoint":`...)
			return append(appendCheckpoint(b, saved), '}')
		})
	}
}

// getCheckpoint has the members at the top level and again in checkpoint: SDKs read one of the two. It works for jobs that
// have ended, too.
func (a *API) getCheckpoint(r *request) error {
	id, saved, err := a.checkpoint(r)
	if err != nil {
		return err
	}
	if saved.Stored == nil {
		return spec.NotFound("checkpoint", spec.FormatID(id))
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = appendCheckpoint(b, saved)
		// appendCheckpoint has closed the object; the brace is taken off again.
		b = append(b[:len(b)-1], `,"checkpoint":`...)
		return append(appendCheckpoint(b, saved), '}')
	})
}

// getResume answers the durable helpers, which take a missing checkpoint for a fresh start.
// It is 200 either way: they would take a 404 for a failure and fail the job. An unknown job is 404 all the same.
func (a *API) getResume(r *request) error {
	_, saved, err := a.checkpoint(r)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		if saved.Stored == nil {
			return append(b, `{"has_checkpoint":false}`...)
		}
		b = append(b, `{"has_checkpoint":true,"checkpoint":`...)
		return append(appendCheckpoint(b, saved), '}')
	})
}

// checkpoint reads the checkpoint of the job in the path; Stored is nil if it has none.
func (a *API) checkpoint(c echo.Context) ([16]byte, queue.Checkpoint, error) {
	id, err := jobID(c)
	if err != nil {
		return id, queue.Checkpoint{}, err
	}
	saved, err := a.Progress.Checkpoint(c.Request().Context(), id)
	return id, saved, err
}

// deleteCheckpoint is idempotent. A worker that saves afterwards begins with sequence 1 again.
func (a *API) deleteCheckpoint(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	if err := a.Progress.DeleteCheckpoint(r.Request().Context(), id); err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"deleted":true,"job_id":"`...)
		return append(spec.AppendID(b, id), `"}`...)
	})
}

// appendSaved appends the head of an answer, still open.
// created_at is the time of this save by the clock of the database, not that of the first one.
func appendSaved(b []byte, saved queue.Checkpoint) []byte {
	b = spec.AppendID(append(b, `{"job_id":"`...), saved.JobID)
	b = append(b, `","sequence":`...)
	b = strconv.AppendInt(b, saved.Sequence, 10)
	return appendMoment(b, "created_at", &saved.SavedAt)
}

// appendCheckpoint appends the whole object, braces included. step_index and metadata that were not sent are 0 and {},
// because the helpers do not expect null.
func appendCheckpoint(b []byte, saved queue.Checkpoint) []byte {
	state, step, metadata := job.CheckpointParts(saved.Stored)
	b = appendSaved(b, saved)
	b = append(append(b, `,"state":`...), state...)
	b = append(b, `,"step_index":`...)
	if step == nil {
		b = append(b, '0')
	} else {
		b = append(b, step...)
	}
	b = append(b, `,"metadata":`...)
	if metadata == nil {
		b = append(b, `{}`...)
	} else {
		b = append(b, metadata...)
	}
	return append(b, '}')
}
