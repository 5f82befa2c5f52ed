package store

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

// beginEnqueues starts the spans of jobs that are about to be stored; nil if none are recorded.
func (s *Store) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, job := range jobs {
		span := s.config.Tracer.Enqueue(ctx, job)
		if !span.Begun() {
			continue
		}
		if spans == nil {
			spans = make([]tracing.Enqueue, len(jobs))
		}
		spans[i] = span
	}
	return spans
}

func (t *Tx) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, j := range jobs {
		span, begun := t.spans[j]
		if !begun {
			if span = t.store.config.Tracer.Enqueue(ctx, j); !span.Begun() {
				continue
			}
			if t.spans == nil {
				t.spans = map[*job.Job]tracing.Enqueue{}
			}
			t.spans[j] = span
		}
		if spans == nil {
			spans = make([]tracing.Enqueue, len(jobs))
		}
		spans[i] = span
	}
	return spans
}

// endEnqueues ends the spans of those that were.
func endEnqueues(spans []tracing.Enqueue, stored []*dbsqlc.Job) {
	for i, span := range spans {
		if stored[i] != nil {
			span.Accepted(stored[i].ID, stored[i].State)
		}
	}
}

// traceChanges records the attempts that have ended.
func (s *Store) traceChanges(changes []Change) {
	if !s.config.Tracer.Executing() {
		return
	}
	for i := range changes {
		if start, ended := changes[i].attemptStart(); ended {
			s.config.Tracer.Execute(attemptOf(&changes[i], start))
		}
	}
}

// attemptStart tells when the attempt began that ends with the change.
func (c *Change) attemptStart() (start time.Time, ended bool) {
	switch {
	case c.Job == nil:
	case c.Type == "job.completed", c.Type == "job.cancelled" && c.From == string(ojs.StateActive):
		return c.Job.StartedAt.Time, c.Job.StartedAt.Valid
	case c.Type == "job.failed":
		return c.At.Add(-c.Took), c.Timed
	case c.Type == stateChanged && c.Reason == "requeue":
		return c.Started, !c.Started.IsZero()
	}
	return start, false
}

func attemptOf(c *Change, start time.Time) tracing.Attempt {
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
