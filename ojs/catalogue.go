package ojs

import (
	"maps"
	"slices"
)

// ErrorKind is the `type` of an error. It decides code, retryability and hint; see catalogue. Which status a transport
// answers with is the transport's business. A kind is an error itself, so that errors.Is(err, ojs.KindNotFound) works.
type ErrorKind string

// The kinds of docs/reference/errors.md, Catalogue; x_ marks those of this server.
const (
	// KindInvalidPayload is 400: the body, or a field of it, is malformed. The first seven that follow have the code
	// invalid_payload, so errors.Is with KindInvalidPayload matches them too.
	KindInvalidPayload   ErrorKind = "invalid_payload"
	KindInvalidJobType   ErrorKind = "invalid_job_type"
	KindInvalidQueue     ErrorKind = "invalid_queue"
	KindInvalidArgs      ErrorKind = "invalid_args"
	KindInvalidMetadata  ErrorKind = "invalid_metadata"
	KindInvalidCron      ErrorKind = "invalid_cron_expression"
	KindQueueNameTooLong ErrorKind = "queue_name_too_long"
	KindJobTypeTooLong   ErrorKind = "job_type_too_long"
	// KindInvalidRequest is 400: a query parameter, header or cursor; 405 for KindMethodNotAllowed, which has the code
	// invalid_request.
	KindInvalidRequest   ErrorKind = "invalid_request"
	KindMethodNotAllowed ErrorKind = "method_not_allowed"
	// KindValidation, like the next two, is 422: the request is well-formed, but a policy in it, the args, or a feature that it
	// asks for is not acceptable. 415 for KindCompression.
	KindValidation       ErrorKind = "validation_error"
	KindSchemaValidation ErrorKind = "schema_validation"
	KindUnsupported      ErrorKind = "unsupported"
	KindCompression      ErrorKind = "unsupported_compression"
	// KindUnauthenticated is 401: no known key was sent. KindPermissionDenied is 403: the key, the tenant or the queue does not
	// allow it. KindNotFound is 404: the thing does not exist, or does not any more.
	KindUnauthenticated  ErrorKind = "unauthenticated"
	KindPermissionDenied ErrorKind = "permission_denied"
	KindNotFound         ErrorKind = "not_found"
	// KindInvalidStateTransition, like the next three, is 409 with the code conflict: what is asked for does not fit the
	// present state, owner or attempt. Sending it again fails again.
	KindInvalidStateTransition ErrorKind = "invalid_state_transition"
	KindNotOwner               ErrorKind = "not_owner"
	KindStaleAttempt           ErrorKind = "stale_attempt"
	KindIdempotencyConflict    ErrorKind = "idempotency_key_conflict"
	// KindDuplicateJob is 409 with the code duplicate: the id is taken, or an equivalent job exists. Its id is [ErrorDetail]
	// existing_job_id.
	KindDuplicateJob ErrorKind = "duplicate_job"
	// KindPayloadTooLarge, like the next two, is 413: the limits are those of docs/reference/jobs.md, Limits.
	KindPayloadTooLarge  ErrorKind = "payload_too_large"
	KindMetadataTooLarge ErrorKind = "metadata_too_large"
	KindBatchSize        ErrorKind = "batch_size_exceeded"
	// KindQueuePaused is 422 and retryable: the queue is draining and takes no new jobs. Fetches of a paused queue are no
	// error: they find nothing.
	KindQueuePaused ErrorKind = "queue_paused"
	// KindQueueFull, like KindRateLimited, is 429 with a time to wait ([RetryAfter]): a bounded queue has no room, or too many
	// streams are open.
	KindQueueFull   ErrorKind = "queue_full"
	KindRateLimited ErrorKind = "rate_limited"
	// KindInternal is 500, KindUnavailable 503 and KindTimeout 504: the server or its database. [OutcomeUnknown] tells whether
	// the request may have been carried out.
	KindInternal    ErrorKind = "internal_error"
	KindUnavailable ErrorKind = "backend_unavailable"
	KindTimeout     ErrorKind = "backend_timeout"
	// KindJobTypeNotAllowed is 422: the configuration of the queue excludes the job type.
	KindJobTypeNotAllowed ErrorKind = "x_job_type_not_allowed"
	// KindWaitTimeout is 408: the job has not ended within the wait for its result; [Client.Wait] goes on by itself.
	KindWaitTimeout ErrorKind = "x_wait_timeout"
	// KindResultPruned, like KindCursorExpired, is 410: the result, or the events behind a cursor, are not kept any more.
	KindResultPruned  ErrorKind = "x_result_pruned"
	KindCursorExpired ErrorKind = "x_cursor_expired"
	// KindSchemaExists is 409: another document is registered under this version or URI.
	KindSchemaExists ErrorKind = "x_schema_exists"
)

// class is one row of the catalogue. An empty code equals the kind; an empty doc is the kind in upper case, which is also
// the rule for kinds that have no canonical name.
type class struct {
	code      string
	retryable bool
	doc       string
	hint      string
}

