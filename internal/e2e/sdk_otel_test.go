package e2e_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsotel"
	"github.com/ojsd/ojsd/ojs/ojspgx"
	"github.com/ojsd/ojsd/ojs/ojssql"
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

// TestSDKTraceWithoutMiddleware: jobs of transactions and of workflows are in the trace of their caller, too.
func TestSDKTraceWithoutMiddleware(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tracer := provider.Tracer("test")

	t.Run("InTransactions", func(t *testing.T) {
		t.Parallel()
		ctx, span := tracer.Start(t.Context(), "request")
		defer span.End()
		parent := "00-" + idOf(span.SpanContext()) + "-01"
		pool := dbtest.New(t)
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		requireMeta := func(id, want string) {
			t.Helper()
			var meta string
			require.NoError(t, pool.QueryRow(ctx, "SELECT meta::text FROM ojs.job WHERE id = $1", id).Scan(&meta))
			require.JSONEq(t, want, meta)
		}
		id, err := ojspgx.Enqueue(ctx, pool, "a", nil, ojsotel.TraceContext(ctx))
		require.NoError(t, err)
		requireMeta(id, `{"traceparent":"`+parent+`"}`)
		id, err = ojssql.Enqueue(ctx, db, "a", nil, ojs.WithMeta("k", "v"), ojsotel.TraceContext(ctx))
		require.NoError(t, err)
		requireMeta(id, `{"k":"v","traceparent":"`+parent+`"}`)
		id, err = ojspgx.Enqueue(ctx, pool, "a", nil, ojs.WithMeta("traceparent", "own"), ojsotel.TraceContext(ctx))
		require.NoError(t, err)
		requireMeta(id, `{"traceparent":"own"}`)
		id, err = ojspgx.Enqueue(ctx, pool, "", labelled{}, ojsotel.TraceContext(ctx))
		require.NoError(t, err)
		requireMeta(id, `{"label":"of the arguments","traceparent":"`+parent+`"}`)
		id, err = ojspgx.Enqueue(ctx, pool, "a", nil, ojs.WithMeta("k", "v"), ojsotel.TraceContext(t.Context()))
		require.NoError(t, err)
		requireMeta(id, `{"k":"v"}`)
	})

	runWorkflow := func(t *testing.T, client *ojs.Client, run func(*ojs.Worker)) {
		telemetry, err := ojsotel.New(ojsotel.Config{TracerProvider: provider})
		require.NoError(t, err)
		worker := ojs.NewWorker(client, ojs.WorkerConfig{})
		worker.UseNamed("otel", telemetry.Execute)
		var mu sync.Mutex
		traces := map[string]trace.TraceID{}
		for _, name := range []string{"first", "nested", "last", "own"} {
			worker.Register(name, func(ctx ojs.JobContext) error {
				mu.Lock()
				defer mu.Unlock()
				traces[name] = trace.SpanContextFromContext(ctx).TraceID()
				return nil
			})
		}
		ctx, span := tracer.Start(t.Context(), "request")
		defer span.End()
		other, otherSpan := tracer.Start(t.Context(), "other request")
		defer otherSpan.End()
		own := ojs.JobRequest{Type: "own"}
		ojsotel.TraceContext(other)(&own)
		workflow := ojs.Chain(ojs.JobRequest{Type: "first"}, ojs.Batch(ojs.Callbacks{OnComplete: &ojs.JobRequest{Type: "last"}},
			ojs.JobRequest{Type: "nested"}, own))
		workflow.Meta = map[string]any{"k": "v"}
		info, err := client.CreateWorkflow(ctx, ojsotel.TraceWorkflow(ctx, workflow))
		require.NoError(t, err)
		require.Equal(t, map[string]any{"k": "v", "traceparent": "00-" + idOf(span.SpanContext()) + "-01"}, info.Meta)
		require.Equal(t, map[string]any{"k": "v"}, workflow.Meta, "it may be created again")
		run(worker)
		eventually(t, func() bool {
			info, err := client.GetWorkflow(t.Context(), info.ID)
			require.NoError(t, err)
			return info.State == ojs.WorkflowCompleted
		})
		mu.Lock()
		defer mu.Unlock()
		id := span.SpanContext().TraceID()
		require.Equal(t, map[string]trace.TraceID{"first": id, "nested": id, "last": id, "own": otherSpan.SpanContext().TraceID()}, traces)
	}

	t.Run("InWorkflows", func(t *testing.T) {
		t.Parallel()
		runWorkflow(t, sdk(t, setup(t).url), func(w *ojs.Worker) { runWorker(t, w) })
	})

	t.Run("InWorkflowsOfTheServerInMemory", func(t *testing.T) {
		t.Parallel()
		server := ojstest.New()
		runWorkflow(t, server.Client(), func(w *ojs.Worker) { server.Drain(t, w, 10*time.Second) })
	})
}

// labelled are arguments whose jobs have meta.
type labelled struct{}

func (labelled) JobType() string { return "a" }
func (labelled) JobOptions() []ojs.EnqueueOption {
	return []ojs.EnqueueOption{ojs.WithMeta("label", "of the arguments")}
}
