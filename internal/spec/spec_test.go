package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// Rows: code, retryable, canonical name.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	type row struct {
		code      string
		retryable bool
		doc       string
	}
	want := map[ojs.ErrorKind]row{
		ojs.ErrInvalidPayload: {"invalid_payload", false, "INVALID_PAYLOAD"}, ojs.ErrInvalidJobType: {"invalid_payload", false, "INVALID_PAYLOAD"},
		ojs.ErrInvalidQueue: {"invalid_payload", false, "INVALID_PAYLOAD"}, ojs.ErrInvalidArgs: {"invalid_payload", false, "INVALID_PAYLOAD"},
		ojs.ErrInvalidMetadata: {"invalid_payload", false, "INVALID_PAYLOAD"}, ojs.ErrInvalidCron: {"invalid_payload", false, "INVALID_PAYLOAD"},
		ojs.ErrQueueNameTooLong: {"invalid_payload", false, "INVALID_PAYLOAD"}, ojs.ErrJobTypeTooLong: {"invalid_payload", false, "INVALID_PAYLOAD"},
		ojs.ErrInvalidRequest: {"invalid_request", false, "INVALID_PAYLOAD"}, ojs.ErrMethodNotAllowed: {"invalid_request", false, "METHOD_NOT_ALLOWED"},
		ojs.ErrValidation: {"validation_error", false, "INVALID_RETRY_POLICY"}, ojs.ErrSchemaValidation: {"schema_validation", false, "SCHEMA_VALIDATION_FAILED"},
		ojs.ErrUnsupported: {"unsupported", false, "UNSUPPORTED_FEATURE"}, ojs.ErrCompression: {"unsupported_compression", false, "UNSUPPORTED_COMPRESSION"},
		ojs.ErrUnauthenticated: {"unauthenticated", false, "UNAUTHENTICATED"}, ojs.ErrPermissionDenied: {"permission_denied", false, "PERMISSION_DENIED"},
		ojs.ErrNotFound: {"not_found", false, "NOT_FOUND"}, ojs.ErrInvalidStateTransition: {"conflict", false, "INVALID_STATE_TRANSITION"},
		ojs.ErrNotOwner: {"conflict", false, "INVALID_STATE_TRANSITION"}, ojs.ErrStaleAttempt: {"conflict", false, "INVALID_STATE_TRANSITION"},
		ojs.ErrIdempotencyConflict: {"conflict", false, "IDEMPOTENCY_KEY_CONFLICT"}, ojs.ErrDuplicateJob: {"duplicate", false, "DUPLICATE_JOB"},
		ojs.ErrPayloadTooLarge: {"payload_too_large", false, "PAYLOAD_TOO_LARGE"}, ojs.ErrMetadataTooLarge: {"metadata_too_large", false, "METADATA_TOO_LARGE"},
		ojs.ErrBatchSize: {"batch_size_exceeded", false, "PAYLOAD_TOO_LARGE"}, ojs.ErrQueuePaused: {"queue_paused", true, "QUEUE_PAUSED"},
		ojs.ErrQueueFull: {"QUEUE_FULL", true, "QUEUE_FULL"}, ojs.ErrRateLimited: {"rate_limited", true, "RATE_LIMITED"},
		ojs.ErrInternal: {"internal_error", true, "BACKEND_ERROR"}, ojs.ErrUnavailable: {"backend_error", true, "BACKEND_UNAVAILABLE"},
		ojs.ErrTimeout: {"backend_error", true, "BACKEND_TIMEOUT"}, ojs.ErrJobTypeNotAllowed: {"x_job_type_not_allowed", false, "X_JOB_TYPE_NOT_ALLOWED"},
		ojs.ErrWaitTimeout: {"x_wait_timeout", true, "X_WAIT_TIMEOUT"}, ojs.ErrResultPruned: {"x_result_pruned", false, "X_RESULT_PRUNED"},
		ojs.ErrQueueExists:   {"conflict", false, "X_QUEUE_EXISTS"},
		ojs.ErrSchemaExists:  {"conflict", false, "X_SCHEMA_EXISTS"},
		ojs.ErrCursorExpired: {"x_cursor_expired", false, "X_CURSOR_EXPIRED"},
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
	e := NotFound("job", "019a")
	e.RequestID = "req_1"
	b, err := json.Marshal(map[string]any{"error": e})
	require.NoError(t, err)
	require.JSONEq(t, `{"error":{"code":"not_found","type":"not_found","message":"Job 019a does not exist.","retryable":false,
		"hint":"Check the id. A finished job is deleted when its retention period is over; GET /ojs/v1/jobs lists the jobs that are stored.","docs_url":"https://openjobspec.org/errors/NOT_FOUND",
		"details":{"resource_type":"job","resource_id":"019a"},"request_id":"req_1"}}`, string(b))

	b, err = json.Marshal(Internal())
	require.NoError(t, err)
	require.NotContains(t, string(b), "details")
	require.NotContains(t, string(b), "request_id")
	require.NotContains(t, string(b), "Status")
}

