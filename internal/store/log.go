package store

import (
	"context"
	"log/slog"
	"strings"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/logging"
	"github.com/ojsd/ojsd/ojs"
)

// logChanges writes the lines of contract 40 §13 for what has been committed. Nobody's context is theirs: a flush serves
// many callers.
func (s *Store) logChanges(changes []Change) {
	ctx := context.Background()
	for i := range changes {
		c := &changes[i]
		said := about(c)
		if said.message == "" || !s.config.Logger.Enabled(ctx, said.level) {
			continue
		}
		attrs := make([]slog.Attr, 0, 5)
		attrs = append(attrs, slog.String("category", said.category), ojsAttr(c))
		if trace, ok := traceAttr(c.Job); ok {
			attrs = append(attrs, trace)
		}
		if c.Error != nil {
			attrs = append(attrs, workerErrorAttr(c.Error))
		}
		if rest := s.restOf(c); len(rest) > 0 {
			attrs = append(attrs, slog.Attr{Key: "attributes", Value: slog.GroupValue(rest...)})
		}
		s.config.Logger.LogAttrs(ctx, said.level, said.message, attrs...)
	}
}

// saying is what to say about a change; no message: nothing.
type saying struct {
	level    slog.Level
	message  string
	category string
	often    bool // ordinary success on the way, of which a sample is enough
}

func about(c *Change) saying {
	switch c.Type {
	case "job.enqueued":
		return saying{slog.LevelInfo, "job enqueued", "lifecycle", true}
	case "job.scheduled":
		return saying{slog.LevelInfo, "job scheduled", "lifecycle", true}
	case "job.completed":
		return saying{slog.LevelInfo, "job completed", "lifecycle", false}
	case "job.cancelled":
		return saying{slog.LevelInfo, "job cancelled", "lifecycle", false}
	case "job.started":
		return saying{slog.LevelDebug, "job fetched", "lifecycle", true}
	case "job.retrying":
		if c.Reason != "" { // it did not fail by itself
			return saying{slog.LevelError, "job timed out, will retry", "error", false}
		}
		return saying{slog.LevelWarn, "job failed, will retry", "error", false}
	case "job.discarded":
		return saying{slog.LevelError, "job discarded", "error", false}
	case "job.expired":
		return saying{slog.LevelWarn, "job expired", "error", false}
	case "job.heartbeat":
		return saying{slog.LevelDebug, "job heartbeat", "lifecycle", true}
	case "job.progress":
		return saying{slog.LevelDebug, "job progress", "lifecycle", true}
	case stateChanged:
		return aboutGap(c)
	case "worker.started":
		return saying{slog.LevelInfo, "worker started", "worker", false}
	case "worker.quiet":
		return saying{slog.LevelInfo, "worker quiet", "worker", false}
	case "worker.heartbeat":
		return saying{slog.LevelDebug, "worker heartbeat", "worker", true}
	case "worker.stopped":
		if c.Reason == envelope.WorkerDeath {
			return saying{slog.LevelError, "worker lost", "worker", false}
		}
		return saying{slog.LevelInfo, "worker stopped", "worker", false}
	case "cron.triggered":
		return saying{slog.LevelInfo, "cron triggered", "lifecycle", true}
	case "cron.skipped":
		return saying{slog.LevelInfo, "cron skipped", "lifecycle", true}
	}
	return saying{} // job.failed: what follows from it is told
}

// aboutGap is about what the catalogue has no event for.
func aboutGap(c *Change) saying {
	switch c.Reason {
	case "":
		return saying{slog.LevelInfo, "job pending", "lifecycle", true}
	case "requeue":
		return saying{slog.LevelInfo, "job handed back", "lifecycle", true}
	case envelope.VisibilityTimeout, envelope.WorkerDeath:
		return saying{slog.LevelError, "job lost its worker", "error", false}
	case "retry":
		return saying{slog.LevelDebug, "job is up for another attempt", "lifecycle", true}
	case "moved":
		if c.To == "" {
			return saying{}
		}
		return saying{slog.LevelDebug, "job moved", "lifecycle", true}
	}
	return saying{slog.LevelDebug, "job removed", "lifecycle", true}
}

