package httpapi

import (
	"errors"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/ojs"
)

// streamProgress is GET /jobs/{id}/progress/stream (docs/reference/events.md, Progress stream): the current object, then each change.
// The order matters: it subscribes, then reads the job, then opens the stream, so no change lies between the object and the
// events.
func (a *API) streamProgress(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	return a.stream(r, func(s *sse) error { return s.followProgress(r, id) })
}

// Events only say that something has changed; the object is read from the table each time. It may be newer than the event,
// and several events of one batch are shown once.
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
		// After a gap nothing is known, so both are assumed.
		reported, changed := gap != nil, gap != nil
		for _, item := range items {
			reported = reported || item.Event.Type == "job.progress"
			changed = changed || reported || item.Event.To != "" || item.Event.From != ""
		}
		if !changed {
			continue
		}
		job, err := s.readProgress(id) // an event does not carry what the worker sent besides
		if err != nil || job == nil {
			return err
		}
		if over, err := s.showProgress(*job, sub.Position(), reported); over || err != nil {
			return err
		}
	}
}

// readProgress reads the object of a job whose events tell that it has changed; nil if the job was deleted or pruned. While the database is
// away it tries again: the events do not come again, and the last of them may have been the end of the job, without which the stream would
// stay open for ever.
func (s *sse) readProgress(id [16]byte) (*progress.Progress, error) {
	for {
		job, err := s.api.Progress.Get(s.ctx, id)
		if err == nil {
			return &job, nil
		}
		var wire *ojs.Error
		if errors.As(err, &wire) && wire.Type == string(ojs.ErrNotFound) {
			return nil, nil
		}
		if err := s.failed(err); err != nil {
			return nil, err
		}
		if err := s.keepAlive(); err != nil {
			return nil, err
		}
	}
}

// ends name the last frame.
// It is only read.
var ends = map[ojs.JobState]string{ojs.StateCompleted: "completed", ojs.StateDiscarded: "failed", ojs.StateCancelled: "cancelled"}

// showProgress sends the object under both names, and how the job ended if it has.
// at is the position of the stream, so a client may show how far it has come; the stream itself cannot be resumed. With a
// final state it reports over, after the last frame.
func (s *sse) showProgress(p progress.Progress, at eventlog.Position, reported bool) (over bool, err error) {
	var b []byte
	if reported {
		// A line break between tokens of a client's object would end the field data.
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
		data = append(appendMoment(data, "updated_at", &p.UpdatedAt), '}')
		b = append(b, systemFrame(end, &at, data)...)
	}
	if len(b) == 0 {
		return false, nil
	}
	return over, s.send(b)
}
