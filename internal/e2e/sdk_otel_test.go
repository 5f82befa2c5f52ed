package e2e_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsotel"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// TestSDKTrace: request, enqueue and execution are one trace, and executions are counted by outcome.
func TestSDKTrace(t *testing.T) {
	t.Parallel()
	spans, reader := tracetest.NewInMemoryExporter(), sdkmetric.NewManualReader()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	telemetry, err := ojsotel.New(ojsotel.Config{TracerProvider: provider, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	require.NoError(t, err)
	server := ojstest.New()
	client := server.Client()
	client.UseNamed("otel", telemetry.Enqueue)
	worker := ojs.NewWorker(client, ojs.WorkerConfig{Concurrency: 1})
	worker.UseNamed("otel", telemetry.Execute)
	worker.OnEvent(ojs.EventJobUnhandled, telemetry.Unhandled)
	var inHandler []trace.TraceID
	worker.Register("good", func(ctx ojs.JobContext) error {
		inHandler = append(inHandler, trace.SpanContextFromContext(ctx).TraceID())
		return nil
	})
	worker.Register("bad", func(ojs.JobContext) error { return ojs.Discard(errors.New("no")) })
	worker.Register("snoozes", func(ojs.JobContext) error { return fmt.Errorf("wrapped: %w", ojs.Snooze(time.Hour)) })
	worker.Register("cancels", func(ojs.JobContext) error { return ojs.Cancel() })
	worker.Register("panics", func(ojs.JobContext) error { panic("ouch") })

	ctx, request := provider.Tracer("test").Start(t.Context(), "request")
	for _, name := range []string{"good", "bad", "panics", "snoozes", "cancels", "unknown"} {
		_, err = client.Enqueue(ctx, name, nil)
		require.NoError(t, err)
	}
	_, err = client.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "first"}, {Type: "second"}, {Type: "third"}})
	require.NoError(t, err)
	request.End()
	server.Drain(t, worker, 10*time.Second)

	byName := map[string]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		byName[s.Name] = s
		require.Equal(t, request.SpanContext().TraceID(), s.SpanContext.TraceID(), s.Name)
	}
	require.Equal(t, []trace.TraceID{request.SpanContext().TraceID()}, inHandler)
	require.Equal(t, byName["ojs.enqueue good"].SpanContext.SpanID(), byName["ojs.execute good"].Parent.SpanID())
	require.Equal(t, trace.SpanKindProducer, byName["ojs.enqueue good"].SpanKind)
	require.Equal(t, trace.SpanKindConsumer, byName["ojs.execute good"].SpanKind)
	for name, code := range map[string]codes.Code{"good": codes.Unset, "bad": codes.Error, "panics": codes.Error} {
		require.Equal(t, code, byName["ojs.execute "+name].Status.Code, name)
	}
	for _, name := range []string{"first", "second", "third"} {
		require.Equal(t, request.SpanContext().SpanID(), byName["ojs.enqueue "+name].Parent.SpanID(), "jobs of a batch are siblings")
	}
	for name, outcome := range map[string]string{"snoozes": "snoozed", "cancels": "cancelled"} {
		span := byName["ojs.execute "+name]
		require.Equal(t, codes.Unset, span.Status.Code, name)
		require.Empty(t, span.Events, name)
		require.Contains(t, span.Attributes, attribute.String("ojs.job.outcome", outcome))
	}
	var metrics metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &metrics))
	counts := map[string]int64{}
	for _, m := range metrics.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			for _, p := range sum.DataPoints {
				counts[m.Name] += p.Value
			}
		}
	}
	require.Equal(t, map[string]int64{"ojs.client.jobs.enqueued": 9, "ojs.client.jobs.completed": 1, "ojs.client.jobs.failed": 2, "ojs.client.jobs.unhandled": 4}, counts)
}