func TestConstructorsNameFieldAndDetails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    *ojs.Error
		kind   ojs.ErrorKind
		text   string
		detail string
		value  any
	}{
		"Payload":     {InvalidPayload("priority", "an integer", 5, "'priority' must be …"), ojs.ErrInvalidPayload, "priority", "field", "priority"},
		"Field":       {InvalidField(ojs.ErrInvalidQueue, "queue", "a name", nil, "'queue' …"), ojs.ErrInvalidQueue, "queue", "expected", "a name"},
		"Request":     {InvalidRequest("limit", "an integer", "x", "limit must be …"), ojs.ErrInvalidRequest, "limit", "parameter", "limit"},
		"Method":      {MethodNotAllowed("PUT", "/x", []string{"GET", "HEAD"}), ojs.ErrMethodNotAllowed, "GET, HEAD", "method", "PUT"},
		"Validation":  {Validation("retry.jitter", 1, "retry.jitter …"), ojs.ErrValidation, "jitter", "field", "retry.jitter"},
		"Version":     {Version("specversion", "2.0"), ojs.ErrUnsupported, "specversion", "requested", "2.0"},
		"Compression": {Compression("br"), ojs.ErrCompression, "br", "received", "br"},
		"Auth":        {Unauthenticated(), ojs.ErrUnauthenticated, "Authorization", "", nil},
		"Permission":  {PermissionDenied("ojs:admin:read"), ojs.ErrPermissionDenied, "ojs:admin:read", "scope", "ojs:admin:read"},
		"TooLarge":    {TooLarge("envelope", 10, 11), ojs.ErrPayloadTooLarge, "envelope", "actual_bytes", 11},
		"MetaLarge":   {TooLarge("meta", 10, 0), ojs.ErrMetadataTooLarge, "meta", "max_bytes", 10},
		"BatchSize":   {BatchSize(10, 11), ojs.ErrBatchSize, "10", "max_batch_size", 10},
		"Conflict":    {Conflict("j", ojs.StateCompleted, ojs.StateActive), ojs.ErrInvalidStateTransition, "completed", "expected_state", ojs.StateActive},
		"Conflicts":   {Conflict("j", ojs.StateCompleted, ojs.StateActive, ojs.StatePending), ojs.ErrInvalidStateTransition, "active or pending", "expected_state", []ojs.JobState{ojs.StateActive, ojs.StatePending}},
		"NotOwner":    {NotOwner("j", "w1", "w2"), ojs.ErrNotOwner, "worker_id", "owner_worker_id", "w2"},
		"Stale":       {StaleAttempt("j", 1, 2), ojs.ErrStaleAttempt, "attempt", "current_attempt", int64(2)},
		"Idempotency": {IdempotencyConflict("k"), ojs.ErrIdempotencyConflict, "idempotency_key", "idempotency_key", "k"},
		"DuplicateID": {DuplicateID("j"), ojs.ErrDuplicateJob, "id", "existing_job_id", "j"},
		"Duplicate":   {Duplicate("j", ojs.StateActive, "25ff"), ojs.ErrDuplicateJob, "exists", "unique_key", "25ff"},
		"Paused":      {QueuePaused("q"), ojs.ErrQueuePaused, "Queue q", "queue", "q"},
		"Full":        {QueueFull(FullQueue{Queue: "q", Depth: 5, Bound: 5, RetryAfter: 1}), ojs.ErrQueueFull, "bound of 5 jobs", "retry_after_seconds", 1},
		"TooManyKeys": {TooManyKeys(20, 1500*time.Millisecond), ojs.ErrRateLimited, "20 different unknown API keys", "retry_after_seconds", 2},
		"Unavailable": {Unavailable(), ojs.ErrUnavailable, "again", "", nil},
		"Timeout":     {Timeout(), ojs.ErrTimeout, "again", "", nil},
		"Internal":    {Internal(), ojs.ErrInternal, "request id", "", nil},
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
	require.NotContains(t, TooLarge("meta", 10, 0).Details, "actual_bytes")
	require.NotContains(t, InvalidPayload("a", "b", nil, "c").Details, "received")
}

