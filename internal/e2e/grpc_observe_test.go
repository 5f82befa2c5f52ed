package e2e_test

import (
	"io"
	"log/slog"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/observe"
)

// TestGRPCTrace covers docs/reference/observability.md, Tracing.
func TestGRPCTrace(t *testing.T) {
	t.Parallel()

	t.Run("JoinsCallEnqueueAndExecute", func(t *testing.T) {
		t.Parallel()
		exporter := tracetest.NewInMemoryExporter()
		r := setupGRPC(t, func(c *app.Config) { c.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)) })
		a := tracedNode{r.node, exporter}
		res, err := r.Enqueue(r.ctx("traceparent", parent1, "tracestate", "congo=t61rcWkgMzE", "tracestate", "rojo=1", "x-ojs-request-id", "r-1"),
			&ojsv1.EnqueueRequest{Type: "mail.send"})
		require.NoError(t, err)
		request := a.span("ojs.v1.OJSService/Enqueue", "ojs.request.id", "r-1")
		require.Equal(t, trace.SpanKindServer, request.SpanKind)
		require.Equal(t, trace1+"-"+span1, parentOf(request))
		require.Equal(t, otelcodes.Ok, request.Status.Code)
		require.Equal(t, "0", attr(request, "rpc.grpc.status_code"))

		id := res.GetJob().GetId()
		enqueue := a.span("ojs.enqueue mail.send", "ojs.job.id", id)
		require.Equal(t, idOf(request.SpanContext), parentOf(enqueue))
		require.Empty(t, enqueue.Links)
		meta := res.GetJob().GetMeta().AsMap()
		require.Equal(t, map[string]any{"traceparent": "00-" + idOf(enqueue.SpanContext) + "-01", "tracestate": "congo=t61rcWkgMzE,rojo=1"}, meta)
		require.Equal(t, trace1, res.GetJob().GetTraceId())

		_, err = r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{"default"}, WorkerId: "w"})
		require.NoError(t, err)
		_, err = r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id})
		require.NoError(t, err)
		require.Equal(t, idOf(enqueue.SpanContext), parentOf(a.span("ojs.execute mail.send", "ojs.job.id", id)))

		_, err = r.GetJob(r.ctx("x-ojs-request-id", "r-2"), &ojsv1.GetJobRequest{JobId: "x"})
		require.Error(t, err)
		refused := a.span("ojs.v1.OJSService/GetJob", "ojs.request.id", "r-2")
		require.Equal(t, otelcodes.Unset, refused.Status.Code, "that is the caller's fault")
		require.Equal(t, "not_found", attr(refused, "error.type"))
		require.False(t, refused.Parent.IsValid())
	})

	t.Run("EventStreamIsOneSpan", func(t *testing.T) {
		t.Parallel()
		exporter := tracetest.NewInMemoryExporter()
		r := setupGRPC(t, func(c *app.Config) { c.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)) })
		a := tracedNode{r.node, exporter}
		in := r.listenEvents(&ojsv1.StreamEventsRequest{})
		r.enqueue("q")
		in.next()
		in.cancel()
		span := a.span("ojs.v1.OJSService/StreamEvents", "rpc.grpc.status_code", "1")
		require.Equal(t, otelcodes.Unset, span.Status.Code)
	})

	t.Run("WithoutSpansTheReceivedContextIsAdded", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		res, err := r.Enqueue(r.ctx("traceparent", parent1), &ojsv1.EnqueueRequest{Type: "t"})
		require.NoError(t, err)
		require.Equal(t, map[string]any{"traceparent": parent1}, res.GetJob().GetMeta().AsMap())
		batch, err := r.EnqueueBatch(r.ctx("traceparent", parent1), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{
			{Type: "t"}, {Type: "t", Options: &ojsv1.EnqueueOptions{Meta: object(t, map[string]any{"traceparent": parent2})}},
		}})
		require.NoError(t, err)
		require.Equal(t, map[string]any{"traceparent": parent1}, batch.GetJobs()[0].GetMeta().AsMap())
		require.Equal(t, map[string]any{"traceparent": parent2}, batch.GetJobs()[1].GetMeta().AsMap(), "that of the client stays")
	})

	t.Run("InvalidContextIsIgnored", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		for _, pairs := range [][]string{{"traceparent", "nonsense"}, {"traceparent", parent1, "traceparent", parent2}, {"tracestate", "a=b"}, nil} {
			res, err := r.Enqueue(r.ctx(pairs...), &ojsv1.EnqueueRequest{Type: "t"})
			require.NoError(t, err)
			require.Empty(t, res.GetJob().GetMeta().AsMap(), pairs)
		}
	})
}

