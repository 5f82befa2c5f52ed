package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"

	prombridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// Push starts to send all metrics over OTLP, if Config.Protocol is set. A failed push is logged and tried again at the next
// interval. Call it after SetSources and before Shutdown. It does not connect: the first push does.
func (m *Metrics) Push(ctx context.Context) error {
	if m.config.Protocol == "" {
		return nil
	}
	exporter, err := newExporter(ctx, m.config.Protocol)
	if err != nil {
		return fmt.Errorf("otlp metrics: %w", err)
	}
	described, err := m.resource(ctx)
	if err != nil {
		return fmt.Errorf("otlp resource: %w", err)
	}
	// The interval comes from the environment, 60 s by default.
	reader := sdkmetric.NewPeriodicReader(&loggingExporter{Exporter: exporter, logger: m.config.Logger},
		sdkmetric.WithProducer(m), sdkmetric.WithProducer(prombridge.NewMetricProducer(prombridge.WithGatherer(m.process))))
	m.readers = append(m.readers, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(described)))
	return nil
}

// It reads everything but the protocol from the environment by itself.
func newExporter(ctx context.Context, protocol string) (sdkmetric.Exporter, error) {
	if err := tracing.CheckEndpoint("METRICS"); err != nil {
		return nil, err
	}
	switch protocol {
	case "grpc":
		return otlpmetricgrpc.New(ctx)
	case "http/protobuf":
		return otlpmetrichttp.New(ctx)
	}
	return nil, fmt.Errorf("protocol %q is not supported: use grpc or http/protobuf", protocol)
}

// resource identifies the sender: each node is an instance, because counters are per node. A restarted node is a new instance,
// since its number is new, so its counters may begin with 0.
func (m *Metrics) resource(ctx context.Context) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{attribute.String("service.name", m.config.Service), attribute.String("service.version", m.config.Version)}
	if m.sources.Node != 0 {
		attrs = append(attrs, attribute.String("service.instance.id", strconv.Itoa(int(m.sources.Node))))
	}
	return resource.New(ctx, resource.WithAttributes(attrs...), resource.WithTelemetrySDK(), resource.WithFromEnv())
}

// loggingExporter logs the first of several failures in a row. failed is true from the first failure to the next success.
type loggingExporter struct {
	sdkmetric.Exporter
	logger *slog.Logger
	failed atomic.Bool
}

// Export never fails: OpenTelemetry would log each failure to its own logger.
func (e *loggingExporter) Export(ctx context.Context, data *metricdata.ResourceMetrics) error {
	err := e.Exporter.Export(ctx, data)
	switch {
	case err == nil:
		e.failed.Store(false)
	case !e.failed.Swap(true):
		e.logger.WarnContext(ctx, "metrics cannot be pushed; trying again at each interval", slog.String("error", err.Error()))
	}
	return nil
}
