package ojs

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows: code, retryable, canonical name.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	type row struct {
		code      string
		retryable bool
		doc       string
	}
	want := map[ErrorKind]row{
		KindInvalidPayload: {"invalid_payload", false, "INVALID_PAYLOAD"}, KindInvalidJobType: {"invalid_payload", false, "INVALID_PAYLOAD"},
		KindInvalidQueue: {"invalid_payload", false, "INVALID_PAYLOAD"}, KindInvalidArgs: {"invalid_payload", false, "INVALID_PAYLOAD"},
		KindInvalidMetadata: {"invalid_payload", false, "INVALID_PAYLOAD"}, KindInvalidCron: {"invalid_payload", false, "INVALID_PAYLOAD"},
		KindQueueNameTooLong: {"invalid_payload", false, "INVALID_PAYLOAD"}, KindJobTypeTooLong: {"invalid_payload", false, "INVALID_PAYLOAD"},
		KindInvalidRequest: {"invalid_request", false, "INVALID_PAYLOAD"}, KindMethodNotAllowed: {"invalid_request", false, "METHOD_NOT_ALLOWED"},
		KindValidation: {"validation_error", false, "INVALID_RETRY_POLICY"}, KindSchemaValidation: {"schema_validation", false, "SCHEMA_VALIDATION_FAILED"},
		KindUnsupported: {"unsupported", false, "UNSUPPORTED_FEATURE"}, KindCompression: {"unsupported_compression", false, "UNSUPPORTED_COMPRESSION"},
		KindUnauthenticated: {"unauthenticated", false, "UNAUTHENTICATED"}, KindPermissionDenied: {"permission_denied", false, "PERMISSION_DENIED"},
		KindNotFound: {"not_found", false, "NOT_FOUND"}, KindInvalidStateTransition: {"conflict", false, "INVALID_STATE_TRANSITION"},
		KindNotOwner: {"conflict", false, "INVALID_STATE_TRANSITION"}, KindStaleAttempt: {"conflict", false, "INVALID_STATE_TRANSITION"},
		KindIdempotencyConflict: {"conflict", false, "IDEMPOTENCY_KEY_CONFLICT"}, KindDuplicateJob: {"duplicate", false, "DUPLICATE_JOB"},
		KindPayloadTooLarge: {"payload_too_large", false, "PAYLOAD_TOO_LARGE"}, KindMetadataTooLarge: {"metadata_too_large", false, "METADATA_TOO_LARGE"},
		KindBatchSize: {"batch_size_exceeded", false, "PAYLOAD_TOO_LARGE"}, KindQueuePaused: {"queue_paused", true, "QUEUE_PAUSED"},
		KindQueueFull: {"QUEUE_FULL", true, "QUEUE_FULL"}, KindRateLimited: {"rate_limited", true, "RATE_LIMITED"},
		KindInternal: {"internal_error", true, "BACKEND_ERROR"}, KindUnavailable: {"backend_error", true, "BACKEND_UNAVAILABLE"},
		KindTimeout: {"backend_error", true, "BACKEND_TIMEOUT"}, KindJobTypeNotAllowed: {"x_job_type_not_allowed", false, "X_JOB_TYPE_NOT_ALLOWED"},
		KindWaitTimeout: {"x_wait_timeout", true, "X_WAIT_TIMEOUT"}, KindResultPruned: {"x_result_pruned", false, "X_RESULT_PRUNED"},
		KindSchemaExists:  {"conflict", false, "X_SCHEMA_EXISTS"},
		KindCursorExpired: {"x_cursor_expired", false, "X_CURSOR_EXPIRED"},
	}
	require.Len(t, catalogue, len(want))
	for kind, w := range want {
		e := NewError(kind, "m", nil)
		require.Equal(t, w, row{e.Code, e.Retryable, strings.TrimPrefix(e.DocsURL, "https://openjobspec.org/errors/")}, kind)
		require.Equal(t, string(kind), e.Type)
		require.NotEmpty(t, e.Hint, kind)
	}
	require.Panics(t, func() { _ = NewError("no_such_kind", "m", nil) })
}

func TestErrorJSON(t *testing.T) {
	t.Parallel()
	e := ErrNotFound("job", "019a")
	e.RequestID = "req_1"
	b, err := json.Marshal(map[string]any{"error": e})
	require.NoError(t, err)
	require.JSONEq(t, `{"error":{"code":"not_found","type":"not_found","message":"Job 019a does not exist.","retryable":false,
		"hint":"Check the id. A finished job is deleted when its retention period is over; GET /ojs/v1/jobs lists the jobs that are stored.","docs_url":"https://openjobspec.org/errors/NOT_FOUND",
		"details":{"resource_type":"job","resource_id":"019a"},"request_id":"req_1"}}`, string(b))

	b, err = json.Marshal(ErrInternal())
	require.NoError(t, err)
	require.NotContains(t, string(b), "details")
	require.NotContains(t, string(b), "request_id")
	require.NotContains(t, string(b), "Status")
}

