package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/riverqueue/river/rivershared/levenshtein"

	"github.com/ojsd/ojsd/ojs"
)

// InvalidPayload refuses a field of the request body: 400. received is left out if nil. The constructors of this file are
// those of the server and of package ojstest. Clients get their results as an [*ojs.Error].
func InvalidPayload(field, expected string, received any, message string) *ojs.Error {
	return InvalidField(ojs.ErrInvalidPayload, field, expected, received, message)
}

// InvalidField is InvalidPayload for a field that has a type of its own (invalid_queue, job_type_too_long, …).
func InvalidField(kind ojs.ErrorKind, field, expected string, received any, message string) *ojs.Error {
	details := make(map[string]any, 4)
	set(details, "field", field)
	set(details, "expected", expected)
	if received != nil {
		details["received"] = received
	}
	return NewError(kind, message, details)
}

// InvalidRequest refuses a query parameter, header or cursor: 400.
func InvalidRequest(parameter, expected string, received any, message string) *ojs.Error {
	e := InvalidField(ojs.ErrInvalidRequest, parameter, expected, received, message)
	return With(e, "parameter", parameter)
}

// MethodNotAllowed refuses a known path with another method: 405. allowed is the content of the Allow header.
func MethodNotAllowed(method, path string, allowed []string) *ojs.Error {
	return NewError(ojs.ErrMethodNotAllowed, fmt.Sprintf("Method %s is not allowed on %s; use %s.", method, path,
		strings.Join(allowed, ", ")),
		map[string]any{"method": method, "allowed": allowed})
}

// Validation refuses a well-formed but inadmissible policy: 422. message must contain the bare name of the field.
func Validation(field string, received any, message string) *ojs.Error {
	e := InvalidField(ojs.ErrValidation, field, "", received, message)
	// The name of the kind is that of its first use, retry policies, which misleads for anything else.
	if !strings.HasPrefix(field, "retry") && field != "max_attempts" {
		e.DocsURL = docsURL + "INVALID_PAYLOAD"
	}
	return e
}

// NoCertificate refuses a client that has shown no certificate of an authority that the server knows: 401.
func NoCertificate() *ojs.Error {
	e := NewError(ojs.ErrUnauthenticated, "A client certificate is required.", nil)
	e.Hint = "Connect with a certificate that is signed by an authority in the server's setting OJS_TLS_CLIENT_CA."
	return e
}

// Unsupported refuses what this server does not offer: 422.
func Unsupported(message string, details map[string]any) *ojs.Error {
	return NewError(ojs.ErrUnsupported, message, details)
}

// Version refuses a spec version: 422. field is specversion or the OJS-Version header.
func Version(field, requested string) *ojs.Error {
	return Unsupported(fmt.Sprintf("%s %q is not supported; send 1.0.", field, requested),
		map[string]any{"field": field, "requested": requested, "supported": []string{"1.0"}})
}

// Compression refuses a Content-Encoding: 415.
func Compression(received string) *ojs.Error {
	return NewError(ojs.ErrCompression, fmt.Sprintf("Content-Encoding %q is not supported; use gzip or identity.", received),
		map[string]any{"received": received, "supported": []string{"gzip", "identity"}})
}

// Unauthenticated refuses a request without a known key: 401.
func Unauthenticated() *ojs.Error {
	return NewError(ojs.ErrUnauthenticated, "Authentication is required: send a valid key in the Authorization header.", nil)
}

// PermissionDenied refuses a known key that lacks scope: 403.
func PermissionDenied(scope string) *ojs.Error {
	return NewError(ojs.ErrPermissionDenied, fmt.Sprintf("This key lacks the scope %s.", scope), map[string]any{"scope": scope})
}

