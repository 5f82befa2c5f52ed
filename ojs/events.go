package ojs

// Types of public events. Polling, streams, webhooks and notifications show no other type. The constants are for [EventFilter],
// [Webhook] and comparisons with [Event.Type]. What each means and carries: docs/reference/events.md, Types.
const (
	// EventJobEnqueued: a job enters available: by enqueue, on schedule, by activation, or by a retry from the dead letters. A
	// retry after a failure is none, unless the server is configured so.
	EventJobEnqueued  = "job.enqueued"
	EventJobScheduled = "job.scheduled"
	// EventJobStarted: a worker has fetched the job.
	EventJobStarted   = "job.started"
	EventJobCompleted = "job.completed"
	// EventJobFailed: an attempt has failed. The event of what follows from it comes next: retrying or discarded; none if the
	// job is available again at once.
	EventJobFailed    = "job.failed"
	EventJobDiscarded = "job.discarded"
	EventJobRetrying  = "job.retrying"
	EventJobCancelled = "job.cancelled"
	// EventJobHeartbeat: a heartbeat has renewed the reservation of the job.
	EventJobHeartbeat = "job.heartbeat"
	// EventJobExpired: a job was discarded because it was not started in time (expires_at, enqueue_ttl).
	EventJobExpired = "job.expired"
	// EventJobProgress is written at most once a second and job, and always for the last report of a run.
	EventJobProgress = "job.progress"

	// EventWorkerStarted is the first sign of a worker. EventWorkerStopped also says that a worker was declared dead; data has
	// the reason.
	EventWorkerStarted   = "worker.started"
	EventWorkerHeartbeat = "worker.heartbeat"
	EventWorkerQuiet     = "worker.quiet"
	EventWorkerStopped   = "worker.stopped"

	// EventQueuePaused and EventQueueResumed: only real changes of the status are events.
	EventQueuePaused  = "queue.paused"
	EventQueueResumed = "queue.resumed"

	// EventQueueCreated and the next four are only written with OJS_EVENTS_EXTENSION_TYPES.
	EventQueueCreated       = "queue.created"
	EventQueueDeleted       = "queue.deleted"
	EventQueueConfigUpdated = "queue.config_updated"
	EventQueueDraining      = "queue.draining"  // takes no more jobs
	EventQueueAccepting     = "queue.accepting" // takes jobs again

	// EventCronTriggered: a tick has made a job. EventCronSkipped: it has not; data has the reason.
	EventCronTriggered = "cron.triggered"
	EventCronSkipped   = "cron.skipped"

	// EventWorkflowStarted: the first job of a workflow was fetched. The others: a job has completed, the workflow has ended.
	EventWorkflowStarted       = "workflow.started"
	EventWorkflowStepCompleted = "workflow.step_completed"
	EventWorkflowCompleted     = "workflow.completed"
	EventWorkflowFailed        = "workflow.failed"
	EventWorkflowCancelled     = "workflow.cancelled" // only with OJS_EVENTS_EXTENSION_TYPES
)

// ExtensionEventTypes lists the public event types that a server writes only if OJS_EVENTS_EXTENSION_TYPES is on.
var ExtensionEventTypes = []string{EventQueueCreated, EventQueueDeleted, EventQueueConfigUpdated, EventQueueDraining, EventQueueAccepting,
	EventWorkflowCancelled}

// EventTypes lists all public event types. Those of ExtensionEventTypes are not among them.
var EventTypes = []string{
	EventJobEnqueued, EventJobScheduled, EventJobStarted, EventJobCompleted, EventJobFailed, EventJobDiscarded, EventJobRetrying,
	EventJobCancelled, EventJobHeartbeat, EventJobExpired, EventJobProgress,
	EventWorkerStarted, EventWorkerHeartbeat, EventWorkerQuiet, EventWorkerStopped,
	EventQueuePaused, EventQueueResumed,
	EventCronTriggered, EventCronSkipped,
	EventWorkflowStarted, EventWorkflowStepCompleted, EventWorkflowCompleted, EventWorkflowFailed,
}