// TestGRPCLog covers docs/reference/observability.md, Logs.
func TestGRPCLog(t *testing.T) {
	t.Parallel()
	log := &lineBuffer{}
	r := setupGRPC(t, func(c *app.Config) { c.Logger = observe.NewLogger(log, "json", slog.LevelDebug) })

	calls := []struct {
		id, message, severe, route, status, errorType string
		call                                          func() error
	}{
		{"r-ok", "request served", "DEBUG", "/ojs.v1.OJSService/Enqueue", "OK", "", func() error {
			_, err := r.Enqueue(r.ctx("x-ojs-request-id", "r-ok", "traceparent", parent1),
				&ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{value(t, "marker")}})
			return err
		}},
		{"r-bad", "request refused", "INFO", "/ojs.v1.OJSService/Enqueue", "INVALID_ARGUMENT", "invalid_job_type", func() error {
			_, err := r.Enqueue(r.ctx("x-ojs-request-id", "r-bad", "traceparent", parent1), &ojsv1.EnqueueRequest{Type: "marker marker"})
			return err
		}},
		{"r-none", "request refused", "INFO", "/ojs.v1.OJSService/GetJob", "NOT_FOUND", "not_found", func() error {
			_, err := r.GetJob(r.ctx("x-ojs-request-id", "r-none", "traceparent", parent1), &ojsv1.GetJobRequest{JobId: "marker"})
			return err
		}},
		{"r-no-rpc", "request refused", "INFO", "unknown", "UNIMPLEMENTED", "unsupported", func() error {
			return r.conn.Invoke(r.ctx("x-ojs-request-id", "r-no-rpc", "traceparent", parent1), "/ojs.v1.OJSService/marker", &ojsv1.ManifestRequest{}, &ojsv1.ManifestResponse{})
		}},
	}
	for _, row := range calls {
		err := row.call()
		require.Equal(t, row.errorType == "", err == nil, row.id)
		line := log.line(t, row.message, row.id)
		require.Equal(t, row.severe, line.at("severity"))
		require.Equal(t, "http", line.at("category"))
		require.Equal(t, row.id, line.at("request.id"))
		require.Equal(t, "grpc", line.at("request.method"))
		require.Equal(t, row.route, line.at("request.route"))
		require.Equal(t, row.status, line.at("request.status"))
		require.Regexp(t, `^\d+(\.\d+)?$`, line.at("request.duration_ms"))
		require.Regexp(t, `^127\.0\.0\.1:\d+$`, line.at("request.remote"))
		require.Equal(t, trace1, line.at("trace.trace_id"))
		if row.errorType != "" {
			require.Equal(t, `{"type":"`+row.errorType+`"}`, line.at("error"))
		}
	}

	in := r.listenEvents(&ojsv1.StreamEventsRequest{})
	in.cancel()
	hungUp := log.line(t, "client hung up", "StreamEvents")
	require.Equal(t, "DEBUG", hungUp.at("severity"))
	require.Equal(t, "CANCELLED", hungUp.at("request.status"))

	last := r.listenEvents(&ojsv1.StreamEventsRequest{})
	require.NoError(t, r.app.Stop())
	require.Equal(t, codes.Unavailable, status.Code(last.ends()))
	require.Equal(t, "DEBUG", log.line(t, "call ended with the node", "StreamEvents").at("severity"), "a restart is no failure")
	require.Empty(t, log.lines(t, "request failed"))
	require.NotContains(t, log.String(), "marker")
}

// TestGRPCMetrics covers docs/reference/observability.md, Metrics.
func TestGRPCMetrics(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t, freshGauges)
	r.enqueue("q")
	_, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: "x"})
	require.Error(t, err)
	for _, method := range []string{"/ojs.v1.OJSService/One", "/ojs.v1.OJSService/Two", "/elsewhere/Three"} {
		require.Error(t, r.conn.Invoke(r.ctx(), method, &ojsv1.ManifestRequest{}, &ojsv1.ManifestResponse{}))
	}
	want := map[string]float64{
		"code=OK,method=/ojs.v1.OJSService/Enqueue": 1, "code=NOT_FOUND,method=/ojs.v1.OJSService/GetJob": 1, "code=UNIMPLEMENTED,method=unknown": 3,
	}
	var s scrape
	eventually(t, func() bool { s = r.scrape(); return maps.Equal(want, s.values("ojs_grpc_requests_total")) }) // counted after the answer
	require.Equal(t, want, s.values("ojs_grpc_request_duration_seconds"))
	require.Equal(t, 1.0, s.values("ojs_jobs_enqueued_total")["job_type=t,queue=q"])

	count := func(name string) float64 {
		of, ok := r.scrape().values(name)["transport=grpc"]
		require.True(t, ok, name)
		return of
	}
	for _, name := range []string{"ojs_realtime_connections", "ojs_realtime_catchup_connections", "ojs_realtime_dropped_total"} {
		require.Zero(t, count(name))
	}
	events := r.listenEvents(&ojsv1.StreamEventsRequest{})
	jobs := r.listenJobs("w", 1, "none")
	eventually(t, func() bool { return count("ojs_realtime_connections") == 2 })
	events.cancel()
	jobs.cancel()
	eventually(t, func() bool { return count("ojs_realtime_connections") == 0 })
	eventually(t, func() bool {
		return r.scrape().values("ojs_grpc_requests_total")["code=CANCELLED,method=/ojs.v1.OJSService/StreamEvents"] == 1
	})
}

func TestGRPCMetricsOfSlowClient(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t, freshGauges, func(c *app.Config) { c.Realtime.BufferSize, c.Realtime.Overflow = 10, "drop" })
	slow := r.narrow()
	stream, err := slow.StreamEvents(slow.ctx(), &ojsv1.StreamEventsRequest{})
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	slow.overfill()
	dropped := func() float64 { return r.scrape().values("ojs_realtime_dropped_total")["transport=grpc"] }
	for { // what is read makes room for the next, before which the rest is dropped
		e, err := stream.Recv()
		require.NotErrorIs(t, err, io.EOF)
		require.NoError(t, err)
		if e.GetType() == "system.events_dropped" {
			break
		}
	}
	require.Positive(t, dropped())
}