// TooLarge refuses a value over its byte limit: 413. field is envelope, batch, result, … or meta, which has a code of
// its own. actual is left out if 0 (not known because reading stopped at the limit).
func TooLarge(field string, limit, actual int) *ojs.Error {
	kind := ojs.ErrPayloadTooLarge
	if field == "meta" {
		kind = ojs.ErrMetadataTooLarge
	}
	if actual <= 0 {
		return NewError(kind, fmt.Sprintf("%s is larger than the limit of %d bytes.", field, limit),
			map[string]any{"field": field, "max_bytes": limit})
	}
	return NewError(kind, fmt.Sprintf("%s has %d bytes; the limit is %d bytes.", field, actual, limit),
		map[string]any{"field": field, "max_bytes": limit, "actual_bytes": actual})
}

// BatchSize refuses too many items: 413.
func BatchSize(limit, actual int) *ojs.Error {
	return NewError(ojs.ErrBatchSize, fmt.Sprintf("The request has %d items; send at most %d.", actual, limit),
		map[string]any{"field": "batch", "max_batch_size": limit, "actual_size": actual})
}

// Indexed marks e as the failure of one item of a batch. It changes e: the message begins with the place of the job, and
// details.index has it as a number, from 0.
func Indexed(e *ojs.Error, index int) *ojs.Error {
	e.Message = fmt.Sprintf("job at index %d: %s", index, e.Message)
	return With(e, "index", index)
}

func set(details map[string]any, key, value string) {
	if value != "" {
		details[key] = value
	}
}

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
	e := NewError(ojs.ErrNotFound, fmt.Sprintf("%s %s does not exist.", m.noun, id), map[string]any{"resource_type": resourceType,
		"resource_id": id})
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
	return NewError(ojs.ErrInvalidStateTransition, fmt.Sprintf("Job %s is in state %s; this operation needs %s.", jobID, current,
		stateList(expected)),
		map[string]any{"job_id": jobID, "current_state": current, "expected_state": want})
}

// NotOwner says that another worker holds the job: 409.
func NotOwner(jobID, workerID, owner string) *ojs.Error {
	return NewError(ojs.ErrNotOwner, fmt.Sprintf("Job %s is reserved for worker_id %s, not for %s.", jobID, owner, workerID),
		map[string]any{"job_id": jobID, "worker_id": workerID, "owner_worker_id": owner})
}

// StaleAttempt says that the job is in another attempt: 409.
func StaleAttempt(jobID string, attempt, current int64) *ojs.Error {
	return NewError(ojs.ErrStaleAttempt, fmt.Sprintf("attempt %d is not the current attempt of job %s, which is %d.", attempt, jobID,
		current),
		map[string]any{"job_id": jobID, "attempt": attempt, "current_attempt": current})
}

