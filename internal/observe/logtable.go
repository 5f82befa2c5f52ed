package observe

import (
	"log/slog"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// logKey selects a line: by type and reason of a change or, if there is no such row, by its type. An empty reason is a row of
// its own: that of changes which a client caused. Gap rows for new pending jobs have it too.
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
	// A move between queues writes two gap rows (docs/reference/events.md, Transitions); one line is enough.
	if c.Type == eventlog.StateChanged && c.Reason == "moved" && c.To == "" {
		return logLine{}, false // the job's last row in its old queue; the first one in the new queue is logged
	}
	if line, ok = logLines[logKey{c.Type, c.Reason}]; !ok {
		line, ok = logLines[logKey{c.Type, anyReason}]
	}
	return line, ok
}
