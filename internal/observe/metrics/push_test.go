package metrics

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/eventlog"
)

// sink is a collector that keeps the latest of what it was sent.
type sink struct {
	collector.UnimplementedMetricsServiceServer
	mu      sync.Mutex
	metrics map[string]*otlp.Metric
	about   map[string]string
}

func (s *sink) Export(_ context.Context, r *collector.ExportMetricsServiceRequest) (*collector.ExportMetricsServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics, s.about = map[string]*otlp.Metric{}, map[string]string{}
	for _, rm := range r.GetResourceMetrics() {
		for _, a := range rm.GetResource().GetAttributes() {
			s.about[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				s.metrics[m.GetName()] = m
			}
		}
	}
	return &collector.ExportMetricsServiceResponse{}, nil
}

// ServeHTTP is the same over HTTP.
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportMetricsServiceRequest
	if err != nil || r.URL.Path != "/v1/metrics" || proto.Unmarshal(body, &req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	res, _ := s.Export(r.Context(), &req)
	out, _ := proto.Marshal(res)
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(out)
}

func stringsOf(attributes []*common.KeyValue) map[string]string {
	values := map[string]string{}
	for _, a := range attributes {
		values[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return values
}

// requireSent checks names, units, labels and buckets of what arrived.
func (s *sink) requireSent(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	enqueued := s.metrics["ojs.jobs.enqueued"]
	require.NotNil(t, enqueued)
	require.Equal(t, "{job}", enqueued.GetUnit())
	require.True(t, enqueued.GetSum().GetIsMonotonic())
	require.Equal(t, otlp.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE, enqueued.GetSum().GetAggregationTemporality())
	point := enqueued.GetSum().GetDataPoints()[0]
	require.EqualValues(t, 1, point.GetAsInt())
	require.Equal(t, map[string]string{"job_type": "mail.send", "queue": "default"}, stringsOf(point.GetAttributes()))
	require.NotZero(t, point.GetStartTimeUnixNano())

	ran := s.metrics["ojs.jobs.duration_ms"]
	require.Equal(t, "ms", ran.GetUnit())
	h := ran.GetHistogram().GetDataPoints()[0]
	require.Equal(t, []float64{5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000}, h.GetExplicitBounds())
	require.InDelta(t, 80, h.GetSum(), 0)
	require.Equal(t, 4, slices.Index(h.GetBucketCounts(), 1))
	require.Contains(t, s.metrics, "ojs.jobs.wait_ms")
	exceeded := s.metrics["ojs.rate_limit.exceeded"].GetSum().GetDataPoints()[0]
	require.EqualValues(t, 2, exceeded.GetAsInt())
	require.Equal(t, map[string]string{"key": "geo-api"}, stringsOf(exceeded.GetAttributes()))
	require.Contains(t, s.metrics, "go_goroutines")
	require.Contains(t, s.metrics, "process_start_time_seconds")
	require.Equal(t, "shop", s.about["service.name"])
	require.Equal(t, "1.2.3", s.about["service.version"])
	require.Equal(t, "blue", s.about["deployment"])
}

// Not parallel: the exporter reads the variables of the process.
func TestPush(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=blue")
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
	pushing := func(t *testing.T, protocol, endpoint string) (*Metrics, *bytes.Buffer) {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
		var log bytes.Buffer
		shop := config.Default()
		shop.Events.ServiceName = "shop"
		m, err := New(shop, Deps{Version: "1.2.3", Protocol: protocol, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		m.Changes(t.Context(), life())
		m.Limited("geo-api", 2)
		require.NoError(t, m.Push(t.Context()))
		return m, &log
	}
	last := func(t *testing.T, m *Metrics, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return m.Shutdown(ctx)
	}

	t.Run("OverHTTP", func(t *testing.T) {
		s := &sink{}
		server := httptest.NewServer(s)
		defer server.Close()
		m, _ := pushing(t, "http/protobuf", server.URL)
		require.NoError(t, last(t, m, time.Minute))
		s.requireSent(t)
	})

	t.Run("OverGRPC", func(t *testing.T) {
		s, server := &sink{}, grpc.NewServer()
		collector.RegisterMetricsServiceServer(server, s)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() { _ = server.Serve(listener) }() // until Stop
		defer server.Stop()
		m, _ := pushing(t, "grpc", "http://"+listener.Addr().String())
		require.NoError(t, last(t, m, time.Minute))
		s.requireSent(t)
	})

	t.Run("AtIntervals", func(t *testing.T) {
		s := &sink{}
		server := httptest.NewServer(s)
		defer server.Close()
		m, _ := pushing(t, "http/protobuf", server.URL)
		require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.metrics != nil }, time.Minute, time.Millisecond)
		require.NoError(t, last(t, m, time.Minute))
	})

	t.Run("NamedByTheEnvironment", func(t *testing.T) {
		t.Setenv("OTEL_SERVICE_NAME", "other")
		s := &sink{}
		server := httptest.NewServer(s)
		defer server.Close()
		m, _ := pushing(t, "http/protobuf", server.URL)
		require.NoError(t, last(t, m, time.Minute))
		require.Equal(t, "other", s.about["service.name"])
	})

	t.Run("RefusedConnection", func(t *testing.T) {
		m, log := pushing(t, "http/protobuf", "http://127.0.0.1:1")
		require.NoError(t, last(t, m, time.Minute))
		require.Contains(t, log.String(), "metrics cannot be pushed")
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")))
	})

	t.Run("NoAnswer", func(t *testing.T) {
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "36000000") // 10 h: only the deadline of Shutdown can end it
		hang := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
		m, _ := pushing(t, "http/protobuf", server.URL)
		m.Changes(t.Context(), []eventlog.Change{{Type: "job.enqueued", JobType: "mail.send", Queue: "default"}})
		_ = last(t, m, 200*time.Millisecond) // that it failed is all there is to say
		close(hang)
		server.Close()
	})

	t.Run("UnknownProtocol", func(t *testing.T) {
		m, err := New(config.Default(), Deps{Protocol: "http/json"})
		require.NoError(t, err)
		require.ErrorContains(t, m.Push(t.Context()), "http/json")
		require.NoError(t, m.Shutdown(t.Context()))
	})
}

func TestPushToWhatIsNoURL(t *testing.T) { // not parallel: see TestPush
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ":::bad")
	m := setup(t, Deps{Protocol: "grpc"})
	require.ErrorContains(t, m.Push(t.Context()), "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL")
}
