// Package observe turns the events that a node commits into log lines and spans; its package metrics counts them. All of
// them are made from the committed event. They must never read the database for more.
//
// It also owns the shape of all log lines (docs/reference/observability.md, Logs), in both formats and for all callers, libraries included
// (log_handler.go). It must never show secrets, or what clients send in job bodies: it removes both from errors (log_errors.go).
package observe

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
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
// The lines of one commit are written at once (HoldLines). Each line has its own trace, that of its job.
func (s *Log) Changes(_ context.Context, changes []eventlog.Change) {
	ctx := context.Background()
	defer HoldLines(s.logger)()
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

// workerErrorAttr shows type and message, which come from the worker; details are left out, because they may contain what the job was
// about.
func workerErrorAttr(e *job.WorkerError) slog.Attr {
	attrs := []slog.Attr{slog.String("type", e.Type), slog.String("message", job.Shorten(e.Message, maxLoggedMessage))}
	if len(e.Backtrace) > 0 {
		attrs = append(attrs, slog.String("backtrace", CutBacktrace(strings.Join(e.Backtrace, "\n"))))
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
		attrs = append(attrs, slog.String("next_retry_at", spec.FormatTime(c.Job.NextAttemptAt.Time)),
			slog.Int64("retry_delay_ms", c.Job.RetryDelayMs.Int64))
	}
	if c.Type == ojs.EventJobScheduled {
		attrs = append(attrs, slog.String("scheduled_at", spec.FormatTime(c.Job.ScheduledAt.Time)))
	}
	return attrs
}

// logKey selects a line: by type and reason of a change or, if there is no such row, by its type. An empty reason is a row of
// its own: that of changes which a client caused. Internal rows for new pending jobs have it too.
type logKey struct{ eventType, reason string }

// logLine is how a change is logged. The zero value is not logged. category is one of lifecycle, error, worker and queue. The
// levels and messages are listed in docs/reference/observability.md, Logs.
type logLine struct {
	level    slog.Level
	message  string
	category string
}

// anyReason is the row of a type for the reasons that have no row of their own.
const anyReason = "*"

// logLines has the line of every event. job.failed has none: the event that follows from it is logged.
var logLines = map[logKey]logLine{
	{ojs.EventJobEnqueued, anyReason}:  {slog.LevelInfo, "job enqueued", "lifecycle"},
	{ojs.EventJobScheduled, anyReason}: {slog.LevelInfo, "job scheduled", "lifecycle"},
	{ojs.EventJobStarted, anyReason}:   {slog.LevelDebug, "job fetched", "lifecycle"},
	{ojs.EventJobHeartbeat, anyReason}: {slog.LevelDebug, "job heartbeat", "lifecycle"},
	{ojs.EventJobProgress, anyReason}:  {slog.LevelDebug, "job progress", "lifecycle"},
	{ojs.EventJobCompleted, anyReason}: {slog.LevelInfo, "job completed", "lifecycle"},
	{ojs.EventJobCancelled, anyReason}: {slog.LevelInfo, "job cancelled", "lifecycle"},
	{ojs.EventJobRetrying, ""}:         {slog.LevelWarn, "job failed, will retry", "error"},
	{ojs.EventJobRetrying, anyReason}:  {slog.LevelError, "job timed out, will retry", "error"}, // the server ended the attempt
	{ojs.EventJobDiscarded, anyReason}: {slog.LevelError, "job discarded", "error"},
	{ojs.EventJobExpired, anyReason}:   {slog.LevelWarn, "job expired", "error"},

	{eventlog.StateChanged, ""}:                    {slog.LevelInfo, "job pending", "lifecycle"},
	{eventlog.StateChanged, "requeue"}:             {slog.LevelInfo, "job handed back", "lifecycle"},
	{eventlog.StateChanged, job.VisibilityTimeout}: {slog.LevelError, "job lost its worker", "error"},
	{eventlog.StateChanged, job.WorkerDeath}:       {slog.LevelError, "job lost its worker", "error"},
	{eventlog.StateChanged, "retry"}:               {slog.LevelDebug, "job is up for another attempt", "lifecycle"},
	{eventlog.StateChanged, "rate_limit"}:          {slog.LevelDebug, "job is scheduled by its rate limit", "lifecycle"},
	{eventlog.StateChanged, "moved"}:               {slog.LevelDebug, "job moved", "lifecycle"},
	{eventlog.StateChanged, anyReason}:             {slog.LevelDebug, "job removed", "lifecycle"},

	{eventlog.PriorityChanged, anyReason}: {slog.LevelInfo, "job priority changed", "lifecycle"},

	{ojs.EventWorkerStarted, anyReason}:       {slog.LevelInfo, "worker started", "worker"},
	{ojs.EventWorkerQuiet, anyReason}:         {slog.LevelInfo, "worker quiet", "worker"},
	{ojs.EventWorkerHeartbeat, anyReason}:     {slog.LevelDebug, "worker heartbeat", "worker"},
	{ojs.EventWorkerStopped, anyReason}:       {slog.LevelInfo, "worker stopped", "worker"},
	{ojs.EventWorkerStopped, job.WorkerDeath}: {slog.LevelError, "worker lost", "worker"},

	{ojs.EventWorkflowStepCompleted, anyReason}: {slog.LevelDebug, "workflow step completed", "lifecycle"},
	{ojs.EventWorkflowCompleted, anyReason}:     {slog.LevelInfo, "workflow completed", "lifecycle"},
	{ojs.EventWorkflowFailed, anyReason}:        {slog.LevelError, "workflow failed", "error"},

	{ojs.EventQueuePaused, anyReason}:  {slog.LevelInfo, "queue paused", "queue"},
	{ojs.EventQueueResumed, anyReason}: {slog.LevelInfo, "queue resumed", "queue"},

	{ojs.EventCronTriggered, anyReason}: {slog.LevelInfo, "cron triggered", "lifecycle"},
	{ojs.EventCronSkipped, anyReason}:   {slog.LevelInfo, "cron skipped", "lifecycle"},
}

// lineOf is the line of a change; ok is false if it is not logged. A type without a row is not logged, such as
// workflow.started.
func lineOf(c *eventlog.Change) (line logLine, ok bool) {
	// A move between queues writes two internal rows (docs/reference/events.md, Transitions); one line is enough.
	if c.Type == eventlog.StateChanged && c.Reason == "moved" && c.To == "" {
		return logLine{}, false // the job's last row in its old queue; the first one in the new queue is logged
	}
	if line, ok = logLines[logKey{c.Type, c.Reason}]; !ok {
		line, ok = logLines[logKey{c.Type, anyReason}]
	}
	return line, ok
}