// catalogue is the only place that knows codes and hints. KindQueueFull's upper-case code is fixed by a public
// conformance test. A kind without an entry makes NewError panic. Clients compare codes and kinds, so an entry is never
// renamed.
var catalogue = map[ErrorKind]class{
	KindInvalidPayload:         {"", false, "", "Correct the field named in details and send the request again."},
	KindInvalidJobType:         {"invalid_payload", false, "INVALID_PAYLOAD", "Send a job type of lower-case words joined by dots, such as invoice.render."},
	KindInvalidQueue:           {"invalid_payload", false, "INVALID_PAYLOAD", "Send a queue name of lower-case letters, digits, hyphens and dots."},
	KindInvalidArgs:            {"invalid_payload", false, "INVALID_PAYLOAD", "Send args as a JSON array; send a single value as an array of one element."},
	KindInvalidMetadata:        {"invalid_payload", false, "INVALID_PAYLOAD", "Send meta as a JSON object."},
	KindInvalidCron:            {"invalid_payload", false, "INVALID_PAYLOAD", "Send five or six cron fields, or a descriptor such as @hourly."},
	KindQueueNameTooLong:       {"invalid_payload", false, "INVALID_PAYLOAD", "Use a queue name of at most 128 bytes."},
	KindJobTypeTooLong:         {"invalid_payload", false, "INVALID_PAYLOAD", "Use a job type of at most 255 bytes."},
	KindInvalidRequest:         {"", false, "INVALID_PAYLOAD", "Correct the header, query parameter or cursor named in details."},
	KindMethodNotAllowed:       {"invalid_request", false, "", "Use one of the methods in the Allow header."},
	KindValidation:             {"", false, "INVALID_RETRY_POLICY", "Correct the field named in details; an optional field that is left out takes its default."},
	KindSchemaValidation:       {"", false, "SCHEMA_VALIDATION_FAILED", "Send args that satisfy the registered schema."},
	KindUnsupported:            {"", false, "UNSUPPORTED_FEATURE", "See GET /ojs/manifest for what this server offers."},
	KindCompression:            {"", false, "", "Send the body uncompressed or with Content-Encoding: gzip."},
	KindUnauthenticated:        {"", false, "", "Send a configured key as Authorization: Bearer <key>."},
	KindPermissionDenied:       {"", false, "", "Send the request with a key, or from an origin, that has the permission named in the message."},
	KindNotFound:               {"", false, "", "Check the id."},
	KindInvalidStateTransition: {"conflict", false, "", "Read the current state and decide anew; sending the same request again fails again."},
	KindNotOwner:               {"conflict", false, "INVALID_STATE_TRANSITION", "Another worker runs the job now: discard the outcome of this run and do not report it again."},
	KindStaleAttempt:           {"conflict", false, "INVALID_STATE_TRANSITION", "The job is in another attempt: discard the outcome of this one and do not report it again."},
	KindIdempotencyConflict:    {"conflict", false, "", "Use a new idempotency key for a different request."},
	KindDuplicateJob:           {"duplicate", false, "", "Read the existing job named in details, or send another id or unique key."},
	KindPayloadTooLarge:        {"", false, "", "Send less data; keep large content elsewhere and pass a reference."},
	KindMetadataTooLarge:       {"", false, "", "Move large values out of meta, into args or an external store."},
	KindBatchSize:              {"", false, "PAYLOAD_TOO_LARGE", "Split the request into smaller batches."},
	KindQueuePaused:            {"", true, "", "Wait until the queue is resumed, or use another queue."},
	KindQueueFull:              {"QUEUE_FULL", true, "", "Wait as Retry-After says, then send the job again."},
	KindRateLimited:            {"", true, "", "Wait as Retry-After says, then send the request again."},
	KindInternal:               {"", true, "BACKEND_ERROR", "Send the request again; if it keeps failing, give the request id to the operator of the server."},
	KindUnavailable:            {"backend_error", true, "", "Wait as Retry-After says, then send the request again."},
	KindTimeout:                {"backend_error", true, "", "Send the request again; divide a large one. If it keeps failing, the database is overloaded or another transaction holds a lock."},
	KindJobTypeNotAllowed:      {"", false, "", "Use a queue that admits this job type, or extend allowed_job_types."},
	KindWaitTimeout:            {"", true, "", "Send the request again; the job has not finished yet."},
	KindCursorExpired:          {"", false, "", "Events were deleted since: read the current state of your jobs, then read the events that are kept by a request without after, because after leaves out the event that it names."},
	KindSchemaExists:           {"conflict", false, "", "Register the changed schema as a new version, or delete the registered one before."},
	KindResultPruned:           {"", false, "", "Read results before their result_ttl is over, or enqueue jobs with a longer result_ttl."},
}

// ErrorKinds lists all kinds, in no order.
func ErrorKinds() []ErrorKind {
	return slices.Collect(maps.Keys(catalogue))
}
