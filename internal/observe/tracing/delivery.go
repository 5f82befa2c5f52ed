package tracing

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
)

// Deliver starts the span of an attempt to deliver an event, in the trace of the event. header is the traceparent for the
// receiver: empty if nothing is recorded, or traceID is not a trace id. ctx is only used for the span; the caller ends it.
func (t *Tracer) Deliver(ctx context.Context, traceID string) (_ context.Context, header string, span Request) {
	parent, traced := eventTrace(traceID)
	if traced {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	ctx, span = t.Client(ctx, "ojs.webhook.deliver")
	if traced && span.span != nil {
		header = traceparent(span.span.SpanContext())
	}
	return ctx, header, span
}

// eventTrace is a parent span in the trace of an event. Its span id is random, because events keep only the trace id.
// The parent span does not exist anywhere. Tracing backends show the delivery in the trace, without a place below another span.
func eventTrace(id string) (trace.SpanContext, bool) {
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 {
		return trace.SpanContext{}, false
	}
	config := trace.SpanContextConfig{TraceID: trace.TraceID(raw), Remote: true, TraceFlags: trace.FlagsSampled}
	_, _ = rand.Read(config.SpanID[:]) // never fails
	sc := trace.NewSpanContext(config)
	return sc, sc.IsValid()
}
