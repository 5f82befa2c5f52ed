package tracing

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

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
		attribute.String("ojs.workflow.type", w.Type), attribute.String("ojs.workflow.state", w.State), attribute.String("ojs.backend.type", "postgres")))
	if w.Error == nil {
		span.SetStatus(codes.Ok, "")
	} else {
		code, message := job.ErrorTexts(w.Error)
		span.SetAttributes(attribute.String("error.type", code), attribute.String("error.message", message))
		span.SetStatus(codes.Error, message)
	}
	span.End(trace.WithTimestamp(w.End))
}
