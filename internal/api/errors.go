package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/riverqueue/river/rivershared/util/sliceutil"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/observe"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Cause is whose doing a failure is.
// It decides the level of the log line, and for gRPC the status.
type Cause int

// The causes of failures.
const (
	CauseClient   Cause = iota // the request cannot be served as it was sent
	CauseServer                // the server could not do what it should; the error may be shown
	CauseUnknown               // an unexpected error, whose text stays in the log
	CauseHungUp                // the client did not wait for the answer
	CauseDeadline              // the client's deadline is over
)

// isServerKind reports whether an error says that the server could not do what it should.
// All other kinds are the fault of the request.
func isServerKind(e *ojs.Error) bool {
	switch ojs.ErrorKind(e.Type) {
	case ojs.ErrInternal, ojs.ErrUnavailable, ojs.ErrTimeout:
		return true
	}
	return false
}

// Status is how a kind of error is answered (docs/reference/errors.md, Catalogue; docs/reference/grpc.md, Status codes).
type Status struct {
	HTTP int
	GRPC codes.Code
}

// statuses has every kind; a test asks for it. A kind without a gRPC operation has a code all the same, so that a new use of it does not
// become INTERNAL.
var statuses = map[ojs.ErrorKind]Status{
	ojs.ErrInvalidPayload:         {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrInvalidJobType:         {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrInvalidQueue:           {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrInvalidArgs:            {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrInvalidMetadata:        {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrInvalidCron:            {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrQueueNameTooLong:       {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrJobTypeTooLong:         {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrInvalidRequest:         {http.StatusBadRequest, codes.InvalidArgument},
	ojs.ErrMethodNotAllowed:       {http.StatusMethodNotAllowed, codes.Internal},
	ojs.ErrValidation:             {http.StatusUnprocessableEntity, codes.InvalidArgument},
	ojs.ErrSchemaValidation:       {http.StatusUnprocessableEntity, codes.InvalidArgument},
	ojs.ErrUnsupported:            {http.StatusUnprocessableEntity, codes.FailedPrecondition},
	ojs.ErrCompression:            {http.StatusUnsupportedMediaType, codes.InvalidArgument},
	ojs.ErrUnauthenticated:        {http.StatusUnauthorized, codes.Unauthenticated},
	ojs.ErrPermissionDenied:       {http.StatusForbidden, codes.PermissionDenied},
	ojs.ErrNotFound:               {http.StatusNotFound, codes.NotFound},
	ojs.ErrInvalidStateTransition: {http.StatusConflict, codes.FailedPrecondition},
	ojs.ErrNotOwner:               {http.StatusConflict, codes.FailedPrecondition},
	ojs.ErrStaleAttempt:           {http.StatusConflict, codes.FailedPrecondition},
	ojs.ErrIdempotencyConflict:    {http.StatusConflict, codes.FailedPrecondition},
	ojs.ErrDuplicateJob:           {http.StatusConflict, codes.AlreadyExists},
	ojs.ErrPayloadTooLarge:        {http.StatusRequestEntityTooLarge, codes.ResourceExhausted},
	ojs.ErrMetadataTooLarge:       {http.StatusRequestEntityTooLarge, codes.ResourceExhausted},
	ojs.ErrBatchSize:              {http.StatusRequestEntityTooLarge, codes.ResourceExhausted},
	// The queue is draining (docs/reference/queues.md, Status); the same request succeeds after a resume.
	ojs.ErrQueuePaused:       {http.StatusUnprocessableEntity, codes.FailedPrecondition},
	ojs.ErrQueueFull:         {http.StatusTooManyRequests, codes.ResourceExhausted},
	ojs.ErrRateLimited:       {http.StatusTooManyRequests, codes.ResourceExhausted},
	ojs.ErrInternal:          {http.StatusInternalServerError, codes.Internal},
	ojs.ErrUnavailable:       {http.StatusServiceUnavailable, codes.Unavailable},
	ojs.ErrTimeout:           {http.StatusGatewayTimeout, codes.DeadlineExceeded},
	ojs.ErrJobTypeNotAllowed: {http.StatusUnprocessableEntity, codes.FailedPrecondition},
	// 408 although it is the server that has waited (docs/reference/jobs.md, Results).
	ojs.ErrWaitTimeout:   {http.StatusRequestTimeout, codes.DeadlineExceeded},
	ojs.ErrCursorExpired: {http.StatusGone, codes.OutOfRange},
	ojs.ErrResultPruned:  {http.StatusGone, codes.NotFound},
	ojs.ErrQueueExists:   {http.StatusConflict, codes.AlreadyExists},
	ojs.ErrSchemaExists:  {http.StatusConflict, codes.FailedPrecondition},
}

// StatusOf is the status of an error. A kind that is missing is a defect of the server.
func StatusOf(e *ojs.Error) Status {
	if status, known := statuses[ojs.ErrorKind(e.Type)]; known {
		return status
	}
	return Status{http.StatusInternalServerError, codes.Internal}
}

// RetryAfter is the pause in seconds before the request should be sent again: that of the details, and at least 1, because 0 would make
// clients repeat at once.
func RetryAfter(e *ojs.Error) int {
	seconds, _ := e.Details["retry_after_seconds"].(int)
	return max(seconds, 1)
}

// Shown is the only place that decides what a client is told about an error: *ojs.Error as it is, database outages as such,
// anything else as internal_error. The result is a copy, because errors may be shared.
// It never returns nil. The context must be that of the request: whether it has ended tells an outage from a client that
// left.
func Shown(ctx context.Context, err error) (*ojs.Error, Cause) {
	var wire *ojs.Error
	known := errors.As(pg.ClientError(err), &wire)
	if known {
		shown := *wire
		wire = &shown
		shorten(wire)
	}
	// What fails because nobody waits any more looks like an outage.
	ended := ctx.Err() != nil && (known || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
	switch {
	// A refusal stays one even if the client has left meanwhile.
	case known && !isServerKind(wire):
		return wire, CauseClient
	// Over HTTP requests have no deadline, so this is a gRPC client's.
	case ended && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return spec.Timeout(), CauseDeadline
	case ended:
		return spec.Unavailable(), CauseHungUp
	case known:
		return wire, CauseServer
	}
	return spec.Internal(), CauseUnknown
}

// maxShown bounds each text of an error, in bytes. Messages name what the client sent, and a path, a header or the name of a member may
// have 1 MiB. Texts of the server itself are shorter.
const maxShown = 2048

// shorten cuts the texts of an error. Details may be shared with other errors, so they are copied before one is changed.
func shorten(e *ojs.Error) {
	e.Message = cut(e.Message)
	shared := true
	set := func(name string, value any) {
		if shared {
			e.Details, shared = maps.Clone(e.Details), false
		}
		e.Details[name] = value
	}
	for name, value := range e.Details {
		switch value := value.(type) {
		case string:
			if len(value) > maxShown {
				set(name, cut(value))
			}
		case []jsonread.Violation:
			if slices.ContainsFunc(value, func(v jsonread.Violation) bool { return max(len(v.Path), len(v.Message)) > maxShown }) {
				set(name, sliceutil.Map(value, func(v jsonread.Violation) jsonread.Violation {
					v.Path, v.Message = cut(v.Path), cut(v.Message)
					return v
				}))
			}
		}
	}
}

// A cut inside of a character would make invalid UTF-8 of it.
func cut(text string) string {
	if len(text) <= maxShown {
		return text
	}
	return strings.ToValidUTF8(text[:maxShown], "") + "…"
}

// Indexed adds the place of a batch item to its error.
// An error that is no *ojs.Error stays as it is.
func Indexed(err error, index int) error {
	var wire *ojs.Error
	if index >= 0 && errors.As(err, &wire) {
		return spec.Indexed(wire, index)
	}
	return err
}

// Panic is a panic of a handler as an error.
// Stack is for the log alone.
type Panic struct {
	Value any
	Stack []byte
}

// NewPanic is for the function that recovers, where the stack of the panic can still be seen.
func NewPanic(value any) *Panic { return &Panic{value, debug.Stack()} }

// Error shows the value alone.
// The stack must not get into messages, which may be shown.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// IsPanic reports whether err comes from a panic.
func IsPanic(err error) bool {
	_, ok := errors.AsType[*Panic](err)
	return ok
}

// failureAttr is the group of the log line that shows an error whole.
// shown is nil if the client was told nothing. The message is that of the original error, with its causes.
func failureAttr(shown *ojs.Error, err error) slog.Attr {
	kind := observe.ErrorType(err)
	if shown != nil {
		kind = shown.Type
	}
	attrs := []any{slog.String("type", kind), slog.String("message", observe.ErrorMessage(err))}
	if p, ok := errors.AsType[*Panic](err); ok {
		attrs = append(attrs, slog.String("backtrace", observe.CutBacktrace(string(p.Stack))))
	}
	return slog.Group("error", attrs...)
}

// LogItem writes the line about one item of a request that failed while the request as a whole may succeed. Refusals of the
// client's items are not logged.
// It returns the error as it is shown, so that the caller decides only once.
func LogItem(ctx context.Context, logger *slog.Logger, requestID, route string, err error) *ojs.Error {
	shown, cause := Shown(ctx, err)
	if cause == CauseServer || cause == CauseUnknown {
		logger.LogAttrs(ctx, slog.LevelError, "item of a request failed", slog.String("category", "error"),
			slog.Group("request", slog.String("id", requestID), slog.String("route", route)), failureAttr(shown, err))
	}
	return shown
}

// RouteUnknown is the route of all requests that match none: labels made of what clients send would be without number.
const RouteUnknown = "unknown"

// Ending is how a request ended; it decides the level and the message of its log line.
// Both interfaces use the same words, so that one filter of the log finds both.
type Ending int

// The endings of requests.
const (
	Served Ending = iota
	Refused
	Failed
	Panicked
	HungUp   // the client did not wait for the answer
	CutShort // the answer had begun and could not be completed
	TooSlow  // the client did not read its stream
	Stopped  // the node stopped
)

// line has at most Info for what a client may cause at will, so that it cannot flood the log at the usual level; what an operator must
// know is Error. A served request is Debug.
func (e Ending) line() (slog.Level, string) {
	switch e {
	case Refused:
		return slog.LevelInfo, "request refused"
	case Failed:
		return slog.LevelError, "request failed"
	case Panicked:
		return slog.LevelError, "request panicked"
	case HungUp:
		return slog.LevelDebug, "client hung up"
	case CutShort:
		return slog.LevelWarn, "answer was cut short"
	case TooSlow:
		return slog.LevelWarn, "client is too slow: stream closed"
	case Stopped:
		return slog.LevelDebug, "call ended with the node"
	default:
		return slog.LevelDebug, "request served"
	}
}

// Ended is a request that is over; streams are at their end.
// It is filled when the request is over, by one goroutine, and not kept.
type Ended struct {
	RequestID string
	Method    string // of few values
	Route     string // the template, or RouteUnknown
	Status    slog.Value
	Took      time.Duration
	Remote    string // address of the client
	Ending    Ending
	OK        bool       // it did what was asked
	Err       error      // nil: it did not fail
	Shown     *ojs.Error // what the client was told about Err; nil: nothing
}

// Log writes the access-log line (docs/reference/observability.md, Logs). It never shows the URL, headers, metadata or
// body of a request. About a refusal it shows only the kind, because the text may quote what the client sent.
// The fixed array saves an allocation for each request; three attributes are the most there are.
func (e *Ended) Log(ctx context.Context, logger *slog.Logger) {
	level, message := e.Ending.line()
	if !logger.Enabled(ctx, level) {
		return
	}
	attrs := [3]slog.Attr{slog.String("category", "http"), slog.Group("request",
		slog.String("id", e.RequestID),
		slog.String("method", e.Method),
		slog.String("route", e.Route),
		slog.Attr{Key: "status", Value: e.Status},
		slog.Float64("duration_ms", float64(e.Took.Microseconds())/1000),
		slog.String("remote", e.Remote))}
	n := 2
	switch {
	case e.Err == nil:
	case e.Shown != nil && level < slog.LevelError:
		attrs[n], n = slog.Group("error", slog.String("type", e.Shown.Type)), n+1
	default:
		attrs[n], n = failureAttr(e.Shown, e.Err), n+1
	}
	logger.LogAttrs(ctx, level, message, attrs[:n]...)
}

// EndSpan ends the span of the request. Like the log it shows nothing of the request beyond its route.
// attrs may be appended to: its backing array belongs to the caller of this request.
func (e *Ended) EndSpan(span tracing.Request, name string, attrs ...attribute.KeyValue) {
	if !span.Recording() {
		return
	}
	o := tracing.Outcome{
		Name: name, Failed: e.Ending == Failed || e.Ending == Panicked, OK: e.OK,
		Attrs: append(attrs, attribute.String("ojs.backend.type", Backend), attribute.String("ojs.request.id", e.RequestID)),
	}
	if e.Shown != nil {
		o.ErrorType, o.ErrorMessage = e.Shown.Type, e.Shown.Message
	}
	span.End(o)
}