// ojsAttr is the group of that name.
func ojsAttr(c *Change) slog.Attr {
	fields := make([]slog.Attr, 0, 7)
	if c.JobID != [16]byte{} {
		fields = append(fields, slog.String("job_id", ojs.FormatID(c.JobID)))
	}
	if c.JobType != "" {
		fields = append(fields, slog.String("job_type", c.JobType), slog.String("queue", c.Queue))
	}
	if c.JobID != [16]byte{} {
		fields = append(fields, slog.Int("attempt", int(c.Attempt)))
	}
	if c.To != "" {
		fields = append(fields, slog.String("state", c.To))
	}
	if c.WorkerID != "" {
		fields = append(fields, slog.String("worker_id", c.WorkerID))
	}
	if c.Job != nil {
		if id := envelope.CorrelationID(c.Job.Meta); id != "" {
			fields = append(fields, slog.String("correlation_id", id))
		}
	}
	return slog.Attr{Key: "ojs", Value: slog.GroupValue(fields...)}
}

// traceAttr is the trace that a job carries, and the span it was made in if that is known.
func traceAttr(job *dbsqlc.Job) (slog.Attr, bool) {
	if job == nil || !job.TraceID.Valid {
		return slog.Attr{}, false
	}
	ids := []slog.Attr{slog.String("trace_id", job.TraceID.String)}
	if parent := envelope.TraceContextOf(job.Meta).Traceparent; parent != "" && parent[3:35] == job.TraceID.String {
		ids = append(ids, slog.String("span_id", parent[36:52]))
	}
	return slog.Attr{Key: "trace", Value: slog.GroupValue(ids...)}, true
}

// maxLoggedMessage bounds a worker's message in the log, in bytes.
const maxLoggedMessage = 2048

func workerErrorAttr(e *envelope.WorkerError) slog.Attr {
	attrs := []slog.Attr{slog.String("type", e.Type), slog.String("message", envelope.Shorten(e.Message, maxLoggedMessage))}
	if len(e.Backtrace) > 0 {
		attrs = append(attrs, slog.String("backtrace", logging.Cut(strings.Join(e.Backtrace, "\n"))))
	}
	return slog.Attr{Key: "error", Value: slog.GroupValue(attrs...)}
}

// restOf gives what else there is to say. Args and results only if the server is set up so.
func (s *Store) restOf(c *Change) (attrs []slog.Attr) {
	if c.Timed {
		name := "duration_ms"
		if c.Type == "job.started" {
			name = "queue_wait_ms"
		}
		attrs = append(attrs, slog.Int64(name, c.Milliseconds()))
	}
	if c.From != "" {
		attrs = append(attrs, slog.String("previous_state", c.From))
	}
	if c.Reason != "" {
		attrs = append(attrs, slog.String("reason", c.Reason))
	}
	if c.JobType != "" && c.JobID == [16]byte{} {
		attrs = append(attrs, slog.String("cron", c.Subject))
	}
	if c.Job == nil {
		return attrs
	}
	if c.Type == "job.retrying" {
		attrs = append(attrs, slog.String("next_retry_at", ojs.FormatTime(c.Job.NextAttemptAt.Time)), slog.Int64("retry_delay_ms", c.Job.RetryDelayMs.Int64))
	}
	if c.Type == "job.scheduled" {
		attrs = append(attrs, slog.String("scheduled_at", ojs.FormatTime(c.Job.ScheduledAt.Time)))
	}
	return append(attrs, s.contents(c)...)
}

// contents are what the settings logging.meta and logging.payloads add.
func (s *Store) contents(c *Change) (attrs []slog.Attr) {
	if s.config.LogPayloads && c.Job.Meta != nil {
		attrs = append(attrs, slog.Any("meta", logging.JSON(logging.WithoutSecrets(c.Job.Meta))))
	}
	if s.config.LogPayloads && c.Job.Args != nil {
		attrs = append(attrs, slog.Any("args", logging.JSON(c.Job.Args)))
	}
	if s.config.LogPayloads && c.Type == "job.completed" && c.Job.Result != nil {
		attrs = append(attrs, slog.Any("result", logging.JSON(c.Job.Result)))
	}
	return attrs
}
