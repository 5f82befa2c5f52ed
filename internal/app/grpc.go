package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/ojsd/ojsd/internal/api/grpcapi"
)

// buildGRPC builds the gRPC interface, unless it is switched off.
// It must follow buildHTTP, whose health and streams it shares.
func (n *Node) buildGRPC() (err error) {
	c := n.config
	if !c.GRPC.Enabled {
		return nil
	}
	n.grpc, err = grpcapi.New(grpcapi.Config{
		APIKeys: c.APIKeys, Limits: c.Limits, Tenancy: c.Tenancy, MaxBatchBytes: c.MaxBatchBytes, MaxBatchSize: c.MaxBatchSize, Version: c.Version,
		TLSCert: c.GRPC.TLSCert, TLSKey: c.GRPC.TLSKey, ClientCA: c.GRPC.ClientCA, Webhooks: c.Webhooks.Enabled,
	}, grpcapi.Deps{
		Domains: n.domains.Domains, Health: n.health, Streams: n.streams, Memory: &n.memory, Logger: c.Logger, Tracer: n.tracer, RequestDone: n.metrics.RPC,
	})
	return err
}

// The message names the setting, because a taken port 9090 is the most common reason why a second server on a machine does
// not start.
func (n *Node) startGRPC() error {
	if n.grpc == nil {
		return nil
	}
	ln, err := net.Listen("tcp", n.config.GRPC.Listen)
	if err != nil {
		return fmt.Errorf("listen for grpc (set another address with OJS_GRPC_LISTEN, or off): %w", err)
	}
	n.grpcAddr = ln.Addr()
	go func() {
		if err := n.grpc.Serve(ln); err != nil {
			n.fail(fmt.Errorf("serve grpc: %w", err))
		}
	}()
	return nil
}

// stopGRPC waits for running calls until ctx ends.
// It runs beside the stop of HTTP.
func (n *Node) stopGRPC(ctx context.Context) {
	if n.grpc == nil {
		return
	}
	if err := n.grpc.Stop(ctx); err != nil {
		n.config.Logger.Warn("gRPC calls did not end within OJS_SHUTDOWN_TIMEOUT and are cut off", slog.String("category", "lifecycle"),
			slog.Group("attributes", "shutdown_timeout_ms", n.config.ShutdownTimeout.Milliseconds()))
	}
}
