package spec

import (
	"fmt"
	"strings"

	"github.com/ojsd/ojsd/ojs"
)

// missing is what a client is told when a resource of a type is absent.
type missing struct {
	noun string // starts the message
	hint string
}

var missingByType = map[string]missing{
	"job":                  {"Job", "Check the id. A finished job is deleted when its retention period is over; GET /ojs/v1/jobs lists the jobs that are stored."},
	"dead_letter_job":      {"Dead letter", "Check the id. A dead letter that was retried, deleted or pruned is gone; GET /ojs/v1/dead-letter lists those that are stored."},
	"worker":               {"Worker", "Check the worker id. A worker is known from its first heartbeat until it deregisters; GET /ojs/v1/workers lists those that are known."},
	"queue":                {"Queue", "Check the name of the queue. A queue exists from its first job until 30 days after its last."},
	"cron":                 {"Cron", "Check the name of the cron; GET /ojs/v1/cron lists those that are registered."},
	"event":                {"Event", "Check the event id. Events are deleted when their retention period is over; GET /ojs/v1/events lists those that are stored."},
	"rate_limit":           {"Rate limit", "Check the key. A rate limit exists from the first job or override that names its key; GET /ojs/v1/rate-limits lists them. That of a queue is queue: and the name of a queue with a limit."},
	"checkpoint":           {"A checkpoint of job", "The job has saved no checkpoint, or it was deleted. Start the work from its beginning."},
	"workflow":             {"Workflow", "Check the id. An ended workflow is deleted when its retention period is over; GET /ojs/v1/workflows lists those that are stored."},
	"webhook_subscription": {"Webhook subscription", "Check the id, which starts with sub_; GET /ojs/v1/webhooks lists the subscriptions."},
	"webhook_delivery":     {"Webhook delivery", "Check the id, which starts with del_. Deliveries are deleted when their retention period is over; GET /ojs/v1/webhooks/deliveries lists those that are stored."},
	"pool":                 {"Pool", "Check the name of the pool; GET /ojs/v1/admin/pools lists those that exist."},
	"schema":               {"Schema", "Check the job type and the version, or the URI in percent-encoding; GET /ojs/v1/schemas lists those that are registered."},
	"tenant":               {"Tenant", "Check the name of the tenant. A tenant is known from its first job; GET /ojs/v1/admin/tenants lists those that are known."},
	"service":              {"Service", "Ask for the empty name, ojs.v1.OJSService or ojs.events.v1.OJSEvents."},
}

// NotFound says that a resource is absent: 404. The JS SDK builds its exception from the two details.
func NotFound(resourceType, id string) *ojs.Error {
	m, known := missingByType[resourceType]
	if !known {
		m = missing{resourceType, "Check the id."}
	}
	e := NewError(ojs.ErrNotFound, fmt.Sprintf("%s %s does not exist.", m.noun, id), map[string]any{"resource_type": resourceType, "resource_id": id})
	e.Hint = m.hint
	return e
}

// NoRoute says that nothing is served under a path: 404. nearest is the route that resembles the request most, such as
// "GET /ojs/v1/jobs/{id}"; "": none does.
func NoRoute(method, path, nearest string) *ojs.Error {
	message := fmt.Sprintf("There is no route %s %s.", method, path)
	if nearest != "" {
		message += fmt.Sprintf(" The nearest one is %s.", nearest)
	}
	e := NewError(ojs.ErrNotFound, message, map[string]any{"resource_type": "route", "resource_id": path})
	e.Hint = "Correct the path or the method. All routes but those of health and metrics are below /ojs/v1; GET /ojs/manifest shows the base URL."
	return e
}

// Conflict says that an operation is illegal in the job's state: 409. expected are the states in which it is legal.
func Conflict(jobID string, current ojs.JobState, expected ...ojs.JobState) *ojs.Error {
	var want any = expected
	if len(expected) == 1 {
		want = expected[0]
	}
	return NewError(ojs.ErrInvalidStateTransition, fmt.Sprintf("Job %s is in state %s; this operation needs %s.", jobID, current, stateList(expected)),
		map[string]any{"job_id": jobID, "current_state": current, "expected_state": want})
}

