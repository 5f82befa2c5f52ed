package queue

import (
	"context"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// beginEnqueues starts the spans of jobs that will be stored; nil if none are recorded.
// Most nodes record none, hence the slice that is made late.
func (s *Store) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, job := range jobs {
		span := s.tracer.Enqueue(ctx, job)
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

// beginEnqueues does the same in a transaction. When the transaction is tried again, it returns the spans of the first try.
// Otherwise a deadlock would leave spans that nobody ends.
func (t *Tx) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, j := range jobs {
		span, begun := t.spans[j]
		if !begun {
			if span = t.store.tracer.Enqueue(ctx, j); !span.Begun() {
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

// endEnqueues ends the spans of the jobs that were stored.
func endEnqueues(spans []tracing.Enqueue, jobs []*job.Job, stored []*job.Record) {
	for i, span := range spans {
		if stored[i] != nil && !jobs[i].Outcome.Deduplicated {
			span.Accepted(stored[i].ID, stored[i].State)
		}
	}
}
