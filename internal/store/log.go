package store

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// logJob writes the line of contract 40 §13 for a change of one job: never its args, meta or result. Lines of ordinary
// success may be thinned out; ends and failures never are.
func (s *Store) logJob(ctx context.Context, level slog.Level, message string, job *dbsqlc.Job) {
	if !s.config.Logger.Enabled(ctx, level) {
		return
	}
	state := ojs.JobState(job.State)
	if level < slog.LevelWarn && !state.Terminal() && s.config.LogSample < 1 && rand.Float64() >= s.config.LogSample {
		return
	}
	fields := make([]any, 0, 7)
	fields = append(fields, slog.String("job_id", ojs.FormatID(job.ID)), slog.String("job_type", job.Type), slog.String("queue", job.Queue),
		slog.String("state", job.State), slog.Int("attempt", int(job.Attempt)))
	if job.WorkerID.Valid {
		fields = append(fields, slog.String("worker_id", job.WorkerID.String))
	}
	attrs := make([]slog.Attr, 0, 4)
	attrs = append(attrs, slog.String("category", "worker"), slog.Group("ojs", fields...))
	if job.TraceID.Valid {
		attrs = append(attrs, slog.Group("trace", slog.String("trace_id", job.TraceID.String)))
	}
	switch state {
	case ojs.StateCompleted:
		attrs = append(attrs, slog.Group("attributes", slog.Int64("duration_ms", job.FinishedAt.Time.Sub(job.StartedAt.Time).Milliseconds())))
	case ojs.StateRetryable:
		attrs = append(attrs, slog.Group("attributes", slog.String("next_retry_at", ojs.FormatTime(job.NextAttemptAt.Time)),
			slog.Int64("retry_delay_ms", job.RetryDelayMs.Int64)))
	}
	s.config.Logger.LogAttrs(ctx, level, message, attrs...)
}

// logFailed chooses the line of a failed attempt by what became of it.
func (s *Store) logFailed(ctx context.Context, job *dbsqlc.Job, n nack) {
	switch {
	case job.State == string(ojs.StateDiscarded):
		s.logJob(ctx, slog.LevelError, "job discarded", job)
	case n.Requeue:
		s.logJob(ctx, slog.LevelInfo, "job handed back", job)
	case job.State == string(ojs.StateAvailable):
		s.logJob(ctx, slog.LevelError, "job lost its worker", job)
	case n.dueOnly:
		s.logJob(ctx, slog.LevelError, "job timed out", job)
	default:
		s.logJob(ctx, slog.LevelWarn, "job failed, will retry", job)
	}
}

func (s *Store) logWorker(ctx context.Context, level slog.Level, message, id string) {
	s.config.Logger.LogAttrs(ctx, level, message, slog.String("category", "worker"), slog.Group("ojs", slog.String("worker_id", id)))
}
