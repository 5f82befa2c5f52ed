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

	EventQueueCreated       = "queue.created" // only with OJS_EVENTS_EXTENSION_TYPES, like the next two
	EventQueueDeleted       = "queue.deleted"
	EventQueueConfigUpdated = "queue.config_updated"

	EventCronTriggered = "cron.triggered"
	EventCronSkipped   = "cron.skipped"

	EventWorkflowStarted       = "workflow.started"
	EventWorkflowStepCompleted = "workflow.step_completed"
	EventWorkflowCompleted     = "workflow.completed"
	EventWorkflowFailed        = "workflow.failed"
)

// ExtensionEventTypes lists the public event types that a server writes only if OJS_EVENTS_EXTENSION_TYPES is on.
var ExtensionEventTypes = []string{EventQueueCreated, EventQueueDeleted, EventQueueConfigUpdated}

// EventTypes lists all public event types.
var EventTypes = []string{
	EventJobEnqueued, EventJobScheduled, EventJobStarted, EventJobCompleted, EventJobFailed, EventJobDiscarded, EventJobRetrying,
	EventJobCancelled, EventJobHeartbeat, EventJobExpired, EventJobProgress,
	EventWorkerStarted, EventWorkerHeartbeat, EventWorkerQuiet, EventWorkerStopped,
	EventQueuePaused, EventQueueResumed,
	EventCronTriggered, EventCronSkipped,
	EventWorkflowStarted, EventWorkflowStepCompleted, EventWorkflowCompleted, EventWorkflowFailed,
}
