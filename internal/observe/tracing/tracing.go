// Package tracing owns the spans and the rules of trace contexts (docs/reference/observability.md, Tracing): parents, links,
// and what is added to the meta of jobs. It must cost nothing while nothing is recorded, and never make a job or a request
// fail.
package tracing

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/job"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/ojsd/ojsd"

// Config says what is traced. The zero value of a field means its default.
type Config struct {
	// Provider makes the spans. nil: none are recorded.
	Provider trace.TracerProvider

	// MaxMetaBytes is the limit of a job's meta with the added trace context. job.MaxMetaBytes.
	MaxMetaBytes int
}

// maxParentDelay is how long a job may wait for its execution to be in the same trace: tracing backends drop traces that stay
// open for long.
const maxParentDelay = time.Hour

// Tracer makes spans. Use New; a nil Tracer makes none and adds nothing. It has one lock, for executed; spans are made without
// one. Any number of goroutines may use it.
type Tracer struct {
	config Config
	tracer trace.Tracer // nil: nothing is recorded

	executed executed
}

// New returns a tracer. With a nil Provider it still passes on the trace contexts of requests (Tracer.Enqueue).
func New(config Config) *Tracer {
	if config.MaxMetaBytes == 0 {
		config.MaxMetaBytes = job.MaxMetaBytes
	}
	t := &Tracer{config: config}
	if config.Provider != nil {
		t.tracer = config.Provider.Tracer(scope)
	}
	return t
}

func (t *Tracer) recording() bool { return t != nil && t.tracer != nil }

// Receive puts the trace context that came with a request, in an HTTP header or gRPC metadata, into its context. An invalid
// one is ignored. Several headers of that name are as good as none, because it cannot be known which one counts.
func Receive(ctx context.Context, traceparent, tracestate []string) context.Context {
	if len(traceparent) != 1 {
		return ctx
	}
	parent := strings.TrimSpace(traceparent[0])
	if !job.ValidTraceparent(parent) {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, remote(parent, strings.Join(tracestate, ",")))
}

// remote makes a span context of a valid traceparent. It drops an invalid tracestate, as W3C Trace Context demands.
func remote(traceparent, tracestate string) trace.SpanContext {
	config := trace.SpanContextConfig{Remote: true}
	_, _ = hex.Decode(config.TraceID[:], []byte(traceparent[3:35])) // the caller has checked the digits
	_, _ = hex.Decode(config.SpanID[:], []byte(traceparent[36:52]))
	var flags [1]byte
	_, _ = hex.Decode(flags[:], []byte(traceparent[53:55]))
	config.TraceFlags = trace.TraceFlags(flags[0])
	if tracestate != "" {
		config.TraceState, _ = trace.ParseTraceState(tracestate)
	}
	return trace.NewSpanContext(config)
}

// traceparent has version 00 whatever came: the server adds nothing that a later version knows.
func traceparent(sc trace.SpanContext) string {
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// keys of contexts.
type (
	receivedKey struct{} // the trace context of the request, after the server's span has replaced it as the current one
	passKey     struct{} // the context is that of a loop, not of a request
)

// received is the trace context of the request; not valid if the request has none.
func received(ctx context.Context) trace.SpanContext {
	if sc := trace.SpanContextFromContext(ctx); sc.IsRemote() {
		return sc
	}
	sc, _ := ctx.Value(receivedKey{}).(trace.SpanContext)
	return sc
}

// Service describes this process in its spans. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it.
type Service struct {
	Name, Version, Instance string
}

// NewProvider follows the standard OTEL_* variables. It returns nil if they name no endpoint for traces, or switch them off.
// The caller must shut it down, or the last batch of spans is lost.
func NewProvider(ctx context.Context, s Service) (*sdktrace.TracerProvider, error) {
	if !exporting() {
		return nil, nil //nolint:nilnil // nothing to export is no error
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", s.Name), attribute.String("service.version", s.Version),
			attribute.String("service.instance.id", s.Instance)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	// The sampler and the limits of batches come from the environment, too.
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res)), nil
}

// exporting does not count the standard default of the endpoint, localhost.
func exporting() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")) == "none" {
		return false
	}
	return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) != ""
}

// newExporter does not connect; the first export does.
func newExporter(ctx context.Context) (*otlptrace.Exporter, error) {
	if err := CheckEndpoint("TRACES"); err != nil {
		return nil, err
	}
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf"); protocol {
	case "grpc":
		return otlptracegrpc.New(ctx)
	case "http/protobuf":
		return otlptracehttp.New(ctx)
	default:
		return nil, fmt.Errorf("the OTLP protocol %q is neither grpc nor http/protobuf", protocol)
	}
}

// CheckEndpoint fails for an invalid endpoint of a signal, TRACES or METRICS: the exporter would use its default without an
// error. It is called before the exporter is made, so that the server does not start with traces that go nowhere.
func CheckEndpoint(signal string) error {
	const common = "OTEL_EXPORTER_OTLP_ENDPOINT"
	own := "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"
	// The variable of the signal wins over the common one, as OpenTelemetry has it.
	name := own
	if os.Getenv(own) == "" {
		name = common
	}
	endpoint := cmp.Or(os.Getenv(own), os.Getenv(common))
	if endpoint == "" {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" { // the value is left out of the error: it may contain a password
		return fmt.Errorf("%s must be a URL such as http://localhost:4318", name)
	}
	return nil
}
