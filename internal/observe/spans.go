package observe

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

// Spans records the span of each attempt when it ends.
type Spans struct{ tracer *tracing.Tracer }

// NewSpans returns the recorder; its Changes subscribes to the commits of a node.
func NewSpans(tracer *tracing.Tracer) *Spans { return &Spans{tracer} }

// Changes records the attempts that have ended.
func (s *Spans) Changes(_ context.Context, changes []eventlog.Change) {
	for i := range changes {
		if start, ended := attemptStart(&changes[i]); ended {
			s.tracer.Execute(attemptOf(&changes[i], start))
		}
	}
}

// attemptStart tells when the attempt began that ends with the change.
func attemptStart(c *eventlog.Change) (start time.Time, ended bool) {
	switch {
	case c.Job == nil:
	case c.Type == "job.completed", c.Type == "job.cancelled" && c.From == string(ojs.StateActive):
		return c.Job.StartedAt.Time, c.Job.StartedAt.Valid
	case c.Type == "job.failed":
		return c.At.Add(-c.Took), c.Timed
	case c.Type == eventlog.StateChanged && c.Reason == "requeue":
		return c.Started, !c.Started.IsZero()
	}
	return start, false
}

func attemptOf(c *eventlog.Change, start time.Time) tracing.Attempt {
	a := tracing.Attempt{
		ID: c.JobID, Type: c.JobType, Queue: c.Queue, State: c.Job.State, Priority: c.Job.Priority, Attempt: c.Attempt,
		WorkerID: c.WorkerID, Meta: c.Job.Meta, CreatedAt: c.Job.CreatedAt.Time, Start: start, End: c.At,
	}
	if c.Reason == "requeue" {
		a.Attempt++ // it has been taken back, but there was one
	}
	if c.Error != nil {
		a.Failed, a.ErrorType, a.ErrorMessage = true, c.Error.Type, job.Shorten(c.Error.Message, maxLoggedMessage)
	}
	return a
}
