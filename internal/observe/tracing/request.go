package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Request is the span of one call to this server. The zero value is none.
type Request struct{ span trace.Span }

// Request starts the span of a call whose context Receive has seen. The name may be given at its end.
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

// Client starts the span of a call that this server makes to another one.
func (t *Tracer) Client(ctx context.Context, name string) (context.Context, Request) {
	if !t.recording() {
		return ctx, Request{}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("ojs.backend.type", "postgres")))
	return ctx, Request{span}
}

// Recording reports whether anybody will see the span.
func (r Request) Recording() bool { return r.span != nil && r.span.IsRecording() }

// Outcome is how a call ended.
type Outcome struct {
	Name  string // {METHOD} {route}, or the name of the rpc
	Attrs []attribute.KeyValue

	Failed    bool // by our fault
	OK        bool // it did what was asked; neither: the caller's fault
	ErrorType string

	ErrorMessage string // only of a failure, as the caller was told it
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

// Pass is one pass of a loop. The zero value is none.
type Pass struct{ span trace.Span }

// Pass starts the span of a pass, which nobody sees unless its End says that there was work. A pass that a request has set
// off (a fetch sweeps what is due) works for all, so it leaves the request's trace behind.
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

// End ends the span of a pass that dealt with so many things.
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
