package ojs

// Types of public events. Polling, streams, webhooks and notifications show no other type.
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

// EventTypes lists all public event types.
var EventTypes = []string{
	EventJobEnqueued, EventJobScheduled, EventJobStarted, EventJobCompleted, EventJobFailed, EventJobDiscarded, EventJobRetrying,
	EventJobCancelled, EventJobHeartbeat, EventJobExpired, EventJobProgress,
	EventWorkerStarted, EventWorkerHeartbeat, EventWorkerQuiet, EventWorkerStopped,
	EventQueuePaused, EventQueueResumed,
	EventCronTriggered, EventCronSkipped,
	EventWorkflowStarted, EventWorkflowStepCompleted, EventWorkflowCompleted, EventWorkflowFailed,
}
