package tracing

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/job"
)

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	later  = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"
)

func TestReceive(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, valid := range []string{parent, " " + parent, later} {
		sc := trace.SpanContextFromContext(Receive(ctx, []string{valid}, []string{"a=b", "c=d"}))
		require.True(t, sc.IsRemote())
		require.Equal(t, parent, traceparent(sc))
		require.Equal(t, "a=b,c=d", sc.TraceState().String())
	}
	for _, invalid := range [][]string{nil, {}, {""}, {"x"}, {parent, parent}, {"ff" + parent[2:]}, {parent + "-more"}, {strings.ToUpper(parent)}} {
		require.Equal(t, ctx, Receive(ctx, invalid, []string{"a=b"}), invalid)
	}
}

func TestNilTracer(t *testing.T) {
	t.Parallel()
	var tracer *Tracer
	ctx := Receive(context.Background(), []string{parent}, nil)
	job := &job.Job{Type: "t"}
	tracer.Enqueue(ctx, job).Accepted([16]byte{}, "available")
	require.Nil(t, job.Meta)
	_, request := tracer.Request(ctx, "x")
	request.End(Outcome{})
	_, pass := tracer.Pass(ctx, "x")
	pass.End(1, nil)
	require.False(t, tracer.Executing())
	tracer.Execute(Attempt{})
}

// A fetch sweeps what is due with its own context: what crons make then must not become part of its trace.
func TestPassLeavesTheRequestBehind(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	for name, tracer := range map[string]*Tracer{
		"Recording": New(Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))}),
		"Not":       New(Config{}),
	} {
		ctx, _ := tracer.Request(Receive(context.Background(), []string{parent}, nil), "POST /fetch")
		ctx, _ = tracer.Pass(ctx, "ojs.cron.trigger")
		job := &job.Job{Type: "t"}
		tracer.Enqueue(ctx, job).Accepted([16]byte{}, "available")
		require.Nil(t, job.Meta, name)
	}
	require.Len(t, exporter.GetSpans(), 1)
	require.NotEqual(t, parent[3:35], exporter.GetSpans()[0].SpanContext.TraceID().String())
}

func TestUnsampledRequests(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	tracer := New(Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	ctx, _ := tracer.Request(Receive(context.Background(), []string{parent[:53] + "00"}, nil), "x")
	job := &job.Job{Type: "t"}
	tracer.Enqueue(ctx, job).Accepted([16]byte{}, "available")
	require.Equal(t, `{"traceparent":"`+parent[:53]+`00"}`, string(job.Meta), "the received value, as no span is recorded")
	require.Empty(t, exporter.GetSpans())
}

func TestInjectKeepsTheLimit(t *testing.T) {
	t.Parallel()
	added := len(`,"traceparent":""`) + len(parent)
	for _, room := range []int{added - 1, added} {
		meta := `{"a":1}`
		job := &job.Job{Type: "t", Meta: []byte(meta)}
		New(Config{MaxMetaBytes: len(meta) + room}).Enqueue(Receive(context.Background(), []string{parent}, nil), job)
		require.Equal(t, room == added, len(job.Meta) > len(meta))
		require.Equal(t, room == added, job.TraceID != "")
	}
}

// collector is who receives traces.
func collector(t *testing.T) (url string, got <-chan string) {
	t.Helper()
	texts := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		texts <- r.URL.Path + " " + string(body)
	}))
	t.Cleanup(s.Close)
	return s.URL, texts
}