// StaleLease says that the job is in another run than the one that a lease token names: 409.
func StaleLease(jobID string, current int64) *ojs.Error {
	return NewError(ojs.ErrStaleAttempt, fmt.Sprintf("lease_token is not that of the current run of job %s, its attempt %d.", jobID, current),
		map[string]any{"job_id": jobID, "current_attempt": current})
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
	return NewError(ojs.ErrDuplicateJob, fmt.Sprintf("An equivalent job, %s, already exists in state %s.", existingID, state),
		map[string]any{
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
	return NewError(ojs.ErrPermissionDenied, fmt.Sprintf("queue %s takes no jobs of this API key (producers).", queue),
		map[string]any{"queue": queue})
}

// QueueExists refuses to create a queue that exists: 409.
func QueueExists(queue string) *ojs.Error {
	return NewError(ojs.ErrQueueExists, fmt.Sprintf("queue %s exists already; change it with PUT /ojs/v1/queues/%s/config.", queue, queue),
		map[string]any{"queue": queue})
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
	details := map[string]any{"field": "queue", "queue": f.Queue, "strategy": f.Strategy, "depth": f.Depth,
		"retry_after_seconds": f.RetryAfter}
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
		return NewError(ojs.ErrQueueFull, fmt.Sprintf("Tenant '%s' reached its bound of %s in queue '%s'.", f.Tenant, bound, f.Queue),
			details)
	}
	return NewError(ojs.ErrQueueFull, fmt.Sprintf("Queue '%s' reached its bound of %s.", f.Queue, bound), details)
}

// TooManyKeys refuses a key that was not seen from an address before, after too many unknown ones from there: 429.
func TooManyKeys(limit int, wait time.Duration) *ojs.Error {
	return NewError(ojs.ErrRateLimited, fmt.Sprintf("This address has sent %d different unknown API keys; further keys are refused for a while.", limit),
		map[string]any{"limit": limit, "retry_after_seconds": int(math.Ceil(wait.Seconds()))})
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

// class is one row of the catalogue. An empty code equals the kind; an empty doc is the kind in upper case, which is also
// the rule for kinds that have no canonical name.
type class struct {
	code      string
	retryable bool
	doc       string
	hint      string
}

// catalogue is the only place that knows codes and hints. ojs.ErrQueueFull's upper-case code is fixed by a public
// conformance test. A kind without an entry makes NewError panic. Clients compare codes and kinds, so an entry is never
// renamed.
var catalogue = map[ojs.ErrorKind]class{
	ojs.ErrInvalidPayload: {"", false, "", "Correct the field named in details and send the request again."},
	ojs.ErrInvalidJobType: {"invalid_payload", false, "INVALID_PAYLOAD",
		"Send a job type of lower-case words joined by dots, each beginning with a letter, such as invoice.render."},
	ojs.ErrInvalidQueue: {"invalid_payload", false, "INVALID_PAYLOAD",
		"Send a queue name of lower-case letters, digits, hyphens and dots."},
	ojs.ErrInvalidArgs: {"invalid_payload", false, "INVALID_PAYLOAD",
		"Send args as a JSON array; send a single value as an array of one element."},
	ojs.ErrInvalidMetadata: {"invalid_payload", false, "INVALID_PAYLOAD", "Send meta as a JSON object."},
	ojs.ErrInvalidCron: {"invalid_payload", false, "INVALID_PAYLOAD",
		"Send five or six cron fields, or a descriptor such as @hourly."},
	ojs.ErrQueueNameTooLong: {"invalid_payload", false, "INVALID_PAYLOAD", "Use a queue name of at most 128 bytes."},
	ojs.ErrJobTypeTooLong:   {"invalid_payload", false, "INVALID_PAYLOAD", "Use a job type of at most 255 bytes."},
	ojs.ErrInvalidRequest:   {"", false, "INVALID_PAYLOAD", "Correct the header, query parameter or cursor named in details."},
	ojs.ErrMethodNotAllowed: {"invalid_request", false, "", "Use one of the methods in the Allow header."},
	ojs.ErrValidation: {"", false, "INVALID_RETRY_POLICY",
		"Correct the field named in details; an optional field that is left out takes its default."},
	ojs.ErrSchemaValidation:       {"", false, "SCHEMA_VALIDATION_FAILED", "Send args that satisfy the registered schema."},
	ojs.ErrUnsupported:            {"", false, "UNSUPPORTED_FEATURE", "See GET /ojs/manifest for what this server offers."},
	ojs.ErrCompression:            {"", false, "", "Send the body uncompressed or with Content-Encoding: gzip."},
	ojs.ErrUnauthenticated:        {"", false, "", "Send a configured key as Authorization: Bearer <key>."},
	ojs.ErrPermissionDenied:       {"", false, "", "Send the request with a key, or from an origin, that has the permission named in the message."},
	ojs.ErrNotFound:               {"", false, "", "Check the id."},
	ojs.ErrInvalidStateTransition: {"conflict", false, "", "Read the current state and decide anew; sending the same request again fails again."},
	ojs.ErrNotOwner: {"conflict", false, "INVALID_STATE_TRANSITION",
		"Another worker runs the job now: discard the outcome of this run and do not report it again."},
	ojs.ErrStaleAttempt: {"conflict", false, "INVALID_STATE_TRANSITION",
		"The job is in another attempt: discard the outcome of this one and do not report it again."},
	ojs.ErrIdempotencyConflict: {"conflict", false, "", "Use a new idempotency key for a different request."},
	ojs.ErrDuplicateJob:        {"duplicate", false, "", "Read the existing job named in details, or send another id or unique key."},
	ojs.ErrPayloadTooLarge:     {"", false, "", "Send less data; keep large content elsewhere and pass a reference."},
	ojs.ErrMetadataTooLarge:    {"", false, "", "Move large values out of meta, into args or an external store."},
	ojs.ErrBatchSize:           {"", false, "PAYLOAD_TOO_LARGE", "Split the request into smaller batches."},
	ojs.ErrQueuePaused:         {"", true, "", "Wait until the queue is resumed, or use another queue."},
	ojs.ErrQueueFull:           {"QUEUE_FULL", true, "", "Wait as Retry-After says, then send the job again."},
	ojs.ErrRateLimited:         {"", true, "", "Wait as Retry-After says, then send the request again."},
	ojs.ErrInternal: {"", true, "BACKEND_ERROR",
		"Send the request again; if it keeps failing, give the request id to the operator of the server."},
	ojs.ErrUnavailable: {"backend_error", true, "", "Wait as Retry-After says, then send the request again."},
	ojs.ErrTimeout: {"backend_error", true, "",
		"Send the request again; divide a large one. If it keeps failing, the database is overloaded or another transaction holds a lock."},
	ojs.ErrJobTypeNotAllowed: {"", false, "", "Use a queue that admits this job type, or extend allowed_job_types."},
	ojs.ErrWaitTimeout:       {"", true, "", "Send the request again; the job has not finished yet."},
	ojs.ErrCursorExpired:     {"", false, "", "Events were deleted since: read the current state of your jobs, then read the events that are kept by a request without after, because after leaves out the event that it names."},
	ojs.ErrQueueExists:       {"conflict", false, "", "Use the queue as it is, or change its configuration."},
	ojs.ErrSchemaExists:      {"conflict", false, "", "Register the changed schema as a new version, or delete the registered one before."},
	ojs.ErrResultPruned:      {"", false, "", "Read results before their result_ttl is over, or enqueue jobs with a longer result_ttl."},
}

// Kinds lists all kinds, in no order.
func Kinds() []ojs.ErrorKind {
	return slices.Collect(maps.Keys(catalogue))
}

// maxComparedName bounds what an unknown name costs: a longer one is compared with no other.
const maxComparedName = 64

// UnknownHint is the hint of what UnknownName describes.
const UnknownHint = "Correct the name, or leave it out: a call does nothing that it does not understand."

// UnknownName describes a parameter or member that a call does not know: what it knows, and a sentence with the nearest of these. field
// may have the names of the objects around it.
func UnknownName(field string, known []string) (expected, message string) {
	if len(known) == 0 {
		return "absent", fmt.Sprintf("'%s' is unknown: this call takes none.", shortened(field))
	}
	expected = "one of " + strings.Join(known, ", ")
	if nearest := nearestName(field[strings.LastIndexByte(field, '.')+1:], known); nearest != "" {
		return expected, fmt.Sprintf("'%s' is unknown; the nearest known name is '%s'.", field, nearest)
	}
	return expected, fmt.Sprintf("'%s' is unknown; known are %s.", shortened(field), strings.Join(known, ", "))
}

// nearestName is the known name with the smallest edit distance, at most 3, or one that is a part of the name or has it as a part;
// "": none is near.
func nearestName(name string, known []string) (nearest string) {
	if len(name) > maxComparedName || len(name) < 2 {
		return ""
	}
	least := min(4, len(name))
	for _, other := range known {
		distance := levenshtein.ComputeDistance(name, other)
		if strings.Contains(name, other) || strings.Contains(other, name) {
			distance = min(distance, 2)
		}
		if distance < least {
			nearest, least = other, distance
		}
	}
	return nearest
}

func shortened(name string) string {
	if len(name) > maxComparedName {
		return strings.ToValidUTF8(name[:maxComparedName], "") + "…"
	}
	return name
}
