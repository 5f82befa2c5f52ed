package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Request is the span of one call. The zero value records nothing.
type Request struct{ span trace.Span }

// Request starts the span of a call to this server. ctx comes from Receive. End may change the name. The context of the caller
// is kept beside the new span, because a job's context comes from the caller if this span is not recorded.
func (t *Tracer) Request(ctx context.Context, name string) (context.Context, Request) {
	if !t.recording() {
		return ctx, Request{}
	}
	parent := received(ctx)
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	if parent.IsValid() {
		ctx = context.WithValue(ctx, receivedKey{}, parent)
	}
	return ctx, Request{span}
}

// Client starts the span of a call that this server makes to another one. Its parent is what ctx has, such as the span of a
// pass.
func (t *Tracer) Client(ctx context.Context, name string) (context.Context, Request) {
	if !t.recording() {
		return ctx, Request{}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("ojs.backend.type", "postgres")))
	return ctx, Request{span}
}

// Recording reports whether the span will be exported. Callers ask before they compute attributes.
func (r Request) Recording() bool { return r.span != nil && r.span.IsRecording() }

// Outcome is how a call ended. A fault of the caller leaves the status unset, as the conventions of OpenTelemetry demand of
// servers.
type Outcome struct {
	Name  string // {METHOD} {route}, or the name of the rpc
	Attrs []attribute.KeyValue

	Failed    bool // by a fault of the server
	OK        bool // success; if neither is set, the fault is the caller's
	ErrorType string

	ErrorMessage string // if Failed: the message of the response
}

// End ends the span.
func (r Request) End(o Outcome) {
	if r.span == nil {
		return
	}
	r.span.SetName(o.Name)
	r.span.SetAttributes(o.Attrs...)
	if o.ErrorType != "" {
		r.span.SetAttributes(attribute.String("error.type", o.ErrorType))
	}
	switch {
	case o.Failed:
		r.span.SetAttributes(attribute.String("error.message", o.ErrorMessage))
		r.span.SetStatus(codes.Error, o.ErrorMessage)
	case o.OK:
		r.span.SetStatus(codes.Ok, "")
	}
	r.span.End()
}

// Pass is one pass of a loop. The zero value records nothing.
type Pass struct{ span trace.Span }

// Pass starts the span of a pass. It is exported only if End reports work. A pass inside a request (a fetch applies due jobs)
// works for all clients, so its span is not part of the request's trace. The context that it returns belongs to the pass: jobs
// that are enqueued in it are not part of the request's trace.
func (t *Tracer) Pass(ctx context.Context, name string) (context.Context, Pass) {
	if received(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(context.WithValue(ctx, receivedKey{}, trace.SpanContext{}), trace.SpanContext{})
	}
	if !t.recording() {
		return ctx, Pass{}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithNewRoot(), trace.WithAttributes(attribute.String("ojs.backend.type", "postgres")))
	return context.WithValue(ctx, passKey{}, true), Pass{span}
}

// End ends the span of a pass with the number of its items. A span without items is dropped.
func (p Pass) End(items int, err error) {
	if p.span == nil || items == 0 {
		return
	}
	p.span.SetAttributes(attribute.Int("ojs.pass.items", items))
	if err != nil {
		p.span.SetStatus(codes.Error, "the pass ended early")
	} else {
		p.span.SetStatus(codes.Ok, "")
	}
	p.span.End()
}
