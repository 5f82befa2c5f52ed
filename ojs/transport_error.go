package ojs

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Error gives the name of the kind, so that a kind can be the target of errors.Is:
//
//	if errors.Is(err, ojs.ErrNotFound) { … }
func (k ErrorKind) Error() string { return string(k) }

// isKind compares type and code: an invalid_queue is also an invalid_payload, which is its code. Servers that send no type, or no
// other than the code, have one word for each of two kinds.
func (e *Error) isKind(kind ErrorKind) bool {
	if e.Type == string(kind) || e.Code == string(kind) {
		return true
	}
	if e.Type != "" && e.Type != e.Code {
		return false
	}
	return kind == ErrDuplicateJob && e.Code == "duplicate" || kind == ErrInvalidStateTransition && e.Code == "conflict"
}

// TransportError says that a request got no answer of a server of the Open Job Spec: the server cannot be reached, the
// connection broke, the time was over, or something in between, such as a proxy, has answered. Sent is true as soon as a
// connection was there to send on, so a false one proves that nothing was carried out.
type TransportError struct {
	Method string
	Path   string
	Status int  // of the answer, if there was one
	Sent   bool // the request may have reached the server
	Err    error

	retryAfter time.Duration
}

// Error names the request.
func (e *TransportError) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("ojs: %s %s: status %d: %v", e.Method, e.Path, e.Status, e.Err)
	}
	return fmt.Sprintf("ojs: %s %s: %v", e.Method, e.Path, e.Err)
}

// Unwrap gives the cause, such as context.DeadlineExceeded.
func (e *TransportError) Unwrap() error { return e.Err }

// OutcomeUnknown reports whether the request that failed with err may have been carried out: the connection broke after it was sent, or
// the server could not find out. A request that only reads, an enqueue with the same id and an ack with worker and attempt can be
// sent again. A refusal with the status 429 or 503 is none: such servers have not begun. Neither is an answer below 500 of
// something in between.
func OutcomeUnknown(err error) bool {
	if t, ok := errors.AsType[*TransportError](err); ok {
		return t.Sent && !slices.Contains([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}, t.Status) &&
			(t.Status < 300 || t.Status >= 500)
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Status == http.StatusInternalServerError || e.Status == http.StatusBadGateway || e.Details["outcome"] == "unknown"
}

// Retryable reports whether the same request may succeed later. It may have been carried out: see [OutcomeUnknown].
// It says nothing about whether a repetition is harmless; the client has tried [Config].MaxRetries times already where it was.
func Retryable(err error) bool {
	if t, ok := errors.AsType[*TransportError](err); ok {
		return t.Status == 0 || t.Status == http.StatusTooManyRequests || t.Status >= 500 || t.Status < 300
	}
	var e *Error
	return errors.As(err, &e) && (e.Retryable || e.Status == http.StatusTooManyRequests || e.Status >= 500)
}

// RetryAfter is how long the server asks to wait before the request is sent again; 0: it did not say.
func RetryAfter(err error) time.Duration {
	if t, ok := errors.AsType[*TransportError](err); ok {
		return t.retryAfter
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// ErrorDetail is the text of a member of the details of an [*Error], such as existing_job_id; "" if there is none.
func ErrorDetail(err error, name string) string {
	var e *Error
	if !errors.As(err, &e) {
		return ""
	}
	text, _ := e.Details[name].(string)
	return text
}
