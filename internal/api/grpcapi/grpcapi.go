// Package grpcapi speaks the Open Job Spec over gRPC (docs/reference/grpc.md). It owns the messages: it reads them into the types
// that the domains work with, calls the same operations as httpapi, and shows what they return. The domains check what was
// read, by the rules and with the messages that HTTP has. It must hold no rules and no SQL, and must never import httpapi:
// what both need is in package api or below.
package grpcapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed, as over HTTP
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/tenant"
)

// Config holds what the API decides by. Values are taken as they are.
type Config struct {
	// APIKeys are the accepted keys. Empty: the API is open.
	APIKeys []string

	// Limits of job objects, metadata, results and nesting.
	Limits job.Limits

	// Tenancy says whether calls name their tenant. Zero: optional.
	Tenancy tenant.Mode

	// MaxBatchBytes bounds the message of EnqueueBatch, after decompression.
	MaxBatchBytes int

	// MaxBatchSize is the most jobs of EnqueueBatch.
	MaxBatchSize int

	// Version of the server, shown in the manifest and in the metadata of every answer.
	Version string

	// TLSCert and TLSKey are files in PEM. Empty: no TLS. With ClientCA clients must show a certificate signed by it.
	TLSCert, TLSKey, ClientCA string

	// Webhooks says that this node has them, for the manifest.
	Webhooks bool

	// KeepAlive is after how long without events StreamEvents says so. 30 s.
	KeepAlive time.Duration

	// Reconcile is how often StreamJobs asks the database about the jobs of a stream, in case an event was missed. 30 s.
	Reconcile time.Duration
}

func (c Config) withDefaults() Config {
	if c.KeepAlive == 0 {
		c.KeepAlive = 30 * time.Second
	}
	if c.Reconcile == 0 {
		c.Reconcile = 30 * time.Second
	}
	return c
}

// Deps are the parts an API talks to.
type Deps struct {
	api.Domains
	Health  *api.Health
	Streams *api.Streams
	Memory  *api.Memory // counts the bytes of requests of all interfaces; nil: of this one
	Logger  *slog.Logger

	Tracer *tracing.Tracer // nil: nothing is traced

	// RequestDone is called after every RPC, unary or stream, with its full method, which is one of few, and the name of its
	// status, OK or NOT_FOUND; nil: nobody wants to know.
	RequestDone func(method, code string, took time.Duration)
}

// API is the gRPC interface of one node. Use New, Serve and Stop.
// Its fields do not change after New. server ends with Stop; an API is not started again.
type API struct {
	ojsv1.UnimplementedOJSServiceServer

	config Config
	Deps
	keys   api.Keys
	codec  codec
	server *grpc.Server
	// routes are the full methods, for labels.
	routes  map[string]bool
	running runningCalls
	streams eventlog.StreamCounter
}

// pingsAllowed leaves a client that pings every 10 s a little for its clock and the network.
// Clients may ping every 10 s (docs/reference/grpc.md, Transport); the library ends connections that ping more often.
const pingsAllowed = 9 * time.Second

// maxStreams bounds the calls and streams of one connection; clients wait with further ones.
// It keeps one connection from taking all memory for messages.
const maxStreams = 250

// New returns the API. It fails if the TLS files cannot be used.
// It opens no port; Serve does.
func New(config Config, deps Deps) (*API, error) {
	a := &API{config: config.withDefaults(), Deps: deps, keys: api.NewKeys(config.APIKeys), codec: codec{encoding.GetCodecV2(protobuf.Name)}}
	options := []grpc.ServerOption{
		// A connection whose client is gone is found after 40 s.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
		grpc.StreamInterceptor(a.stream), grpc.UnknownServiceHandler(unknown), grpc.MaxConcurrentStreams(maxStreams),
		// It learns what became of the answers to fetches.
		grpc.StatsHandler(deliveries{a}),
		grpc.ForceServerCodecV2(a.codec),
	}
	if config.TLSCert != "" {
		tlsConfig, err := loadTLS(config)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig)))
	}
	a.Memory = cmp.Or(a.Memory, &api.Memory{})
	a.server = grpc.NewServer(options...)
	a.server.RegisterService(asStreams(ojsv1.OJSService_ServiceDesc), a)
	a.server.RegisterService(asStreams(eventsv1.OJSEvents_ServiceDesc), &eventsAPI{api: a})
	a.server.RegisterService(asStreams(grpc_health_v1.Health_ServiceDesc), &healthAPI{api: a})
	reflection.Register(a.server)
	// After all services are registered.
	a.routes = routesOf(a.server)
	return a, nil
}

// The files are read once: a new certificate needs a restart.
func loadTLS(config Config) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(config.TLSCert, config.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load grpc certificate: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if config.ClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(config.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("load grpc client ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load grpc client ca: %s holds no certificate in PEM", config.ClientCA)
	}
	return c, nil
}

// StreamCounter counts the streams, for metrics.
func (a *API) StreamCounter() *eventlog.StreamCounter { return &a.streams }

// Serve answers calls until Stop.
func (a *API) Serve(ln net.Listener) error { return a.server.Serve(ln) }

// errCutOff says that calls did not end before ctx.
var errCutOff = errors.New("calls did not end in time")

// Stop accepts no more calls and returns when the running ones have ended, or with ctx, which cuts them off. Streams end
// with api.Streams.
// Call api.Streams.Stop before, or streams keep it waiting until ctx ends.
func (a *API) Stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() { defer close(done); a.server.GracefulStop() }()
	select {
	case <-done:
		return nil
	case <-a.running.none():
	// GracefulStop returns, too, when the connections are closed, so its goroutine ends.
	case <-ctx.Done():
		a.server.Stop() // a handler may still wait for the database
		return errCutOff
	}
	// Only connections are left, such as one whose client does not take its last message.
	select {
	case <-done:
	case <-time.After(api.LastWrites):
	case <-ctx.Done():
	}
	a.server.Stop()
	return nil
}
