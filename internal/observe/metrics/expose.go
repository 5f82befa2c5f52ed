package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	promexport "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// expose sets up the registry that Prometheus reads. It is not the default one, which other code of the process may use.
func (m *Metrics) expose() error {
	registry := prometheus.NewRegistry()
	exporter, err := promexport.New(promexport.WithRegisterer(registry), promexport.WithProducer(m),
		promexport.WithoutUnits(), //nolint:staticcheck // the strategies that replace it add both _total and units, or neither
		promexport.WithoutScopeInfo(), promexport.WithoutTargetInfo())
	if err != nil {
		return fmt.Errorf("prometheus exporter: %w", err)
	}
	m.readers = append(m.readers, sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)))
	// The collectors of Go and of the process have a registry of their own, because OTLP reads them by another way (Push).
	m.gatherer = prometheus.Gatherers{registry, m.process}
	return nil
}

// WriteText writes all series in the text format of Prometheus, or as OpenMetrics 1.0. An error may come after the first bytes
// were written.
func (m *Metrics) WriteText(ctx context.Context, w io.Writer, openMetrics bool) error {
	families, err := m.gatherer.Gather()
	if err != nil { // families has those without an error
		m.config.Logger.WarnContext(ctx, "some metrics are left out of the answer", slog.Any("error", err))
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	if openMetrics {
		if format, err = expfmt.NewOpenMetricsFormat(expfmt.OpenMetricsVersion_1_0_0); err != nil {
			return fmt.Errorf("openmetrics: %w", err)
		}
	}
	// A reader of this format may refuse the whole answer because of such a name.
	if openMetrics {
		families = slices.DeleteFunc(families, namesake(families))
	}
	encoder := expfmt.NewEncoder(w, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return fmt.Errorf("write %s: %w", f.GetName(), err)
		}
	}
	// OpenMetrics ends with a line of its own, without which a reader discards the answer.
	if closer, ok := encoder.(expfmt.Closer); ok {
		return closer.Close()
	}
	return nil
}

// namesake finds counters whose name without _total is that of another family, which OpenMetrics does not allow: the Go
// runtime's go_memstats_alloc_bytes_total.
func namesake(families []*dto.MetricFamily) func(f *dto.MetricFamily) bool {
	names := make(map[string]bool, len(families))
	for _, f := range families {
		names[f.GetName()] = true
	}
	return func(f *dto.MetricFamily) bool {
		short, counts := strings.CutSuffix(f.GetName(), "_total")
		return counts && names[short]
	}
}

// Shutdown pushes the last values, until ctx ends. It must run before the pool is closed: the last push reads gauges.
func (m *Metrics) Shutdown(ctx context.Context) error {
	var errs []error
	for _, r := range m.readers {
		errs = append(errs, r.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
