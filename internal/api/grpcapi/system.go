package grpcapi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/spec"
)

// Manifest is GET /ojs/manifest.
// It needs no key.
func (a *API) Manifest(context.Context, *ojsv1.ManifestRequest) (*ojsv1.ManifestResponse, error) {
	return &ojsv1.ManifestResponse{
		OjsVersion: api.SpecVersion, ConformanceLevel: api.ConformanceLevel, Protocols: api.Protocols(true), Backend: api.Backend,
		Implementation: &ojsv1.Implementation{Name: api.Name, Version: a.config.Version, Language: api.Language},
		Extensions:     api.Extensions(a.config.Webhooks), SchemaValidation: true,
	}, nil
}

// Other words of package api do not leave Report.
var healthStates = map[string]ojsv1.HealthStatus{
	api.Healthy: ojsv1.HealthStatus_HEALTH_STATUS_OK, api.Degraded: ojsv1.HealthStatus_HEALTH_STATUS_DEGRADED,
	api.Unhealthy: ojsv1.HealthStatus_HEALTH_STATUS_UNHEALTHY,
}

// Health is GET /ojs/v1/health. A node without its database is an answer, no error.
// It shares its look at the database with the probes of HTTP.
func (a *API) Health(ctx context.Context, _ *ojsv1.HealthRequest) (*ojsv1.HealthResponse, error) {
	state, at, body := a.Deps.Health.Report(ctx)
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("show health: %w", err)
	}
	return &ojsv1.HealthResponse{Status: healthStates[state], Timestamp: timestamppb.New(at), Details: structOf(text)}, nil
}

// healthAPI is the health service that load balancers ask; it mirrors readiness.
// Its messages are the standard ones, so that any load balancer can ask.
type healthAPI struct {
	grpc_health_v1.UnimplementedHealthServer
	api *API
}

type serving = grpc_health_v1.HealthCheckResponse_ServingStatus

// status of a service; none for an unknown one.
func (h *healthAPI) status(ctx context.Context, service string) (serving, bool) {
	switch service {
	case "", ojsv1.OJSService_ServiceDesc.ServiceName, eventsv1.OJSEvents_ServiceDesc.ServiceName:
	default:
		return grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN, false
	}
	if ready, _ := h.api.Deps.Health.Ready(ctx); ready {
		return grpc_health_v1.HealthCheckResponse_SERVING, true
	}
	return grpc_health_v1.HealthCheckResponse_NOT_SERVING, true
}

// Check answers for one service.
// NOT_SERVING is an answer and no error.
func (h *healthAPI) Check(ctx context.Context, in *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	status, known := h.status(ctx, in.GetService())
	if !known {
		return nil, spec.NotFound("service", shorten(in.GetService(), maxDetail))
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}

// List answers for all.
func (h *healthAPI) List(ctx context.Context, _ *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	statuses := map[string]*grpc_health_v1.HealthCheckResponse{}
	// "" is the server as a whole.
	for _, name := range []string{"", ojsv1.OJSService_ServiceDesc.ServiceName, eventsv1.OJSEvents_ServiceDesc.ServiceName} {
		status, _ := h.status(ctx, name)
		statuses[name] = &grpc_health_v1.HealthCheckResponse{Status: status}
	}
	return &grpc_health_v1.HealthListResponse{Statuses: statuses}, nil
}

// watchInterval is how often a watched service is looked at; all share one look.
const watchInterval = time.Second

// Watch tells each change.
// A watch counts as a stream, against the limits of streams. An unknown service is SERVICE_UNKNOWN, and stays so.
func (h *healthAPI) Watch(in *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	s, err := h.api.open(stream)
	if err != nil {
		return err
	}
	return s.run(func() error {
		ticks := time.NewTicker(watchInterval)
		defer ticks.Stop()
		// No status has this value, so the first one is always sent.
		last := serving(-1)
		for {
			status, _ := h.status(s.ctx, in.GetService())
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if status != last {
				if err := s.send(func() error { return stream.Send(&grpc_health_v1.HealthCheckResponse{Status: status}) }); err != nil {
					return err
				}
				last = status
			}
			select {
			case <-ticks.C:
			case <-s.ctx.Done():
				return s.ctx.Err()
			}
		}
	})
}
