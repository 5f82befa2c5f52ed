// Package ojsotel traces and measures enqueuing and execution with OpenTelemetry:
//
//	t, err := ojsotel.New(ojsotel.Config{})
//	client.UseNamed("otel", t.Enqueue)
//	worker.UseNamed("otel", t.Execute)
//	worker.OnEvent(ojs.EventJobUnhandled, t.Unhandled)
//
// The trace context goes in the meta of the job, in traceparent and tracestate, so that an execution is in the trace of its enqueue,
// whichever server is between them. What enqueue middleware does not see takes the trace context of the caller by [TraceContext], for jobs
// in transactions, and [TraceWorkflow].
package ojsotel

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/ojs"
)

const scope = "github.com/ojsd/ojsd/ojs/ojsotel"

// propagator writes and reads the form of W3C, which servers read, too.
var propagator propagation.TraceContext

// Config chooses where spans and measurements go; nil: the global providers.
type Config struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
}

// Telemetry has the two middlewares, and a listener.
type Telemetry struct {
	tracer trace.Tracer

	enqueued, completed, failed, unhandled metric.Int64Counter
	duration                               metric.Float64Histogram
}

// New makes the instruments.
func New(config Config) (*Telemetry, error) {
	meter := cmp.Or(config.MeterProvider, otel.GetMeterProvider()).Meter(scope)
	t := &Telemetry{tracer: cmp.Or(config.TracerProvider, otel.GetTracerProvider()).Tracer(scope)}
	var errs [5]error
	t.enqueued, errs[0] = meter.Int64Counter("ojs.client.jobs.enqueued", metric.WithDescription("jobs that this program has enqueued"))
	t.completed, errs[1] = meter.Int64Counter("ojs.client.jobs.completed", metric.WithDescription("executions that ended well"))
	t.failed, errs[2] = meter.Int64Counter("ojs.client.jobs.failed", metric.WithDescription("executions that failed"))
	t.unhandled, errs[4] = meter.Int64Counter("ojs.client.jobs.unhandled",
		metric.WithDescription("jobs that were given back because their type has no handler"))
	t.duration, errs[3] = meter.Float64Histogram("ojs.client.jobs.duration_ms", metric.WithUnit("ms"),
		metric.WithDescription("time of executions"),
		metric.WithExplicitBucketBoundaries(5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return t, nil
}

// Enqueue is enqueue middleware: a span of kind PRODUCER for each job, whose context the job carries. A job that has a traceparent
// already keeps it.
func (t *Telemetry) Enqueue(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
	queue := cmp.Or(r.Queue, "default")
	ctx, span := t.tracer.Start(ctx, "ojs.enqueue "+r.Type, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("messaging.system", "ojs"), attribute.String("messaging.operation.type", "publish"),
		attribute.String("messaging.destination.name", queue),
		attribute.String("ojs.job.type", r.Type), attribute.String("ojs.job.queue", queue)))
	defer span.End()
	TraceContext(ctx)(r)
	job, err := next(ctx, r)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
		return nil, err
	}
	if job != nil {
		span.SetAttributes(attribute.String("ojs.job.id", job.ID), attribute.String("messaging.message.id", job.ID),
			attribute.String("ojs.job.state", string(job.State)))
	}
	t.enqueued.Add(ctx, 1, metric.WithAttributes(attribute.String("job_type", r.Type), attribute.String("queue", queue)))
	return job, nil
}

// TraceContext is an option of an enqueue that gives the job the trace context of ctx, for the functions that run no enqueue middleware:
//
//	id, err := ojspgx.Enqueue(ctx, tx, "email.send", args, ojsotel.TraceContext(ctx))
//
// The execution is then a child of the span in ctx. It makes no span of its own, because the transaction may be rolled back. For an
// ojspgx.EnqueueBatch, apply it to each request: ojsotel.TraceContext(ctx)(&requests[i]). A job that has a traceparent already keeps it,
// and without a span in ctx nothing is set.
func TraceContext(ctx context.Context) ojs.EnqueueOption {
	return func(r *ojs.JobRequest) { r.Meta = withTrace(ctx, r.Meta) }
}

// TraceWorkflow is a copy of a workflow with the trace context of ctx in its meta:
//
//	info, err := client.CreateWorkflow(ctx, ojsotel.TraceWorkflow(ctx, workflow))
//
// The server gives it to all jobs of the workflow, callbacks and nested workflows included, that have no trace of their own
// (docs/reference/workflows.md, Definition). A workflow that has a traceparent already keeps it, and without a span in ctx nothing is set.
func TraceWorkflow(ctx context.Context, workflow *ojs.Workflow) *ojs.Workflow {
	w := *workflow
	w.Meta = withTrace(ctx, w.Meta)
	return &w
}

// withTrace is meta with the trace context of ctx. The map itself stays as it is: it may be used for other jobs.
func withTrace(ctx context.Context, meta map[string]any) map[string]any {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	if _, has := meta["traceparent"]; has || len(carrier) == 0 {
		return meta
	}
	own := make(map[string]any, len(meta)+len(carrier))
	maps.Copy(own, meta)
	for key, value := range carrier {
		own[key] = value
	}
	return own
}

// Execute is execution middleware: a span of kind CONSUMER for each attempt, in the trace of the enqueue. An attempt that snoozes or
// cancels its job is no error, and counts neither as completed nor as failed; the attribute ojs.job.outcome of its span is snoozed or
// cancelled.
func (t *Telemetry) Execute(ctx ojs.JobContext, next ojs.HandlerFunc) (err error) {
	job := ctx.Job
	carrier := propagation.MapCarrier{}
	for _, key := range propagator.Fields() {
		if value, ok := job.Meta[key].(string); ok {
			carrier[key] = value
		}
	}
	traced, span := t.tracer.Start(propagator.Extract(ctx, carrier), "ojs.execute "+job.Type, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String("messaging.system", "ojs"), attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", job.Queue),
			attribute.String("messaging.message.id", job.ID), attribute.String("ojs.job.id", job.ID),
			attribute.String("ojs.job.type", job.Type),
			attribute.String("ojs.job.queue", job.Queue), attribute.Int("ojs.job.attempt", job.Attempt)))
	start, returned := time.Now(), false
	defer func() {
		labels := metric.WithAttributes(attribute.String("job_type", job.Type), attribute.String("queue", job.Queue))
		t.duration.Record(traced, float64(time.Since(start))/float64(time.Millisecond), labels)
		switch {
		case !returned: // a panic, which goes on
			span.SetStatus(codes.Error, "panic")
			t.failed.Add(traced, 1, labels)
		case ojs.IsSnooze(err):
			span.SetAttributes(attribute.String("ojs.job.outcome", "snoozed"))
		case ojs.IsCancel(err):
			span.SetAttributes(attribute.String("ojs.job.outcome", "cancelled"))
		case err != nil:
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
			t.failed.Add(traced, 1, labels)
		default:
			t.completed.Add(traced, 1, labels)
		}
		span.End()
	}()
	ctx.Context = traced
	err = next(ctx)
	returned = true
	return err
}

// Unhandled counts a job that the worker gives back, because its type has no handler.
func (t *Telemetry) Unhandled(e ojs.Event) {
	labels := metric.WithAttributes(attribute.String("job_type", e.JobType), attribute.String("queue", e.Queue))
	t.unhandled.Add(context.Background(), 1, labels)
}