func TestNotFoundNamesTheResource(t *testing.T) {
	t.Parallel()
	for resource := range missingByType {
		e := NotFound(resource, "x")
		require.Contains(t, e.Message, " x does not exist.")
		require.Equal(t, resource, e.Details["resource_type"])
		if resource != "job" {
			require.NotContains(t, e.Hint, "finished job", resource)
		}
	}
	require.Equal(t, "There is no route GET /ojs/v1/job. The nearest one is GET /ojs/v1/jobs.", NoRoute("GET", "/ojs/v1/job", "GET /ojs/v1/jobs").Message)
	require.NotContains(t, NoRoute("GET", "/x", "").Message, "nearest")
	require.NotContains(t, NoRoute("GET", "/x", "").Hint, "id")
}

func TestErrorIs(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("push: %w", DuplicateID("x"))
	require.ErrorIs(t, err, &ojs.Error{Code: "duplicate"})
	require.NotErrorIs(t, err, &ojs.Error{Code: "conflict"})
	require.NotErrorIs(t, NotOwner("j", "a", "b"), &ojs.Error{Code: "conflict", Type: "stale_attempt"})
	var e *ojs.Error
	require.True(t, errors.As(err, &e))
	require.EqualError(t, e, "duplicate: A job with id x already exists.")
}

func TestIndexed(t *testing.T) {
	t.Parallel()
	e := Indexed(Internal(), 2)
	require.Contains(t, e.Message, "job at index 2: ")
	require.Equal(t, 2, e.Details["index"])
}

func TestParseID(t *testing.T) {
	t.Parallel()
	const text = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"
	id, ok := ParseID(text)
	require.True(t, ok)
	require.Equal(t, text, FormatID(id))
	for _, prefix := range []string{"job_", "wf_"} {
		again, ok := ParseID(prefix + text)
		require.True(t, ok)
		require.Equal(t, id, again)
	}
	for _, bad := range []string{
		"", "x", "job_", "job_job_" + text, "job_wf_" + text, "019A3C10-5A00-7B11-9C22-0A1B2C3D4E5F", "019a3c10-5a00-4b11-9c22-0a1b2c3d4e5f",
		"019a3c10-5a00-7b11-7c22-0a1b2c3d4e5f", "019a3c10-5a00-7b11-cc22-0a1b2c3d4e5f", "019a3c105a007b119c220a1b2c3d4e5f", text + "0", text[:35],
		"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5g", "019a3c10_5a00-7b11-9c22-0a1b2c3d4e5f", " " + text[1:],
	} {
		_, ok := ParseID(bad)
		require.False(t, ok, bad)
	}
	_, ok = ParseUUIDv7("job_" + text)
	require.False(t, ok)
}

func TestFormatTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 5, 2, 1, 120_999_999, time.FixedZone("", 7200))
	require.Equal(t, "2026-05-04T03:02:01.120Z", FormatTime(at))
}

// Each hint is that of its kind.
func TestHints(t *testing.T) {
	t.Parallel()
	for kind, word := range map[ojs.ErrorKind]string{
		ojs.ErrInvalidArgs: "args", ojs.ErrInvalidMetadata: "meta", ojs.ErrInvalidCron: "cron", ojs.ErrQueueNameTooLong: "queue name", ojs.ErrJobTypeTooLong: "job type",
		ojs.ErrMethodNotAllowed: "Allow", ojs.ErrSchemaValidation: "schema", ojs.ErrUnsupported: "manifest", ojs.ErrCompression: "gzip", ojs.ErrUnauthenticated: "Bearer",
		ojs.ErrPermissionDenied: "permission", ojs.ErrNotFound: "Check the id", ojs.ErrInvalidStateTransition: "state", ojs.ErrNotOwner: "Another worker",
		ojs.ErrStaleAttempt: "another attempt", ojs.ErrIdempotencyConflict: "idempotency key",
	} {
		require.Contains(t, NewError(kind, "m", nil).Hint, word, kind)
	}
}
