// Package server builds a node from its parts, starts them in order and stops them in reverse.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/grpcapi"
	"github.com/ojsd/ojsd/internal/httpapi"
	"github.com/ojsd/ojsd/internal/metrics"
	"github.com/ojsd/ojsd/internal/node"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/internal/sweep"
	"github.com/ojsd/ojsd/internal/tracing"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/migrations"
)

// Server is one running node. Use Start.
type Server struct {
	config   Config
	node     int32 // who this process is to others
	pool     *pgxpool.Pool
	store    *store.Store
	relay    *eventlog.Relay
	feed     *eventlog.Feed
	listener *eventlog.Listener
	sweeper  *sweep.Sweeper
	pruner   *sweep.Pruner
	streams  *node.Streams
	health   *node.Health
	webhooks *webhook.Dispatcher // nil: switched off
	maker    *webhook.Maker      // with webhooks
	api      *httpapi.API
	metrics  *metrics.Metrics
	http     *http.Server
	grpc     *grpcapi.API // nil: disabled
	addr     net.Addr
	grpcAddr net.Addr
	services []startstop.Service
	failed   chan error
	traces   *sdktrace.TracerProvider // nil: none of ours
	stopOnce sync.Once
	stopErr  error
}

// Run serves until ctx ends or the server fails, and stops in good order.
func Run(ctx context.Context, config Config) error {
	s, err := Start(ctx, config)
	if err != nil {
		return err
	}
	if config.OnStarted != nil {
		config.OnStarted(s.Addr(), s.GRPCAddr())
	}
	select {
	case <-ctx.Done():
	case err = <-s.failed:
	}
	return errors.Join(err, s.Stop())
}