// NotOwner says that another worker holds the job: 409.
func NotOwner(jobID, workerID, owner string) *ojs.Error {
	return NewError(ojs.ErrNotOwner, fmt.Sprintf("Job %s is reserved for worker_id %s, not for %s.", jobID, owner, workerID),
		map[string]any{"job_id": jobID, "worker_id": workerID, "owner_worker_id": owner})
}

// StaleAttempt says that the job is in another attempt: 409.
func StaleAttempt(jobID string, attempt, current int64) *ojs.Error {
	return NewError(ojs.ErrStaleAttempt, fmt.Sprintf("attempt %d is not the current attempt of job %s, which is %d.", attempt, jobID, current),
		map[string]any{"job_id": jobID, "attempt": attempt, "current_attempt": current})
}

// WorkerLives says that only a dead worker may be deleted: 409.
func WorkerLives(id string) *ojs.Error {
	e := NewError(ojs.ErrInvalidStateTransition, fmt.Sprintf("Worker %s is not stale, and only stale workers can be deleted.", id),
		map[string]any{"resource_type": "worker", "resource_id": id, "expected_state": "stale"})
	e.Hint = "Deregister the worker, direct it to terminate, or wait until it is stale."
	return e
}

// IdempotencyConflict says that a key was used for a different request: 409.
func IdempotencyConflict(key string) *ojs.Error {
	return NewError(ojs.ErrIdempotencyConflict, fmt.Sprintf("idempotency_key %q was already used with a different request body.", key),
		map[string]any{"field": "idempotency_key", "idempotency_key": key})
}

// DuplicateID says that a client-chosen id is taken: 409.
func DuplicateID(id string) *ojs.Error {
	return NewError(ojs.ErrDuplicateJob, fmt.Sprintf("A job with id %s already exists.", id),
		map[string]any{"field": "id", "existing_job_id": id})
}

// Duplicate says that a live job holds the unique key: 409. The key is given under both names that clients read.
func Duplicate(existingID string, state ojs.JobState, uniqueKey string) *ojs.Error {
	return NewError(ojs.ErrDuplicateJob, fmt.Sprintf("An equivalent job, %s, already exists in state %s.", existingID, state), map[string]any{
		"existing_job_id": existingID, "existing_job_state": state, "unique_key": uniqueKey, "uniqueness_key": uniqueKey,
	})
}

// DuplicateInRequest says that a job before it in the same request, which is not stored either, has the unique key: 409.
func DuplicateInRequest(uniqueKey string) *ojs.Error {
	return NewError(ojs.ErrDuplicateJob, "A job before it in this request is equivalent; nothing was stored.",
		map[string]any{"unique_key": uniqueKey, "uniqueness_key": uniqueKey})
}

// QueuePaused refuses a job for a draining queue: 422.
func QueuePaused(queue string) *ojs.Error {
	return NewError(ojs.ErrQueuePaused, fmt.Sprintf("Queue %s is draining and takes no new jobs.", queue),
		map[string]any{"field": "queue", "queue": queue})
}

// JobTypeNotAllowed refuses a job whose type the queue does not take: 422.
func JobTypeNotAllowed(queue, jobType string) *ojs.Error {
	return NewError(ojs.ErrJobTypeNotAllowed, fmt.Sprintf("Queue %s takes no jobs of type %s (allowed_job_types).", queue, jobType),
		map[string]any{"queue": queue, "job_type": jobType})
}

// ProducerNotAllowed refuses a job of a client from which the queue takes none: 403.
func ProducerNotAllowed(queue string) *ojs.Error {
	return NewError(ojs.ErrPermissionDenied, fmt.Sprintf("queue %s takes no jobs of this API key (producers).", queue), map[string]any{"queue": queue})
}

// QueueExists refuses to create a queue that exists: 409.
func QueueExists(queue string) *ojs.Error {
	return QueueState(queue, fmt.Sprintf("queue %s exists already; change it with PUT /ojs/v1/queues/%s/config.", queue, queue), nil)
}