func TestProvider(t *testing.T) { // not parallel: the environment is everybody's
	service := Service{Name: "ojs", Version: "1.2.3", Instance: "here"}

	t.Run("IsNoneWithoutAnEndpoint", func(t *testing.T) {
		p, err := NewProvider(t.Context(), service)
		require.NoError(t, err)
		require.Nil(t, p)
	})

	t.Run("CanBeSwitchedOff", func(t *testing.T) {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		for name, value := range map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"} {
			t.Run(name, func(t *testing.T) {
				t.Setenv(name, value)
				p, err := NewProvider(t.Context(), service)
				require.NoError(t, err)
				require.Nil(t, p)
			})
		}
	})

	t.Run("SendsOnShutdown", func(t *testing.T) {
		url, got := collector(t)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
		for _, name := range []string{"", "billing"} {
			t.Setenv("OTEL_SERVICE_NAME", name)
			p, err := NewProvider(t.Context(), service)
			require.NoError(t, err)
			_, span := New(Config{Provider: p}).Request(t.Context(), "x")
			span.End(Outcome{Name: "GET /healthz", OK: true})
			require.NoError(t, p.Shutdown(t.Context()))
			text := <-got
			require.Contains(t, text, "/v1/traces ")
			require.Contains(t, text, "GET /healthz")
			require.Contains(t, text, "1.2.3")
			require.Equal(t, name == "billing", strings.Contains(text, "billing"))
		}
	})

	// The collector accepts connections and never answers, and the exporter itself would wait for hours: only the deadline
	// of Shutdown can end it.
	t.Run("ShutdownEndsAtItsDeadline", func(t *testing.T) {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, silent.Close()) })
		t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"+silent.Addr().String()+"/v1/traces")
		for _, name := range []string{"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_BSP_EXPORT_TIMEOUT"} {
			t.Setenv(name, "36000000")
		}
		for _, protocol := range []string{"grpc", "http/protobuf"} {
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			p, err := NewProvider(t.Context(), service)
			require.NoError(t, err)
			_, span := New(Config{Provider: p}).Request(t.Context(), "x")
			span.End(Outcome{Name: "x"})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_ = p.Shutdown(ctx) // the error is given to the error handler or returned
			cancel()
		}
	})

	t.Run("RefusesOtherProtocols", func(t *testing.T) {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
		_, err := NewProvider(t.Context(), service)
		require.ErrorContains(t, err, "http/json")
	})
}

// Without a trace context of the producer the job carries that of its enqueue span, with the decision whether it is sampled.
func TestJobCarriesTheEnqueueSpan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sampler sdktrace.Sampler
		flags   string
	}{"Sampled": {sdktrace.AlwaysSample(), "-01"}, "Unsampled": {sdktrace.NeverSample(), "-00"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exporter := tracetest.NewInMemoryExporter()
			config := Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(c.sampler))}
			ctx, request := New(config).Request(context.Background(), "POST /ojs/v1/jobs")
			j := &job.Job{Type: "t"}
			New(config).Enqueue(ctx, j).Accepted([16]byte{}, "available")
			request.End(Outcome{})
			carried := job.TraceContextOf(j.Meta).Traceparent
			require.Equal(t, c.flags, carried[len(carried)-3:])
			require.Equal(t, trace.SpanContextFromContext(ctx).TraceID().String(), j.TraceID)

			// The node that records the attempt samples everything by itself, but follows its parent.
			config.Provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
			New(config).Execute(Attempt{Type: "t", Meta: j.Meta})
			spans := exporter.GetSpans()
			require.Equal(t, c.flags == "-01", len(spans) == 3, "request, enqueue and execution, or none")
			for _, s := range spans {
				require.Equal(t, j.TraceID, s.SpanContext.TraceID().String())
			}
		})
	}
}

// TestLateAttempts: the execution of a job that has waited for more than an hour has a trace of its own with a link.
func TestLateAttempts(t *testing.T) {
	t.Parallel()
	for waited, child := range map[time.Duration]bool{0: true, time.Hour: true, time.Hour + time.Microsecond: false} {
		exporter := tracetest.NewInMemoryExporter()
		tracer := New(Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
		start := time.Now()
		tracer.Execute(Attempt{Type: "t", Meta: []byte(`{"traceparent":"` + parent + `"}`), CreatedAt: start.Add(-waited), Start: start})
		span := exporter.GetSpans()[0]
		require.Equal(t, child, span.SpanContext.TraceID().String() == parent[3:35], waited)
		require.Equal(t, child, len(span.Links) == 0, waited)
		if !child {
			require.Equal(t, parent, traceparent(span.Links[0].SpanContext))
		}
	}
}
