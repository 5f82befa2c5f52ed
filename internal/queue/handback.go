package queue

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// handBackTimeout bounds the return of jobs. The request that claimed them may be cancelled, so its context does not bound it.
// After it the jobs wait for their leases, 30 s by default, so there is no point in trying for long.
const handBackTimeout = 5 * time.Second

// HandBack returns jobs that were claimed and cannot be delivered, without counting the attempt. A job for which this fails
// becomes available when its lease ends.
// The API layers and package pool call it for jobs whose client has gone, or that do not fit into an answer. It is safe for jobs
// that were acked, failed or lost meanwhile: they are refused, which is logged.
func (s *Store) HandBack(ctx context.Context, jobs []*job.Record) {
	if len(jobs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handBackTimeout)
	defer cancel()
	nacks := make([]job.Nack, len(jobs))
	for i, j := range jobs {
		// Worker and attempt are sent, so that a run of another worker, or a later attempt, is left alone.
		nacks[i] = job.Nack{JobID: j.ID, WorkerID: j.WorkerID.String, Attempt: j.Attempt, Requeue: true}
	}
	_, errs := s.FailEach(ctx, nacks)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		s.logger.WarnContext(ctx, "undelivered job was not handed back; it becomes available when its lease ends",
			slog.String("category", "worker"), slog.Group("ojs", "job_id", spec.FormatID(jobs[i].ID)), slog.Any("error", errs[i]))
	}
}