// QueueState refuses a change that the state of a queue does not allow: 409.
func QueueState(queue, message string, details map[string]any) *ojs.Error {
	if details == nil {
		details = map[string]any{}
	}
	details["queue"] = queue
	return NewError(ojs.ErrInvalidStateTransition, message, details)
}

// FullQueue describes a queue that has no room for a job.
type FullQueue struct {
	Queue    string
	Tenant   string // whose part of the queue is full; "": the queue is
	Strategy string // reject, block or drop_oldest
	Depth    int64  // jobs that wait
	Bound    int64  // most jobs that may; 0: any number

	// Bytes of the jobs that wait, and the most that they may have; MaxBytes 0: any number.
	Bytes, MaxBytes int64

	RetryAfter int // s
}

// QueueFull refuses a job for a queue at its bound: 429.
func QueueFull(f FullQueue) *ojs.Error {
	bound := fmt.Sprintf("%d jobs", f.Bound)
	details := map[string]any{"field": "queue", "queue": f.Queue, "strategy": f.Strategy, "depth": f.Depth, "retry_after_seconds": f.RetryAfter}
	if f.Bound > 0 {
		details["bound"] = f.Bound
	}
	if f.MaxBytes > 0 {
		details["size_bytes"], details["max_size_bytes"] = f.Bytes, f.MaxBytes
		if f.Bound == 0 || f.Depth < f.Bound {
			bound = fmt.Sprintf("%d bytes", f.MaxBytes)
		}
	}
	if f.Tenant != "" {
		details["tenant_id"] = f.Tenant
		return NewError(ojs.ErrQueueFull, fmt.Sprintf("Tenant '%s' reached its bound of %s in queue '%s'.", f.Tenant, bound, f.Queue), details)
	}
	return NewError(ojs.ErrQueueFull, fmt.Sprintf("Queue '%s' reached its bound of %s.", f.Queue, bound), details)
}

// RateLimited refuses a request over the API limit: 429.
func RateLimited(limit, windowSeconds, retryAfterSeconds int) *ojs.Error {
	return NewError(ojs.ErrRateLimited, fmt.Sprintf("More than %d requests in %d s; wait %d s.", limit, windowSeconds, retryAfterSeconds),
		map[string]any{"limit": limit, "window_seconds": windowSeconds, "retry_after_seconds": retryAfterSeconds})
}

// Unavailable says that PostgreSQL cannot be reached, that no connection is free, or that the server drains: 503.
func Unavailable() *ojs.Error {
	return NewError(ojs.ErrUnavailable, "The database cannot be reached, no connection to it is free, or the server is stopping; send the request again shortly.", nil)
}

// Overloaded says that a node has as many bytes of requests in memory as it takes, because the database is slow: 503.
func Overloaded() *ojs.Error {
	return NewError(ojs.ErrUnavailable, "This node has no memory left for request bodies while earlier ones wait for the database; nothing was done. Send the request again shortly.", nil)
}

// Timeout says that the database did not answer in time: 504.
func Timeout() *ojs.Error {
	return NewError(ojs.ErrTimeout, "The database did not complete the request in time; send the request again.", nil)
}

// Internal hides an unexpected failure, which is logged whole: 500.
func Internal() *ojs.Error {
	return NewError(ojs.ErrInternal, "An unexpected error occurred; it has been logged with the request id.", nil)
}

func stateList(states []ojs.JobState) string {
	var text strings.Builder
	for i, s := range states {
		if i > 0 {
			text.WriteString(" or ")
		}
		text.WriteString(string(s))
	}
	return text.String()
}

// OutcomeUnknown says that the connection to the database broke, or the database did not answer in time, after a change had
// been sent, and that its outcome could not be found out: 504.
func OutcomeUnknown() *ojs.Error {
	e := NewError(ojs.ErrTimeout, "The request was sent to the database, and whether it was carried out could not be found out in time.",
		map[string]any{"outcome": "unknown"})
	e.Hint = "Look whether it was carried out, or send it again: an enqueue with the same id or Idempotency-Key never makes a second job, and an ack with worker_id and attempt never ends another run."
	return e
}
