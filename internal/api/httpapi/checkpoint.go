package httpapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/internal/spec"
)

// checkpointRoutes are those of docs/reference/jobs.md, Progress. The durable helpers of the JS and Python SDKs put their prefix in front
// twice (docs/reference/jobs.md, Checkpoints). PUT and POST do the same.
func (a *API) checkpointRoutes() []route {
	routes := []route{
		{"PUT", "/jobs/:id/checkpoint", aboutJob, checkpointBody, "", a.checkpointSaver(false)},
		{"POST", "/jobs/:id/checkpoint", aboutJob, checkpointBody, "", a.checkpointSaver(false)},
		{"GET", "/jobs/:id/checkpoint", aboutJob, noBody, "", a.getCheckpoint},
		{"DELETE", "/jobs/:id/checkpoint", aboutJob, noBody, "", a.deleteCheckpoint},
	}
	for _, prefix := range []string{"", basePath} {
		routes = append(routes,
			route{"POST", prefix + "/checkpoints/:id", aboutJob, checkpointBody, "", a.checkpointSaver(true)},
			route{"DELETE", prefix + "/checkpoints/:id", aboutJob, noBody, "", a.deleteCheckpoint},
			route{"GET", prefix + "/checkpoints/:id/resume", aboutJob, noBody, "", a.getResume},
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
func (a *API) checkpoint(c echo.Context) ([16]byte, progress.Checkpoint, error) {
	id, err := jobID(c)
	if err != nil {
		return id, progress.Checkpoint{}, err
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
func appendSaved(b []byte, saved progress.Checkpoint) []byte {
	b = spec.AppendID(append(b, `{"job_id":"`...), saved.JobID)
	b = append(b, `","sequence":`...)
	b = strconv.AppendInt(b, saved.Sequence, 10)
	return appendMoment(b, "created_at", &saved.SavedAt)
}

// appendCheckpoint appends the whole object, braces included. step_index and metadata that were not sent are 0 and {},
// because the helpers do not expect null.
func appendCheckpoint(b []byte, saved progress.Checkpoint) []byte {
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
