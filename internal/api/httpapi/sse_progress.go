package httpapi

import (
	"errors"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/ojs"
)

// streamProgress is GET /jobs/{id}/progress/stream (docs/reference/events.md, Progress stream): the current object, then each change.
func (a *API) streamProgress(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	return a.stream(c, func(s *sse) error { return s.followProgress(c, id) })
}

func (s *sse) followProgress(c echo.Context, id [16]byte) error {
	sub, err := s.api.Feed.Subscribe(s.ctx, eventlog.Query{JobID: &id, Internal: true}, nil)
	if err != nil {
		return pg.ClientError(err)
	}
	defer sub.Close()
	sub.CountIn(s.flow)
	job, err := s.api.Progress.Get(s.ctx, id)
	if err != nil {
		return err
	}
	if goOn, err := s.open(c); err != nil || !goOn {
		return err
	}
	if over, err := s.showProgress(job, sub.Position(), true); over || err != nil {
		return err
	}
	for {
		items, gap, err := s.next(sub)
		if err != nil {
			return err
		}
		reported, changed := gap != nil, gap != nil
		for _, item := range items {
			reported = reported || item.Event.Type == "job.progress"
			changed = changed || reported || item.Event.To != "" || item.Event.From != ""
		}
		if !changed {
			continue
		}
		job, err := s.api.Progress.Get(s.ctx, id) // an event does not carry what the worker sent besides
		var wire *ojs.Error
		switch {
		case errors.As(err, &wire) && wire.Type == string(ojs.KindNotFound):
			return nil
		case err != nil:
			if err := s.failed(err); err != nil {
				return err
			}
			continue
		}
		if over, err := s.showProgress(job, sub.Position(), reported); over || err != nil {
			return err
		}
	}
}

// ends name the last frame.
var ends = map[ojs.JobState]string{ojs.StateCompleted: "completed", ojs.StateDiscarded: "failed", ojs.StateCancelled: "cancelled"}

// showProgress sends the object under both names, and how the job ended if it has.
func (s *sse) showProgress(p progress.Progress, at eventlog.Position, reported bool) (over bool, err error) {
	var b []byte
	if reported {
		p.Data = oneLine(p.Data)
		data := appendProgress(nil, p)
		b = systemFrame("progress", &at, data)
		b = append(append(at.Append(append(b, "id: "...)), "\ndata: "...), data...)
		b = append(b, "\n\n"...)
	}
	end, over := ends[p.State]
	if over {
		data := append([]byte(nil), `{"progress":`...)
		if p.Progress.Valid {
			data = appendFloat(data, p.Progress.Float64)
		} else {
			data = append(data, `null`...)
		}
		data = appendText(data, "state", string(p.State))
		data = append(appendTime(data, "updated_at", pgtype.Timestamptz{Time: p.UpdatedAt, Valid: true}), '}')
		b = append(b, systemFrame(end, &at, data)...)
	}
	if len(b) == 0 {
		return false, nil
	}
	return over, s.send(b)
}
