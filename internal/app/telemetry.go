package app

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"

	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// flushTimeout bounds how long a stop waits for the collectors of traces and metrics.
// A collector that is down must not hold up a stop.
const flushTimeout = 5 * time.Second

// buildTracing follows the OTEL_* variables, unless the configuration has its own provider.
// Without an endpoint there is no provider, and spans cost nothing.
func (n *Node) buildTracing(ctx context.Context) error {
	if err := n.exportTraces(ctx); err != nil {
		return err
	}
	n.tracer = tracing.New(tracing.Config{Provider: n.config.TracerProvider, MaxMetaBytes: n.config.Limits.MaxMetaBytes})
	return nil
}

// The global logger and error handler of OpenTelemetry are set, because the library has no others; two nodes in one process
// share them.
func (n *Node) exportTraces(ctx context.Context) error {
	if n.config.TracerProvider != nil {
		return nil
	}
	traces, err := tracing.NewProvider(ctx, tracing.Service{Name: n.config.Events.ServiceName, Version: n.config.Version, Instance: strconv.Itoa(int(n.commits.Node))})
	if err != nil || traces == nil {
		return err
	}
	n.traces, n.config.TracerProvider = traces, traces
	logger := n.config.Logger
	otel.SetLogger(logr.FromSlogHandler(logger.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logger.Warn("telemetry was not exported", slog.String("category", "system"), slog.Any("error", err))
	}))
	return nil
}

// flushTraces exports the last spans. They are lost if the collector does not answer in time.
// A provider of the caller is not flushed: it is the caller's.
func (n *Node) flushTraces() {
	if n.traces == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := n.traces.Shutdown(ctx); err != nil {
		n.config.Logger.Warn("traces were not exported in time", slog.String("category", "system"), slog.Any("error", err))
	}
}

// stopMetrics pushes the last values. They are lost if the collector does not answer in time.
func (n *Node) stopMetrics() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := n.metrics.Shutdown(ctx); err != nil {
		n.config.Logger.Warn("the last metrics were not pushed", slog.String("category", "lifecycle"), slog.String("error", err.Error()))
	}
}
