package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// Enqueue is the span of enqueuing a job. The zero value records nothing.
type Enqueue struct{ span trace.Span }

// Enqueue starts the span of a job, and adds the request's trace context to meta if it has none
// (docs/reference/observability.md, Trace context). Call it once per job, before the job is stored. It changes j.Meta and
// j.TraceID. A server without tracing still passes on the context of the request.
func (t *Tracer) Enqueue(ctx context.Context, j *job.Job) Enqueue {
	if t == nil {
		return Enqueue{}
	}
	request := received(ctx)
	if !t.recording() && !request.IsValid() {
		return Enqueue{}
	}
	// What the client put into meta is never replaced, valid or not.
	own := job.TraceContextOf(j.Meta)
	var e Enqueue
	if t.recording() {
		e = t.startEnqueue(ctx, request, own, j)
	}
	if carried := e.carried(ctx, request); carried.IsValid() && !own.Present {
		t.inject(j, carried)
	}
	return e
}

// carried is the context that a job without one of its own takes along: that of the enqueue span if it is recorded, else that
// of the request. If the request has none, the span's context goes along unrecorded too, with its flag, so that the
// execution is in the same trace and is recorded exactly if the enqueue was.
func (e Enqueue) carried(ctx context.Context, request trace.SpanContext) trace.SpanContext {
	inPass := ctx.Value(passKey{}) != nil
	if e.span == nil || request.IsValid() && !e.span.IsRecording() || inPass && !request.IsValid() {
		return request
	}
	return e.span.SpanContext()
}

// startEnqueue chooses the parent: the request if it is part of a trace, else the context in meta. If both exist and differ,
// the one in meta becomes a link.
func (t *Tracer) startEnqueue(ctx context.Context, request trace.SpanContext, own job.TraceContext, job *job.Job) Enqueue {
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(
			attribute.String("messaging.system", "ojs"), attribute.String("messaging.operation.type", "publish"),
			attribute.String("messaging.destination.name", job.Queue), attribute.String("ojs.job.type", job.Type),
			attribute.String("ojs.job.queue", job.Queue), attribute.Int("ojs.job.priority", int(job.Priority)),
			attribute.String("ojs.backend.type", "postgres")),
	}
	// In a pass there is no request, and a pass must not become part of a client's trace: the context in meta is a link then.
	if own.Traceparent != "" {
		client := remote(own.Traceparent, own.Tracestate)
		inPass := ctx.Value(passKey{}) != nil
		switch {
		case !inPass && !request.IsValid():
			ctx = trace.ContextWithRemoteSpanContext(ctx, client)
		case inPass || client.TraceID() != request.TraceID() || client.SpanID() != request.SpanID():
			options = append(options, trace.WithLinks(trace.Link{SpanContext: client}))
		}
	}
	_, span := t.tracer.Start(ctx, "ojs.enqueue "+job.Type, options...)
	return Enqueue{span}
}

// inject adds a trace context to meta, unless meta would exceed its limit. The job is stored without a context then: tracing
// must not make an enqueue fail.
func (t *Tracer) inject(j *job.Job, sc trace.SpanContext) {
	meta := job.WithTraceContext(j.Meta, traceparent(sc), sc.TraceState().String())
	if len(meta) > t.config.MaxMetaBytes {
		return
	}
	j.Meta = meta
	// A client's own trace_id stays, although the span is in another trace.
	if j.TraceID == "" {
		j.TraceID = sc.TraceID().String()
	}
}

// Begun reports whether there is a span.
func (e Enqueue) Begun() bool { return e.span != nil }

// Accepted ends the span of a stored job. The span of any other job is never exported. A span that is never ended is never
// exported, so refused and duplicate jobs leave none.
func (e Enqueue) Accepted(id [16]byte, state string) {
	if e.span == nil {
		return
	}
	text := spec.FormatID(id)
	e.span.SetAttributes(attribute.String("messaging.message.id", text), attribute.String("ojs.job.id", text),
		attribute.String("ojs.job.state", state), attribute.Int("ojs.job.attempt", 0))
	e.span.SetStatus(codes.Ok, "")
	e.span.End()
}

// Attempt is an attempt that has ended.
type Attempt struct {
	ID       [16]byte
	Type     string
	Queue    string
	State    string // of the job now
	Priority int16
	Attempt  int32
	WorkerID string
	Meta     []byte

	WorkflowID [16]byte // root; zero: none
	Step       string   // of the workflow

	CreatedAt, Start, End time.Time

	Failed                  bool
	ErrorType, ErrorMessage string
}

// Executing reports whether attempts are recorded.
func (t *Tracer) Executing() bool { return t.recording() }

// Execute records an attempt. Its parent is the job's trace context, unless the job has waited longer than maxParentDelay.
// The span is made whole after the attempt, with both times given; nothing is open while a job runs.
func (t *Tracer) Execute(a Attempt) {
	if !t.Executing() {
		return
	}
	ctx := context.Background()
	id := spec.FormatID(a.ID)
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "ojs"), attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", a.Queue), attribute.String("messaging.message.id", id),
		attribute.String("ojs.job.id", id), attribute.String("ojs.job.type", a.Type), attribute.String("ojs.job.queue", a.Queue),
		attribute.String("ojs.job.state", a.State), attribute.Int("ojs.job.attempt", int(a.Attempt)),
		attribute.Int("ojs.job.priority", int(a.Priority)), attribute.String("ojs.backend.type", "postgres"),
	}
	if a.WorkerID != "" {
		attrs = append(attrs, attribute.String("ojs.worker.id", a.WorkerID))
	}
	if a.WorkflowID != [16]byte{} {
		attrs = append(attrs, attribute.String("ojs.workflow.id", spec.FormatID(a.WorkflowID)), attribute.String("ojs.workflow.step", a.Step))
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(a.Start)}
	if own := job.TraceContextOf(a.Meta); own.Traceparent != "" {
		parent := remote(own.Traceparent, own.Tracestate)
		// The link still leads from one trace to the other.
		if a.Start.Sub(a.CreatedAt) > maxParentDelay {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: parent}))
		} else {
			ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
		}
	}
	_, span := t.tracer.Start(ctx, "ojs.execute "+a.Type, append(options, trace.WithAttributes(attrs...))...)
	if a.Failed {
		span.SetAttributes(attribute.String("error.type", a.ErrorType), attribute.String("error.message", a.ErrorMessage),
			attribute.Int("ojs.job.error.attempt", int(a.Attempt)))
		span.SetStatus(codes.Error, a.ErrorMessage)
	} else {
		span.SetStatus(codes.Ok, "")
	}
	// It must be asked before End, after which no span records.
	recorded := span.IsRecording()
	span.End(trace.WithTimestamp(a.End))
	if a.WorkflowID != [16]byte{} && recorded {
		t.executed.add(a.ID, traceparent(span.SpanContext()))
	}
}
