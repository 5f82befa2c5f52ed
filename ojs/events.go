package ojs

// EventTypes is the closed catalogue of docs/reference/events.md, Types: nothing else appears in polling, streams, webhooks or notifications.
var EventTypes = []string{
	"job.enqueued", "job.scheduled", "job.started", "job.completed", "job.failed", "job.discarded", "job.retrying", "job.cancelled",
	"job.heartbeat", "job.expired", "job.progress",
	"worker.started", "worker.heartbeat", "worker.quiet", "worker.stopped",
	"queue.paused", "queue.resumed",
	"cron.triggered", "cron.skipped",
	"workflow.started", "workflow.step_completed", "workflow.completed", "workflow.failed",
}
