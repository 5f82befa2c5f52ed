package httpapi

import (
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/ojs"
)

// checkpointRoutes are those of docs/reference/jobs.md, Progress. The durable helpers of the JS and Python SDKs put their prefix in front
// twice (docs/reference/jobs.md, Checkpoints).
func (a *API) checkpointRoutes(v1 *echo.Group) {
	limit := bodyLimit{job.MaxCheckpoint + reportRoom, "checkpoint"}
	reading := []string{http.MethodGet, http.MethodHead}
	save := a.withBody(limit, a.checkpointSaver(false))
	v1.PUT("/jobs/:id/checkpoint", save)
	v1.POST("/jobs/:id/checkpoint", save)
	v1.Match(reading, "/jobs/:id/checkpoint", a.getCheckpoint)
	v1.DELETE("/jobs/:id/checkpoint", a.deleteCheckpoint)
	for _, g := range []*echo.Group{v1, v1.Group("/ojs/v1")} {
		g.POST("/checkpoints/:id", a.withBody(limit, a.checkpointSaver(true)))
		g.DELETE("/checkpoints/:id", a.deleteCheckpoint)
		g.Match(reading, "/checkpoints/:id/resume", a.getResume)
	}
}

func (a *API) checkpointSaver(optionalState bool) func(c echo.Context, body []byte) error {
	return func(c echo.Context, body []byte) error {
		in, wire := job.DecodeCheckpoint(param(c, "id"), body, optionalState, a.config.Limits)
		if wire != nil {
			return wire
		}
		saved, err := a.Progress.SaveCheckpoint(c.Request().Context(), in)
		if err != nil {
			return err
		}
		return respond(c, http.StatusOK, func(b []byte) []byte {
			b = appendSaved(b, saved)
			b = append(b, `,"checkpoint":`...)
			return append(appendCheckpoint(b, saved), '}')
		})
	}
}

func (a *API) getCheckpoint(c echo.Context) error {
	id, saved, err := a.checkpoint(c)
	if err != nil {
		return err
	}
	if saved.Stored == nil {
		return ojs.ErrNotFound("checkpoint", ojs.FormatID(id))
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = appendCheckpoint(b, saved)
		b = append(b[:len(b)-1], `,"checkpoint":`...)
		return append(appendCheckpoint(b, saved), '}')
	})
}

// getResume answers the durable helpers, which take a missing checkpoint for a fresh start.
func (a *API) getResume(c echo.Context) error {
	_, saved, err := a.checkpoint(c)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
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

func (a *API) deleteCheckpoint(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	if err := a.Progress.DeleteCheckpoint(c.Request().Context(), id); err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"deleted":true,"job_id":"`...)
		return append(ojs.AppendID(b, id), `"}`...)
	})
}

// appendSaved appends the head of an answer, still open.
func appendSaved(b []byte, saved progress.Checkpoint) []byte {
	b = ojs.AppendID(append(b, `{"job_id":"`...), saved.JobID)
	b = append(b, `","sequence":`...)
	b = strconv.AppendInt(b, saved.Sequence, 10)
	return appendTime(b, "created_at", pgtype.Timestamptz{Time: saved.SavedAt, Valid: true})
}

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