func TestConstructorsNameFieldAndDetails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    *Error
		kind   ErrorKind
		text   string
		detail string
		value  any
	}{
		"Payload":     {ErrInvalidPayload("priority", "an integer", 5, "'priority' must be …"), KindInvalidPayload, "priority", "field", "priority"},
		"Field":       {ErrInvalidField(KindInvalidQueue, "queue", "a name", nil, "'queue' …"), KindInvalidQueue, "queue", "expected", "a name"},
		"Request":     {ErrInvalidRequest("limit", "an integer", "x", "limit must be …"), KindInvalidRequest, "limit", "parameter", "limit"},
		"Method":      {ErrMethodNotAllowed("PUT", "/x", []string{"GET", "HEAD"}), KindMethodNotAllowed, "GET, HEAD", "method", "PUT"},
		"Validation":  {ErrValidation("retry.jitter", 1, "retry.jitter …"), KindValidation, "jitter", "field", "retry.jitter"},
		"Version":     {ErrVersion("specversion", "2.0"), KindUnsupported, "specversion", "requested", "2.0"},
		"Compression": {ErrCompression("br"), KindCompression, "br", "received", "br"},
		"Auth":        {ErrUnauthenticated(), KindUnauthenticated, "Authorization", "", nil},
		"Permission":  {ErrPermissionDenied("ojs:admin:read"), KindPermissionDenied, "ojs:admin:read", "scope", "ojs:admin:read"},
		"TooLarge":    {ErrTooLarge("envelope", 10, 11), KindPayloadTooLarge, "envelope", "actual_bytes", 11},
		"MetaLarge":   {ErrTooLarge("meta", 10, 0), KindMetadataTooLarge, "meta", "max_bytes", 10},
		"BatchSize":   {ErrBatchSize(10, 11), KindBatchSize, "10", "max_batch_size", 10},
		"Conflict":    {ErrConflict("j", StateCompleted, StateActive), KindInvalidStateTransition, "completed", "expected_state", StateActive},
		"Conflicts":   {ErrConflict("j", StateCompleted, StateActive, StatePending), KindInvalidStateTransition, "active or pending", "expected_state", []JobState{StateActive, StatePending}},
		"NotOwner":    {ErrNotOwner("j", "w1", "w2"), KindNotOwner, "worker_id", "owner_worker_id", "w2"},
		"Stale":       {ErrStaleAttempt("j", 1, 2), KindStaleAttempt, "attempt", "current_attempt", int64(2)},
		"Idempotency": {ErrIdempotencyConflict("k"), KindIdempotencyConflict, "idempotency_key", "idempotency_key", "k"},
		"DuplicateID": {ErrDuplicateID("j"), KindDuplicateJob, "id", "existing_job_id", "j"},
		"Duplicate":   {ErrDuplicate("j", StateActive, "25ff"), KindDuplicateJob, "exists", "unique_key", "25ff"},
		"Paused":      {ErrQueuePaused("q"), KindQueuePaused, "Queue q", "queue", "q"},
		"Full":        {ErrQueueFull(QueueFull{Queue: "q", Depth: 5, Bound: 5, RetryAfter: 1}), KindQueueFull, "bound of 5 jobs", "retry_after_seconds", 1},
		"RateLimited": {ErrRateLimited(5, 60, 2), KindRateLimited, "5", "window_seconds", 60},
		"Unavailable": {ErrUnavailable(), KindUnavailable, "again", "", nil},
		"Timeout":     {ErrTimeout(), KindTimeout, "again", "", nil},
		"Internal":    {ErrInternal(), KindInternal, "request id", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, string(c.kind), c.err.Type)
			require.Contains(t, c.err.Message, c.text)
			if c.detail != "" {
				require.Equal(t, c.value, c.err.Details[c.detail])
			}
		})
	}
	require.NotContains(t, ErrTooLarge("meta", 10, 0).Details, "actual_bytes")
	require.NotContains(t, ErrInvalidPayload("a", "b", nil, "c").Details, "received")
}

func TestNotFoundNamesTheResource(t *testing.T) {
	t.Parallel()
	for resource := range missingByType {
		e := ErrNotFound(resource, "x")
		require.Contains(t, e.Message, " x does not exist.")
		require.Equal(t, resource, e.Details["resource_type"])
		if resource != "job" {
			require.NotContains(t, e.Hint, "finished job", resource)
		}
	}
	require.Equal(t, "There is no route GET /ojs/v1/job. The nearest one is GET /ojs/v1/jobs.", ErrNoRoute("GET", "/ojs/v1/job", "GET /ojs/v1/jobs").Message)
	require.NotContains(t, ErrNoRoute("GET", "/x", "").Message, "nearest")
	require.NotContains(t, ErrNoRoute("GET", "/x", "").Hint, "id")
}

func TestErrorIs(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("push: %w", ErrDuplicateID("x"))
	require.ErrorIs(t, err, &Error{Code: "duplicate"})
	require.NotErrorIs(t, err, &Error{Code: "conflict"})
	require.NotErrorIs(t, ErrNotOwner("j", "a", "b"), &Error{Code: "conflict", Type: "stale_attempt"})
	var e *Error
	require.True(t, errors.As(err, &e))
	require.EqualError(t, e, "duplicate: A job with id x already exists.")
}

func TestErrIndexed(t *testing.T) {
	t.Parallel()
	e := ErrIndexed(ErrInternal(), 2)
	require.Contains(t, e.Message, "job at index 2: ")
	require.Equal(t, 2, e.Details["index"])
}
