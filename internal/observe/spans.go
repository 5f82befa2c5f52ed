package observe

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

// Spans records the span of each attempt when the attempt has ended. An attempt has no span while it runs: its node may stop,
// and another one may see its end.
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

// attemptStart is the start of the attempt that the change ends; ended is false if it ends none. Times are those of the
// database for both ends, so the length is right whatever the clocks of nodes and workers say.
func attemptStart(c *eventlog.Change) (start time.Time, ended bool) {
	switch {
	case c.Job == nil:
	// A cancelled job ends an attempt only if it was active.
	case c.Type == ojs.EventJobCompleted, c.Type == ojs.EventJobCancelled && c.From == string(ojs.StateActive):
		return c.Job.StartedAt.Time, c.Job.StartedAt.Valid
	case c.Type == ojs.EventJobFailed:
		return c.At.Add(-c.Took), c.Timed
	case c.Type == eventlog.StateChanged && c.Reason == "requeue":
		return c.Started, !c.Started.IsZero()
	}
	return start, false
}

// attemptOf has the state of the job now, after what followed from the attempt.
func attemptOf(c *eventlog.Change, start time.Time) tracing.Attempt {
	a := tracing.Attempt{
		ID: c.JobID, Type: c.JobType, Queue: c.Queue, State: c.Job.State, Priority: c.Job.Priority, Attempt: c.Attempt,
		WorkerID: c.WorkerID, Meta: c.Job.Meta, CreatedAt: c.Job.CreatedAt.Time, Start: start, End: c.At,
	}
	if c.Job.WorkflowID.Valid {
		a.WorkflowID, a.Step = c.Job.WorkflowID.Bytes, job.WorkflowStep(c.Job.Extra)
	}
	if c.Reason == "requeue" {
		a.Attempt++ // a requeue does not count the attempt, but its span has a number
	}
	if c.Error != nil {
		a.Failed, a.ErrorType, a.ErrorMessage = true, c.Error.Type, job.Shorten(c.Error.Message, maxLoggedMessage)
	}
	return a
}
