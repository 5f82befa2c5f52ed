package ojs

// Types of events, the closed catalogue: no other type appears in polling, streams, webhooks or notifications.
const (
	EventJobEnqueued  = "job.enqueued"
	EventJobScheduled = "job.scheduled"
	EventJobStarted   = "job.started"
	EventJobCompleted = "job.completed"
	EventJobFailed    = "job.failed"
	EventJobDiscarded = "job.discarded"
	EventJobRetrying  = "job.retrying"
	EventJobCancelled = "job.cancelled"
	EventJobHeartbeat = "job.heartbeat"
	EventJobExpired   = "job.expired"
	EventJobProgress  = "job.progress"

	EventWorkerStarted   = "worker.started"
	EventWorkerHeartbeat = "worker.heartbeat"
	EventWorkerQuiet     = "worker.quiet"
	EventWorkerStopped   = "worker.stopped"

	EventQueuePaused  = "queue.paused"
	EventQueueResumed = "queue.resumed"

	EventCronTriggered = "cron.triggered"
	EventCronSkipped   = "cron.skipped"

	EventWorkflowStarted       = "workflow.started"
	EventWorkflowStepCompleted = "workflow.step_completed"
	EventWorkflowCompleted     = "workflow.completed"
	EventWorkflowFailed        = "workflow.failed"
)

// EventTypes lists the catalogue.
var EventTypes = []string{
	EventJobEnqueued, EventJobScheduled, EventJobStarted, EventJobCompleted, EventJobFailed, EventJobDiscarded, EventJobRetrying,
	EventJobCancelled, EventJobHeartbeat, EventJobExpired, EventJobProgress,
	EventWorkerStarted, EventWorkerHeartbeat, EventWorkerQuiet, EventWorkerStopped,
	EventQueuePaused, EventQueueResumed,
	EventCronTriggered, EventCronSkipped,
	EventWorkflowStarted, EventWorkflowStepCompleted, EventWorkflowCompleted, EventWorkflowFailed,
}
