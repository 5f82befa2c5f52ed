package spec

import (
	"maps"
	"slices"

	"github.com/ojsd/ojsd/ojs"
)

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
	ojs.ErrInvalidPayload:         {"", false, "", "Correct the field named in details and send the request again."},
	ojs.ErrInvalidJobType:         {"invalid_payload", false, "INVALID_PAYLOAD", "Send a job type of lower-case words joined by dots, such as invoice.render."},
	ojs.ErrInvalidQueue:           {"invalid_payload", false, "INVALID_PAYLOAD", "Send a queue name of lower-case letters, digits, hyphens and dots."},
	ojs.ErrInvalidArgs:            {"invalid_payload", false, "INVALID_PAYLOAD", "Send args as a JSON array; send a single value as an array of one element."},
	ojs.ErrInvalidMetadata:        {"invalid_payload", false, "INVALID_PAYLOAD", "Send meta as a JSON object."},
	ojs.ErrInvalidCron:            {"invalid_payload", false, "INVALID_PAYLOAD", "Send five or six cron fields, or a descriptor such as @hourly."},
	ojs.ErrQueueNameTooLong:       {"invalid_payload", false, "INVALID_PAYLOAD", "Use a queue name of at most 128 bytes."},
	ojs.ErrJobTypeTooLong:         {"invalid_payload", false, "INVALID_PAYLOAD", "Use a job type of at most 255 bytes."},
	ojs.ErrInvalidRequest:         {"", false, "INVALID_PAYLOAD", "Correct the header, query parameter or cursor named in details."},
	ojs.ErrMethodNotAllowed:       {"invalid_request", false, "", "Use one of the methods in the Allow header."},
	ojs.ErrValidation:             {"", false, "INVALID_RETRY_POLICY", "Correct the field named in details; an optional field that is left out takes its default."},
	ojs.ErrSchemaValidation:       {"", false, "SCHEMA_VALIDATION_FAILED", "Send args that satisfy the registered schema."},
	ojs.ErrUnsupported:            {"", false, "UNSUPPORTED_FEATURE", "See GET /ojs/manifest for what this server offers."},
	ojs.ErrCompression:            {"", false, "", "Send the body uncompressed or with Content-Encoding: gzip."},
	ojs.ErrUnauthenticated:        {"", false, "", "Send a configured key as Authorization: Bearer <key>."},
	ojs.ErrPermissionDenied:       {"", false, "", "Send the request with a key, or from an origin, that has the permission named in the message."},
	ojs.ErrNotFound:               {"", false, "", "Check the id."},
	ojs.ErrInvalidStateTransition: {"conflict", false, "", "Read the current state and decide anew; sending the same request again fails again."},
	ojs.ErrNotOwner:               {"conflict", false, "INVALID_STATE_TRANSITION", "Another worker runs the job now: discard the outcome of this run and do not report it again."},
	ojs.ErrStaleAttempt:           {"conflict", false, "INVALID_STATE_TRANSITION", "The job is in another attempt: discard the outcome of this one and do not report it again."},
	ojs.ErrIdempotencyConflict:    {"conflict", false, "", "Use a new idempotency key for a different request."},
	ojs.ErrDuplicateJob:           {"duplicate", false, "", "Read the existing job named in details, or send another id or unique key."},
	ojs.ErrPayloadTooLarge:        {"", false, "", "Send less data; keep large content elsewhere and pass a reference."},
	ojs.ErrMetadataTooLarge:       {"", false, "", "Move large values out of meta, into args or an external store."},
	ojs.ErrBatchSize:              {"", false, "PAYLOAD_TOO_LARGE", "Split the request into smaller batches."},
	ojs.ErrQueuePaused:            {"", true, "", "Wait until the queue is resumed, or use another queue."},
	ojs.ErrQueueFull:              {"QUEUE_FULL", true, "", "Wait as Retry-After says, then send the job again."},
	ojs.ErrRateLimited:            {"", true, "", "Wait as Retry-After says, then send the request again."},
	ojs.ErrInternal:               {"", true, "BACKEND_ERROR", "Send the request again; if it keeps failing, give the request id to the operator of the server."},
	ojs.ErrUnavailable:            {"backend_error", true, "", "Wait as Retry-After says, then send the request again."},
	ojs.ErrTimeout:                {"backend_error", true, "", "Send the request again; divide a large one. If it keeps failing, the database is overloaded or another transaction holds a lock."},
	ojs.ErrJobTypeNotAllowed:      {"", false, "", "Use a queue that admits this job type, or extend allowed_job_types."},
	ojs.ErrWaitTimeout:            {"", true, "", "Send the request again; the job has not finished yet."},
	ojs.ErrCursorExpired:          {"", false, "", "Events were deleted since: read the current state of your jobs, then read the events that are kept by a request without after, because after leaves out the event that it names."},
	ojs.ErrSchemaExists:           {"conflict", false, "", "Register the changed schema as a new version, or delete the registered one before."},
	ojs.ErrResultPruned:           {"", false, "", "Read results before their result_ttl is over, or enqueue jobs with a longer result_ttl."},
}

// Kinds lists all kinds, in no order.
func Kinds() []ojs.ErrorKind {
	return slices.Collect(maps.Keys(catalogue))
}
