package tracing

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

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

// The standard default of the endpoint, localhost, does not count.
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
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf"); protocol {
	case "grpc":
		return otlptracegrpc.New(ctx)
	case "http/protobuf":
		return otlptracehttp.New(ctx)
	default:
		return nil, fmt.Errorf("the OTLP protocol %q is neither grpc nor http/protobuf", protocol)
	}
}
