package observe

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/logging"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Log writes a line for each event that this node commits. It shows nothing of what clients put into jobs (args, meta, results),
// because that may be secret or personal. It runs on the goroutine that committed, before the callers are answered, so its time
// is part of every call.
type Log struct {
	logger *slog.Logger
}

// NewLog returns the log; its Changes subscribes to the commits of a node.
func NewLog(logger *slog.Logger) *Log { return &Log{logger} }

// Changes writes the lines. It ignores the context of the flush, because a flush may serve many callers.
// The lines of one commit are written at once (logging.Hold). Each line has its own trace, that of its job.
func (s *Log) Changes(_ context.Context, changes []eventlog.Change) {
	ctx := context.Background()
	defer logging.Hold(s.logger)()
	now := time.Now()
	for i := range changes {
		c := &changes[i]
		// The level is asked before anything is put together.
		line, logged := lineOf(c)
		if !logged || !s.logger.Enabled(ctx, line.level) {
			continue
		}
		attrs := make([]slog.Attr, 0, 5)
		attrs = append(attrs, slog.String("category", line.category), ojsAttr(c))
		if trace, ok := traceAttr(c.Job); ok {
			attrs = append(attrs, trace)
		}
		if c.Error != nil {
			attrs = append(attrs, workerErrorAttr(c.Error))
		}
		if more := attributes(c); len(more) > 0 {
			attrs = append(attrs, slog.Attr{Key: "attributes", Value: slog.GroupValue(more...)})
		}
		record := slog.NewRecord(now, line.level, line.message, 0) // LogAttrs would look for the caller, which no line shows
		record.AddAttrs(attrs...)
		_ = s.logger.Handler().Handle(ctx, record) // LogAttrs drops the error, too
	}
}

// ojsAttr is the group ojs: what the change is about. Which members are there, and under what names, is told to users:
// docs/reference/observability.md, Logs.
func ojsAttr(c *eventlog.Change) slog.Attr {
	fields := make([]slog.Attr, 0, 8)
	if c.JobID != [16]byte{} {
		fields = append(fields, slog.String("job_id", spec.FormatID(c.JobID)))
	}
	if c.JobType != "" {
		fields = append(fields, slog.String("job_type", c.JobType), slog.String("queue", c.Queue))
	}
	if strings.HasPrefix(c.Type, "queue.") {
		fields = append(fields, slog.String("queue", c.Queue))
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
	switch {
	case c.Job != nil && c.Job.WorkflowID.Valid:
		fields = append(fields, slog.String("workflow_id", spec.FormatID(c.Job.WorkflowID.Bytes)))
	case strings.HasPrefix(c.Type, "workflow."):
		fields = append(fields, slog.String("workflow_id", c.Subject))
	}
	if c.Job != nil {
		if id := job.CorrelationID(c.Job.Meta); id != "" {
			fields = append(fields, slog.String("correlation_id", id))
		}
	}
	return slog.Attr{Key: "ojs", Value: slog.GroupValue(fields...)}
}

// traceAttr is the trace of a job, and the span that enqueued it if the job's meta has it. The span is shown only if it is of
// the same trace: meta.trace_id may name another one.
func traceAttr(j *job.Record) (slog.Attr, bool) {
	if j == nil || !j.TraceID.Valid {
		return slog.Attr{}, false
	}
	ids := []slog.Attr{slog.String("trace_id", j.TraceID.String)}
	if parent := job.TraceContextOf(j.Meta).Traceparent; parent != "" && parent[3:35] == j.TraceID.String {
		ids = append(ids, slog.String("span_id", parent[36:52]))
	}
	return slog.Attr{Key: "trace", Value: slog.GroupValue(ids...)}, true
}

// maxLoggedMessage bounds a worker's message in the log, in bytes. The job has the whole message, of up to 16 384 bytes.
const maxLoggedMessage = 2048

// Type and message come from the worker and are shown; details are not, because they may contain what the job was about.
func workerErrorAttr(e *job.WorkerError) slog.Attr {
	attrs := []slog.Attr{slog.String("type", e.Type), slog.String("message", job.Shorten(e.Message, maxLoggedMessage))}
	if len(e.Backtrace) > 0 {
		attrs = append(attrs, slog.String("backtrace", logging.Cut(strings.Join(e.Backtrace, "\n"))))
	}
	return slog.Attr{Key: "error", Value: slog.GroupValue(attrs...)}
}

// attributes are the members of the group attributes.
func attributes(c *eventlog.Change) (attrs []slog.Attr) {
	if c.Timed {
		name := "duration_ms"
		if c.Type == ojs.EventJobStarted {
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
	// Only events of crons have a type of job and no job.
	if c.JobType != "" && c.JobID == [16]byte{} {
		attrs = append(attrs, slog.String("cron", c.Subject))
	}
	if c.Job == nil {
		return attrs
	}
	if c.Type == ojs.EventJobRetrying {
		attrs = append(attrs, slog.String("next_retry_at", spec.FormatTime(c.Job.NextAttemptAt.Time)), slog.Int64("retry_delay_ms", c.Job.RetryDelayMs.Int64))
	}
	if c.Type == ojs.EventJobScheduled {
		attrs = append(attrs, slog.String("scheduled_at", spec.FormatTime(c.Job.ScheduledAt.Time)))
	}
	return attrs
}
