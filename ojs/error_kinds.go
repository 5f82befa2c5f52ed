package ojs

// ErrorKind is the `type` of an error. It decides code, retryability and hint; see catalogue. Which status a transport
// answers with is the transport's business. A kind is an error itself, so that errors.Is(err, ojs.ErrNotFound) works.
type ErrorKind string

// The kinds of docs/reference/errors.md, Catalogue; x_ marks those of this server.
const (
	// ErrInvalidPayload is 400: the body, or a field of it, is malformed. The first seven that follow have the code
	// invalid_payload, so errors.Is with ErrInvalidPayload matches them too.
	ErrInvalidPayload   ErrorKind = "invalid_payload"
	ErrInvalidJobType   ErrorKind = "invalid_job_type"
	ErrInvalidQueue     ErrorKind = "invalid_queue"
	ErrInvalidArgs      ErrorKind = "invalid_args"
	ErrInvalidMetadata  ErrorKind = "invalid_metadata"
	ErrInvalidCron      ErrorKind = "invalid_cron_expression"
	ErrQueueNameTooLong ErrorKind = "queue_name_too_long"
	ErrJobTypeTooLong   ErrorKind = "job_type_too_long"
	// ErrInvalidRequest is 400: a query parameter, header or cursor; 405 for ErrMethodNotAllowed, which has the code
	// invalid_request.
	ErrInvalidRequest   ErrorKind = "invalid_request"
	ErrMethodNotAllowed ErrorKind = "method_not_allowed"
	// ErrValidation, like the next two, is 422: the request is well-formed, but a policy in it, the args, or a feature that it
	// asks for is not acceptable. 415 for ErrCompression.
	ErrValidation       ErrorKind = "validation_error"
	ErrSchemaValidation ErrorKind = "schema_validation"
	ErrUnsupported      ErrorKind = "unsupported"
	ErrCompression      ErrorKind = "unsupported_compression"
	// ErrUnauthenticated is 401: no known key was sent. ErrPermissionDenied is 403: the key, the tenant or the queue does not
	// allow it. ErrNotFound is 404: the thing does not exist, or does not any more.
	ErrUnauthenticated  ErrorKind = "unauthenticated"
	ErrPermissionDenied ErrorKind = "permission_denied"
	ErrNotFound         ErrorKind = "not_found"
	// ErrInvalidStateTransition, like the next three, is 409 with the code conflict: what is asked for does not fit the
	// present state, owner or attempt. Sending it again fails again.
	ErrInvalidStateTransition ErrorKind = "invalid_state_transition"
	ErrNotOwner               ErrorKind = "not_owner"
	ErrStaleAttempt           ErrorKind = "stale_attempt"
	ErrIdempotencyConflict    ErrorKind = "idempotency_key_conflict"
	// ErrDuplicateJob is 409 with the code duplicate: the id is taken, or an equivalent job exists. Its id is [ErrorDetail]
	// existing_job_id.
	ErrDuplicateJob ErrorKind = "duplicate_job"
	// ErrPayloadTooLarge, like the next two, is 413: the limits are those of docs/reference/jobs.md, Limits.
	ErrPayloadTooLarge  ErrorKind = "payload_too_large"
	ErrMetadataTooLarge ErrorKind = "metadata_too_large"
	ErrBatchSize        ErrorKind = "batch_size_exceeded"
	// ErrQueuePaused is 422 and retryable: the queue is draining and takes no new jobs. Fetches of a paused queue are no
	// error: they find nothing.
	ErrQueuePaused ErrorKind = "queue_paused"
	// ErrQueueFull, like ErrRateLimited, is 429 with a time to wait ([RetryAfter]): a bounded queue has no room, or too many
	// streams are open.
	ErrQueueFull   ErrorKind = "queue_full"
	ErrRateLimited ErrorKind = "rate_limited"
	// ErrInternal is 500, ErrUnavailable 503 and ErrTimeout 504: the server or its database. [OutcomeUnknown] tells whether
	// the request may have been carried out.
	ErrInternal    ErrorKind = "internal_error"
	ErrUnavailable ErrorKind = "backend_unavailable"
	ErrTimeout     ErrorKind = "backend_timeout"
	// ErrJobTypeNotAllowed is 422: the configuration of the queue excludes the job type.
	ErrJobTypeNotAllowed ErrorKind = "x_job_type_not_allowed"
	// ErrWaitTimeout is 408: the job has not ended within the wait for its result; [Client.Wait] goes on by itself.
	ErrWaitTimeout ErrorKind = "x_wait_timeout"
	// ErrResultPruned, like ErrCursorExpired, is 410: the result, or the events behind a cursor, are not kept any more.
	ErrResultPruned  ErrorKind = "x_result_pruned"
	ErrCursorExpired ErrorKind = "x_cursor_expired"
	// ErrQueueExists is 409: a queue of this name exists.
	ErrQueueExists ErrorKind = "x_queue_exists"
	// ErrSchemaExists is 409: another document is registered under this version or URI.
	ErrSchemaExists ErrorKind = "x_schema_exists"
)
