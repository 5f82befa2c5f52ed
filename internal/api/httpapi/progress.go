package httpapi

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// progressRoutes are those of docs/reference/jobs.md, Progress and Checkpoints. The durable helpers of the JS and Python SDKs put their
// prefix in front twice. PUT and POST do the same.
func (a *API) progressRoutes() []route {
	routes := []route{
		{"PUT", "/jobs/:id/progress", api.Confined, reportBody, "", a.putProgress},
		{"POST", "/workers/progress", api.Confined, reportBody, "", a.postProgress},
		{"GET", "/jobs/:id/progress", api.AboutJob, noBody, "", about(jobID, a.getProgress)},
		{"GET", "/jobs/:id/progress/stream", api.AboutJob, noBody, "", a.streamProgress},
		{"PUT", "/jobs/:id/checkpoint", api.AboutJob, checkpointBody, "", a.checkpointSaver(false)},
		{"POST", "/jobs/:id/checkpoint", api.AboutJob, checkpointBody, "", a.checkpointSaver(false)},
		{"GET", "/jobs/:id/checkpoint", api.AboutJob, noBody, "", about(jobID, a.getCheckpoint)},
		{"DELETE", "/jobs/:id/checkpoint", api.AboutJob, noBody, "", about(jobID, a.deleteCheckpoint)},
	}
	for _, prefix := range []string{"", basePath} {
		routes = append(routes,
			route{"POST", prefix + "/checkpoints/:id", api.AboutJob, checkpointBody, "", a.checkpointSaver(true)},
			route{"DELETE", prefix + "/checkpoints/:id", api.AboutJob, noBody, "", about(jobID, a.deleteCheckpoint)},
			route{"GET", prefix + "/checkpoints/:id/resume", api.AboutJob, noBody, "", about(jobID, a.getResume)},
		)
	}
	return routes
}

// putProgress takes a share from 0 to 1, postProgress a percentage.
func (a *API) putProgress(r *request) error {
	in, wire := job.DecodeProgressFor(param(r, "id"), r.body)
	return a.reportProgress(r, in, wire)
}

func (a *API) postProgress(r *request) error {
	in, wire := job.DecodeProgress(r.body)
	return a.reportProgress(r, in, wire)
}

// reportProgress renews the reservation. For a job that is not active it changes nothing and is 200 with accepted false, because a
// worker cannot know better. The id may come from the body, where confine cannot see it, so the handler checks whose job it
// is, for both routes.
func (a *API) reportProgress(r *request, in job.ProgressReport, wire *ojs.Error) error {
	if wire != nil {
		return wire
	}
	if err := a.ownJob(r, in.JobID); err != nil {
		return err
	}
	p, err := a.Progress.Report(r.Request().Context(), in)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, showProgress(p))
}

// getProgress may be polled. Last-Modified is the time of the latest report or change of state; there is no ETag.
func (a *API) getProgress(r *request, id [16]byte) error {
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
	return r.answer(http.StatusOK, showProgress(p))
}

// showProgress has null for progress, message and data until something was reported.
func showProgress(p queue.Progress) object {
	shown := object{
		{"job_id", p.JobID}, {"state", string(p.State)}, {"progress", p.Progress}, {"message", p.Message}, {"data", p.Data},
		{"updated_at", p.UpdatedAt}, // without a report it is the latest change of the job
	}
	if p.Refused {
		shown = append(shown, member{"accepted", false})
	}
	return shown
}

func appendOrNull(b, value []byte) []byte {
	if value == nil {
		return append(b, `null`...)
	}
	return append(b, value...)
}

// appendFloat writes the shortest text that reads back as the same number.
func appendFloat(b []byte, f float64) []byte { return jsontext.AppendFloat(b, f, 64) }

// checkpointSaver takes optionalState for the durable helpers, which leave state out when it is undefined; refusing it would fail their
// job. A save is not idempotent: it increases sequence, unless the client sends one, of which a repetition is 409.
func (a *API) checkpointSaver(optionalState bool) func(r *request) error {
	return func(r *request) error {
		in, wire := job.DecodeCheckpoint(param(r, "id"), r.body, optionalState)
		if wire != nil {
			return wire
		}
		saved, err := a.Progress.SaveCheckpoint(r.Request().Context(), in)
		if err != nil {
			return err
		}
		return r.answer(http.StatusOK, append(showSaved(saved), member{"checkpoint", showCheckpoint(saved)}))
	}
}

// getCheckpoint has the members at the top level and again in checkpoint: SDKs read one of the two. It works for jobs that
// have ended, too.
func (a *API) getCheckpoint(r *request, id [16]byte) error {
	saved, err := a.Progress.Checkpoint(r.Request().Context(), id)
	if err != nil {
		return err
	}
	if saved.Stored == nil {
		return spec.NotFound("checkpoint", spec.FormatID(id))
	}
	return r.answer(http.StatusOK, append(showCheckpoint(saved), member{"checkpoint", showCheckpoint(saved)}))
}

// getResume answers the durable helpers, which take a missing checkpoint for a fresh start.
// It is 200 either way: they would take a 404 for a failure and fail the job. An unknown job is 404 all the same.
func (a *API) getResume(r *request, id [16]byte) error {
	saved, err := a.Progress.Checkpoint(r.Request().Context(), id)
	if err != nil {
		return err
	}
	if saved.Stored == nil {
		return r.answer(http.StatusOK, object{{"has_checkpoint", false}})
	}
	return r.answer(http.StatusOK, object{{"has_checkpoint", true}, {"checkpoint", showCheckpoint(saved)}})
}

// deleteCheckpoint is idempotent. A worker that saves afterwards begins with sequence 1 again.
func (a *API) deleteCheckpoint(r *request, id [16]byte) error {
	if err := a.Progress.DeleteCheckpoint(r.Request().Context(), id); err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"deleted", true}, {"job_id", id}})
}

// showSaved has in created_at the time of this save by the clock of the database, not that of the first one.
func showSaved(saved queue.Checkpoint) object {
	return object{{"job_id", saved.JobID}, {"sequence", saved.Sequence}, {"created_at", saved.SavedAt}}
}

// showCheckpoint has 0 and {} for step_index and metadata that were not sent, because the helpers do not expect null.
func showCheckpoint(saved queue.Checkpoint) object {
	state, step, metadata := job.CheckpointParts(saved.Stored)
	if step == nil {
		step = jsontext.Value(`0`)
	}
	return append(showSaved(saved), object{{"state", state}, {"step_index", step}, {"metadata", orEmpty(metadata)}}...)
}