// Start returns when the node answers requests. ctx bounds the start only.
func Start(ctx context.Context, config Config) (*Server, error) {
	if config.DatabaseURL == "" {
		return nil, errors.New("no database: DATABASE_URL is not set")
	}
	config.Logger = cmp.Or(config.Logger, slog.Default())
	config.DatabaseListenURL = cmp.Or(config.DatabaseListenURL, config.DatabaseURL)
	if err := checkSchema(ctx, config); err != nil {
		return nil, err
	}
	pool, err := connect(ctx, config)
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, node: store.NewNode(), pool: pool, failed: make(chan error, 1)}
	if err := s.exportTraces(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	if err := s.build(); err != nil {
		pool.Close()
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	config.Logger.InfoContext(ctx, "server started", slog.String("category", "lifecycle"),
		slog.Group("attributes", "listen", s.addr.String(), "grpc_listen", s.GRPCAddr(), "version", config.Version, "node", s.store.Node(),
			"authentication", len(config.APIKeys) > 0, "test_reset", config.TestReset))
	s.warnWebhooks(ctx)
	if config.TestReset {
		config.Logger.WarnContext(ctx, "POST /ojs/v1/admin/reset is on: anybody who may call this server can delete all jobs", slog.String("category", "lifecycle"))
	}
	if config.LogPayloads {
		config.Logger.WarnContext(ctx, "logging.payloads is on: the log shows args and results of jobs, whatever they hold", slog.String("category", "lifecycle"))
	}
	return s, nil
}

func checkSchema(ctx context.Context, config Config) error {
	if config.Migrate {
		if _, err := migrations.Up(ctx, config.DatabaseURL, config.Logger); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	cfg, err := pgx.ParseConfig(config.DatabaseURL)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may have a statement of that name from another start
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it has only read
	return migrations.Check(ctx, conn)
}

func connect(ctx context.Context, config Config) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(config.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	pc.MaxConns = config.DatabaseMaxConns
	pc.MinIdleConns = 2
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.ConnConfig.RuntimeParams["application_name"] = "ojsd"
	pc.ConnConfig.ConnectTimeout = 5 * time.Second
	if config.DatabasePooler {
		// Unnamed statements with remembered parameter types: one round trip, no state left in the session.
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		// Small batches look cheaper with a plan of their own, so Postgres would plan most acks anew: 0.45 ms, three times
		// what they take.
		pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}

func (s *Server) build() (err error) {
	c := s.config
	archetype := baseservice.NewArchetype(c.Logger)
	tracer := s.newTracer()
	s.metrics, err = metrics.New(metrics.Config{
		MaxLabelValues: c.Metrics.MaxLabelValues, GaugeInterval: c.Metrics.GaugeInterval,
		Service: c.Events.ServiceName, Version: c.Version, Protocol: c.Metrics.Protocol, Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	s.store = store.New(s.pool, store.Config{
		Node:              s.node,
		DefaultVisibility: c.DefaultVisibility, DefaultTimeout: c.DefaultTimeout, ResultTTL: c.ResultTTL,
		WorkerDeadAfter: c.WorkerDeadAfter, TestDirectives: c.TestDirectives, Limits: c.Limits, WorkerHeartbeatEvents: c.Events.WorkerHeartbeat,
		SourceInstance: c.Events.SourceInstance, EnqueuedOnRequeue: c.Events.EnqueuedOnRequeue, JobHeartbeatInterval: c.Events.JobHeartbeatInterval,
		WebhookKeys: c.Webhooks.EncryptionKeys, MaxWebhooks: c.Webhooks.MaxSubscriptions, DisableWebhookAfter: c.Webhooks.DisableAfter,
		Logger: c.Logger, LogPayloads: c.LogPayloads, Tracer: tracer,
		OnChanges: s.metrics.Changes, OnFlush: s.metrics.Flush,
	})
	s.relay = eventlog.NewRelay(archetype, s.pool, eventlog.RelayConfig{Service: c.Events.ServiceName, Tracer: tracer})
	s.sweeper = sweep.NewSweeper(archetype, s.store)
	retention := c.Retention.pruner()
	s.pruner = sweep.NewPruner(archetype, s.store, retention)
	s.store.OnCommit(func() {
		s.relay.Wake()
		s.sweeper.Stir()
		s.pruner.Stir()
	})
	s.listener = eventlog.NewListener(archetype, eventlog.ListenerConfig{URL: c.DatabaseListenURL})
	reader := eventlog.NewReader(s.pool, s.relay)
	s.feed = eventlog.NewFeed(archetype, reader, eventlog.FeedConfig{})
	s.relay.OnCounted(s.metrics.Published)
	s.relay.OnPublished(func() { // sooner than the notification, and without LISTEN
		s.feed.Wake()
		if s.maker != nil {
			s.maker.Published()
		}
	})
	s.listener.OnPublished(func(p eventlog.Published) {
		s.feed.Wake()
		s.sweeper.Stir()
		s.store.Published()
		s.pruner.Stir()
		if p.All {
			s.store.AnnounceAll()
		}
		for _, r := range p.Ready {
			if r.Node != s.store.Node() { // else this node's commit has done it
				s.store.Announce(r.Queue, r.Priority, r.MinSeq)
			}
		}
	})
	s.listener.OnWake(func() {
		s.relay.Wake()
		s.sweeper.Look()
	})
	roster := sweep.NewRoster(archetype, s.store)
	s.listener.Handle("ojs_workers", func(string) { roster.Learn() })
	// Another node has registered a cron: from now on this one, too, wakes for the earliest next run. Each look arms the next.
	s.listener.Handle("ojs_cron", func(string) { s.sweeper.Arm(0) })
	s.listener.Handle("ojs_reset", func(payload string) {
		if payload != "" { // else some notification may have been missed, but hardly this one
			s.store.Forget()
		}
	})
	s.services = []startstop.Service{
		s.relay, s.listener, s.feed, eventlog.NewMaintainer(archetype, s.pool, eventlog.MaintainerConfig{
			RetentionPeriod: c.Events.RetentionPeriod, MaxCount: c.Events.MaxCount, RetentionDone: c.Retention.Completed,
		}, s.relay),
		s.sweeper, s.pruner, sweep.NewProber(archetype, s.store), roster,
	}
	if err := s.buildWebhooks(archetype, tracer); err != nil {
		return err
	}
	s.health = node.NewHealth(c.Version, node.LookAt(s.store), s.components)
	s.streams = node.NewStreams(c.Realtime)
	s.api = httpapi.New(httpapi.Config{
		APIKeys: c.APIKeys, PublicURL: c.PublicURL, Limits: c.Limits, MaxBatchBytes: c.MaxBatchBytes, MaxBatchSize: c.MaxBatchSize, CORSOrigins: c.CORSOrigins,
		TestReset: c.TestReset, GRPC: c.GRPC.Enabled, Version: c.Version, EventRetention: c.Events.RetentionPeriod, EventMaxCount: c.Events.MaxCount,
		DeadLetterMaxAge: retention.DeadLetterMaxAge, DeadLetterMaxCount: retention.DeadLetterMaxCount, MetricsAuth: c.Metrics.RequireAuth,
	}, httpapi.Deps{
		Store: s.store, Events: reader, Feed: s.feed, Logger: c.Logger, Health: s.health, Streams: s.streams, Reset: s.store.Reset, NextPrune: s.pruner.NextIn,
		Webhooks: s.httpWebhooks(), Tracer: tracer,
		RequestDone: s.metrics.Request, Metrics: httpapi.Metrics{WriteText: s.metrics.WriteText, Gauges: s.metrics.Gauges},
	})
	s.http = &http.Server{
		Handler:           s.api.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       2 * time.Minute,
		IdleTimeout:       5 * time.Minute,
		ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	streams := s.api.Tallies()
	if c.GRPC.Enabled {
		if err := s.buildGRPC(reader, tracer); err != nil {
			return err
		}
		streams["grpc"] = s.grpc.Tally()
	}
	s.metrics.SetSources(metrics.Sources{Store: s.store, Pool: s.pool, Reconnects: s.listener.Reconnects, Streams: streams, Webhooks: s.store.WebhookBacklog, Components: s.components})
	return nil
}

func (s *Server) buildGRPC(reader *eventlog.Reader, tracer *tracing.Tracer) (err error) {
	c := s.config
	s.grpc, err = grpcapi.New(grpcapi.Config{
		APIKeys: c.APIKeys, Limits: c.Limits, MaxBatchBytes: c.MaxBatchBytes, MaxBatchSize: c.MaxBatchSize, Version: c.Version,
		TLSCert: c.GRPC.TLSCert, TLSKey: c.GRPC.TLSKey, ClientCA: c.GRPC.ClientCA, Webhooks: c.Webhooks.Enabled,
	}, grpcapi.Deps{
		Store: s.store, Events: reader, Feed: s.feed, Health: s.health, Streams: s.streams, Logger: c.Logger, Tracer: tracer, RequestDone: s.metrics.RPC,
	})
	return err
}

// components are the parts that health reports.
func (s *Server) components() map[string]string {
	publisher := "ok"
	if s.relay.Status().BehindFor > publishLate {
		publisher = "degraded"
	}
	scheduler := "ok"
	if s.sweeper.Overdue() > sweepLate {
		scheduler = "degraded"
	}
	webhooks := node.Off
	if s.webhooks != nil {
		webhooks = s.webhooks.Status()
	}
	return map[string]string{"listener": s.listener.Status(), "publisher": publisher, "scheduler": scheduler, "webhooks": webhooks}
}

// What health calls late (contract 40 §14.3).
const (
	publishLate = 10 * time.Second
	sweepLate   = 30 * time.Second
)

func (s *Server) start(ctx context.Context) error {
	if err := s.store.Prepare(ctx); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	if s.webhooks != nil {
		if err := s.store.ResealSecrets(ctx); err != nil {
			return fmt.Errorf("webhook secrets: %w", err)
		}
	}
	// Services outlive the start: they end with Stop, not with ctx.
	if err := startstop.StartAll(context.WithoutCancel(ctx), s.services...); err != nil {
		return fmt.Errorf("start services: %w", err)
	}
	ln, err := net.Listen("tcp", s.config.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.addr = ln.Addr()
	if err := s.metrics.Push(context.WithoutCancel(ctx)); err != nil {
		return errors.Join(err, ln.Close())
	}
	if s.grpc != nil {
		if err := s.startGRPC(); err != nil {
			return errors.Join(err, ln.Close())
		}
	}
	go func() {
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serve: %w", err))
		}
	}()
	return nil
}

func (s *Server) startGRPC() error {
	ln, err := net.Listen("tcp", s.config.GRPC.Listen)
	if err != nil {
		return fmt.Errorf("listen for grpc (OJS_GRPC_LISTEN sets the address, OJS_GRPC_ENABLED=false does without): %w", err)
	}
	s.grpcAddr = ln.Addr()
	go func() {
		if err := s.grpc.Serve(ln); err != nil {
			s.fail(fmt.Errorf("serve grpc: %w", err))
		}
	}()
	return nil
}

// fail ends Run; what fails after that is of no more interest.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// stopGRPC is like what http.Server does for HTTP.
func (s *Server) stopGRPC(ctx context.Context) {
	if s.grpc == nil {
		return
	}
	if err := s.grpc.Stop(ctx); err != nil {
		s.config.Logger.Warn("gRPC calls did not end in time and are cut off", slog.String("category", "lifecycle"),
			slog.Group("attributes", "shutdown_timeout_ms", s.config.ShutdownTimeout.Milliseconds()))
	}
}

// Addr is the address of the HTTP interface.
func (s *Server) Addr() string { return s.addr.String() }

// GRPCAddr is the address of the gRPC interface; "" if it is disabled.
func (s *Server) GRPCAddr() string {
	if s.grpcAddr == nil {
		return ""
	}
	return s.grpcAddr.String()
}

// Store is the node's store, for tests of the whole program.
func (s *Server) Store() *store.Store { return s.store }

// SetDraining makes readiness fail, as Stop does first.
func (s *Server) SetDraining() { s.health.SetDraining() }

// API is the node's HTTP interface, for tests of the whole program.
func (s *Server) API() *httpapi.API { return s.api }

// Stop ends the node: readiness fails, parked fetches and streams return, requests finish, services stop, connections close. No
// job changes its state by it. Requests that outlive the shutdown timeout are cut off, which is no error (contract 20 §13.4):
// a slow client must not make a restart look failed.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		s.SetDraining()
		s.api.StopStreams()
		s.store.Drain()
		ctx, cancel := context.WithTimeout(context.Background(), s.config.ShutdownTimeout)
		defer cancel()
		var others sync.WaitGroup
		others.Go(func() { s.stopGRPC(ctx) })
		if err := s.http.Shutdown(ctx); err != nil {
			s.config.Logger.Warn("requests did not end in time and are cut off", slog.String("category", "lifecycle"),
				slog.Group("attributes", "shutdown_timeout_ms", s.config.ShutdownTimeout.Milliseconds()))
			s.stopErr = s.http.Close()
		}
		others.Wait()
		if err := s.api.AwaitStreams(ctx); err != nil && s.api.Streams() > 0 {
			s.config.Logger.Warn("streams did not end in time and are cut off", slog.String("category", "lifecycle"))
		}
		startstop.StopAllParallel(s.services...)
		s.stopMetrics()
		s.pool.Close()
		s.flushTraces()
		s.config.Logger.Info("server stopped", slog.String("category", "lifecycle"))
	})
	return s.stopErr
}

// stopMetrics pushes the last figures; a collector that does not answer holds up a stop for a moment only.
func (s *Server) stopMetrics() {
	ctx, cancel := context.WithTimeout(context.Background(), lastPush)
	defer cancel()
	if err := s.metrics.Shutdown(ctx); err != nil {
		s.config.Logger.Warn("the last metrics were not pushed", slog.String("category", "lifecycle"), slog.String("error", err.Error()))
	}
}

const lastPush = 5 * time.Second
