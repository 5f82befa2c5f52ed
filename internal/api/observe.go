package api

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

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

// What a client may cause at will is at most Info, so that it cannot flood the log at the usual level; what an operator must
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
