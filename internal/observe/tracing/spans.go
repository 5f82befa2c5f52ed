package tracing

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
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
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("ojs.backend.type", "postgres")))
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
func (t *Tracer) startEnqueue(ctx context.Context, request trace.SpanContext, own job.TraceContext, j *job.Job) Enqueue {
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(
			attribute.String("messaging.system", "ojs"), attribute.String("messaging.operation.type", "publish"),
			attribute.String("messaging.destination.name", j.Queue), attribute.String("ojs.job.type", j.Type),
			attribute.String("ojs.job.queue", j.Queue), attribute.Int("ojs.job.priority", int(j.Priority)),
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
	_, span := t.tracer.Start(ctx, "ojs.enqueue "+j.Type, options...)
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
		attrs = append(attrs, attribute.String("ojs.workflow.id", spec.FormatID(a.WorkflowID)),
			attribute.String("ojs.workflow.step", a.Step))
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

// executed keeps the trace contexts of the attempts of workflow jobs that this node has recorded, until their workflow follows, which is
// right after. It is a help for the shape of traces and not needed for anything else: what is lost makes a successor the child
// of the workflow.
type executed struct {
	mu    sync.Mutex
	byJob map[[16]byte]string
}

// maxExecuted bounds what is kept of attempts that another node has followed. Then all are forgotten: their successors have the trace
// context of the workflow.
const maxExecuted = 10_000

func (e *executed) add(id [16]byte, parent string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byJob == nil || len(e.byJob) >= maxExecuted {
		e.byJob = map[[16]byte]string{}
	}
	e.byJob[id] = parent
}

// Executed returns the traceparent of the latest attempt of a workflow job, once; "" if it was not recorded on this node.
func (t *Tracer) Executed(id [16]byte) string {
	if !t.recording() {
		return ""
	}
	t.executed.mu.Lock()
	defer t.executed.mu.Unlock()
	parent := t.executed.byJob[id]
	delete(t.executed.byJob, id)
	return parent
}

// WorkflowRun is a workflow that has ended.
type WorkflowRun struct {
	ID    [16]byte
	Name  string
	Type  string
	State string
	Meta  []byte
	Error []byte // of its first failure, as {"code":…,"message":…}; nil: it has completed

	Start, End time.Time
}

// Workflow records a workflow. Its parent is the trace context in its meta. A workflow is recorded by the node that ends it,
// once.
func (t *Tracer) Workflow(w WorkflowRun) {
	if !t.recording() {
		return
	}
	ctx := context.Background()
	if own := job.TraceContextOf(w.Meta); own.Traceparent != "" {
		ctx = trace.ContextWithRemoteSpanContext(ctx, remote(own.Traceparent, own.Tracestate))
	}
	_, span := t.tracer.Start(ctx, "ojs.workflow "+w.Name, trace.WithTimestamp(w.Start), trace.WithAttributes(
		attribute.String("messaging.system", "ojs"), attribute.String("ojs.workflow.id", spec.FormatID(w.ID)),
		attribute.String("ojs.workflow.type", w.Type), attribute.String("ojs.workflow.state", w.State),
		attribute.String("ojs.backend.type", "postgres")))
	if w.Error == nil {
		span.SetStatus(codes.Ok, "")
	} else {
		code, message := job.ErrorTexts(w.Error)
		span.SetAttributes(attribute.String("error.type", code), attribute.String("error.message", message))
		span.SetStatus(codes.Error, message)
	}
	span.End(trace.WithTimestamp(w.End))
}

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
