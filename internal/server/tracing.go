package server

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"

	"github.com/ojsd/ojsd/internal/tracing"
)

// flushTimeout bounds how long a stop waits for those who receive traces.
const flushTimeout = 5 * time.Second

// exportTraces follows the OTEL_* variables, unless the configuration has its own provider.
func (s *Server) exportTraces(ctx context.Context) error {
	if s.config.TracerProvider != nil {
		return nil
	}
	traces, err := tracing.NewProvider(ctx, tracing.Service{Name: s.config.Events.ServiceName, Version: s.config.Version, Instance: strconv.Itoa(int(s.node))})
	if err != nil || traces == nil {
		return err
	}
	s.traces, s.config.TracerProvider = traces, traces
	logger := s.config.Logger
	otel.SetLogger(logr.FromSlogHandler(logger.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logger.Warn("telemetry was not exported", slog.String("category", "system"), slog.Any("error", err))
	}))
	return nil
}

func (s *Server) newTracer() *tracing.Tracer {
	c := s.config
	return tracing.New(tracing.Config{
		Provider: c.TracerProvider, MaxMetaBytes: c.Limits.MaxMetaBytes,
	})
}

// flushTraces sends what has not been sent yet. Who does not take it in time loses it.
func (s *Server) flushTraces() {
	if s.traces == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := s.traces.Shutdown(ctx); err != nil {
		s.config.Logger.Warn("traces were not exported in time", slog.String("category", "system"), slog.Any("error", err))
	}
}
