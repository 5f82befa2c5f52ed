package ojs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Failure is an error of a handler with what the server keeps of it. Any other error is a failure with the code handler_error.
// The server keeps it in the history of the job, cuts what is too long, and decides by Code, Type and Permanent whether the job
// runs again (docs/reference/retries.md, Failure).
type Failure struct {
	Code    string // compared with non_retryable_errors of the retry policy; "": handler_error
	Type    string // finer than Code
	Message string // "": that of Err
	// The job is discarded: it becomes a dead letter unless its retry policy says otherwise.
	Permanent bool // the job must not be retried

	// RetryAfter is how long the job must not run again; the backoff of its policy counts if it is longer. A server without
	// [ExtensionRetryDelay] is told after that time: the reservation of the job is kept meanwhile, and no slot. That wait ends early when
	// the worker stops, and with the execution timeout of the job.
	RetryAfter time.Duration

	// Details that cannot be encoded as JSON are left out of the report.
	Details   map[string]any
	Backtrace []string
	Err       error // the cause
}

// Error gives "code: message".
func (f *Failure) Error() string {
	return f.code() + ": " + f.message()
}

// Unwrap gives the cause.
func (f *Failure) Unwrap() error { return f.Err }

func (f *Failure) code() string {
	if f.Code == "" {
		return codeHandlerError
	}
	return f.Code
}

func (f *Failure) message() string {
	switch {
	case f.Message != "":
		return f.Message
	case f.Err != nil:
		return f.Err.Error()
	}
	return "no reason was given"
}

// wire is what is sent. Details that are no JSON are dropped, because a report that cannot be sent would leave the job to its
// reservation.
func (f *Failure) wire() map[string]any {
	e := map[string]any{"code": f.code(), "message": f.message(), "retryable": !f.Permanent}
	if f.Type != "" {
		e["type"] = f.Type
	}
	if len(f.Details) > 0 {
		if details, err := json.Marshal(f.Details); err == nil {
			e["details"] = json.RawMessage(details)
		}
	}
	if len(f.Backtrace) > 0 {
		e["backtrace"] = f.Backtrace
	}
	return e
}

// Codes of failures that the worker makes.
const (
	codeHandlerError    = "handler_error"
	codeHandlerNotFound = "handler_not_found"
	codeInvalidArgs     = "invalid_payload"
	codePanic           = "panic"
	codeTimeout         = "timeout"
	codeDiscard         = "DISCARD"
	codeDeadLetter      = "DEAD_LETTER"
)

// disposition is an error by which a handler decides what becomes of its job. It is an error, so it passes through middleware
// and wrapping; errors.As finds it.
type disposition struct {
	kind dispositionKind
	err  error
	wait time.Duration
}

type dispositionKind string

const (
	dispositionDiscard    dispositionKind = "discard"
	dispositionDeadLetter dispositionKind = "dead letter"
	dispositionSnooze     dispositionKind = "snooze"
	dispositionCancel     dispositionKind = "cancel"
)

func (d *disposition) Error() string {
	if d.err != nil {
		return fmt.Sprintf("%s: %v", d.kind, d.err)
	}
	return string(d.kind)
}

func (d *disposition) Unwrap() error { return d.err }

// Discard ends the job without a retry and without a dead letter. err says why. The server keeps the job as discarded and shows
// err in its errors.
func Discard(err error) error { return &disposition{kind: dispositionDiscard, err: err} }

// DeadLetter ends the job without a retry, as a dead letter for somebody to look at. err says why. Also if the retry policy
// would discard it without one.
func DeadLetter(err error) error { return &disposition{kind: dispositionDeadLetter, err: err} }

// Snooze hands the job back, without counting the attempt: it runs again after d. Where the server does not take a delay, the worker keeps
// the reservation meanwhile, but no slot; then d should be well below the execution timeout of the job, which goes on, and the job is
// handed back at once when the worker stops.
func Snooze(d time.Duration) error { return &disposition{kind: dispositionSnooze, wait: d} }

// Cancel cancels the job. The outcome is a cancelled job, as if an operator had cancelled it; nothing is retried.
func Cancel() error { return &disposition{kind: dispositionCancel} }

// IsSnooze reports whether an error of a handler is that of [Snooze], as middleware may want to know: it is no failure.
func IsSnooze(err error) bool { return isDisposition(err, dispositionSnooze) }

// IsCancel reports whether an error of a handler is that of [Cancel]. It is no failure.
func IsCancel(err error) bool { return isDisposition(err, dispositionCancel) }

// IsDiscard reports whether an error of a handler is that of [Discard].
func IsDiscard(err error) bool { return isDisposition(err, dispositionDiscard) }

// IsDeadLetter reports whether an error of a handler is that of [DeadLetter].
func IsDeadLetter(err error) bool { return isDisposition(err, dispositionDeadLetter) }

func isDisposition(err error, kind dispositionKind) bool {
	d, ok := errors.AsType[*disposition](err)
	return ok && d.kind == kind
}

// Reasons for which the context of a running job is cancelled, by context.Cause. Compare with errors.Is(context.Cause(ctx),
// ojs.ErrJobCancelled) in a handler that wants to know. After ErrJobCancelled and ErrJobLost the outcome of the handler is not
// reported any more.
var (
	ErrJobCancelled  = errors.New("ojs: the job was cancelled")
	ErrJobLost       = errors.New("ojs: the job is not reserved for this worker any more")
	ErrWorkerStopped = errors.New("ojs: the worker stops and its grace period is over")
	ErrJobTimeout    = fmt.Errorf("ojs: the time of the job is over: %w", context.DeadlineExceeded)
)

// failureOf is what is reported of the error of a handler. ctx is that of the job. The failure inside of Discard and DeadLetter
// keeps its own code as the type, because the code says what is to become of the job.
func failureOf(ctx context.Context, err error) *Failure {
	var d *disposition
	if errors.As(err, &d) && (d.kind == dispositionDiscard || d.kind == dispositionDeadLetter) {
		f := *failureOf(ctx, d.err)
		if f.Type == "" && f.Code != "" {
			f.Type = f.Code
		}
		f.Permanent, f.RetryAfter, f.Code = true, 0, codeDiscard
		if d.kind == dispositionDeadLetter {
			f.Code = codeDeadLetter
		}
		return &f
	}
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	f = &Failure{Err: err}
	if isTimeout(ctx, err) {
		f.Code = codeTimeout
	}
	return f
}

// isTimeout reports whether an error comes from the end of the time of a job.
func isTimeout(ctx context.Context, err error) bool {
	return err != nil && errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), ErrJobTimeout)
}

// panicFailure describes a panic; it must be called by the deferred function that has recovered it.
func panicFailure(value any) *Failure {
	err, _ := value.(error)
	f := &Failure{Code: codePanic, Type: fmt.Sprintf("%T", value), Message: fmt.Sprint(value), Err: err}
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs)]) // without Callers, this function, the deferred one and gopanic
	for len(f.Backtrace) < 50 {
		frame, more := frames.Next()
		if frame.Function != "" {
			f.Backtrace = append(f.Backtrace, fmt.Sprintf("%s (%s:%d)", frame.Function, frame.File, frame.Line))
		}
		if !more {
			break
		}
	}
	return f
}
