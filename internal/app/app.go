// Package app builds a node from its parts, starts them in order and stops them in reverse. It must contain no rules about
// jobs or events: those are in the packages that it connects.
package app

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
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/netutil"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/grpcapi"
	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/migrations"
)

// Config is the configuration of a node: the settings, and what the program adds. It is copied by Start and not changed by the caller
// afterwards.
type Config struct {
	config.Config

	// Version is shown in the manifest and by health.
	Version string

	// Logger is the log of the server. nil: slog.Default().
	Logger *slog.Logger

	// TracerProvider makes the spans. nil: one that follows the OTEL_* variables, which without an endpoint makes none.
	TracerProvider trace.TracerProvider

	// MetricsProtocol is how metrics are pushed over OTLP: grpc or http/protobuf. The exporter reads the OTEL_ variables for all else.
	// Empty: metrics are not pushed.
	MetricsProtocol string

	// Pool changes the pool of connections, for tests that let statements fail. Or nil.
	Pool func(*pgxpool.Config)

	// OnStarted is called by Run when the node answers, with its addresses; grpcAddress is empty without gRPC. Or nil.
	OnStarted func(address, grpcAddress string)
}

// Node is one running server. Use Start.
// Its fields are set by Start before the node answers, and not changed afterwards, but for stopErr. The parts guard
// themselves.
type Node struct {
	config Config
	// archetype gives all services the same logger.
	archetype *baseservice.Archetype
	// pool is for everything but LISTEN, which has a connection of its own, and health.
	pool    *pgxpool.Pool
	probeDB *pg.DB // one connection for health
	tracer  *tracing.Tracer
	traces  *sdktrace.TracerProvider // nil: none, or that of Config
	metrics *metrics.Metrics

	// node is the number of this process. commits is the bus of its commits, listener the bus of all nodes'; subscribe.go says who is
	// told of what.
	node     int32
	commits  *eventlog.Commits
	timer    *loop.Timer
	domains  api.Domains
	relay    *eventlog.Relay
	feed     *eventlog.Feed
	listener *eventlog.Listener
	pruner   *queueadmin.Pruner
	liveness *worker.Liveness
	follower *workflow.Follower
	limits   *limit.Follower
	outages  *queue.OutageWatch
	webhooks *webhook.Dispatcher // nil: switched off
	fanOut   *webhook.FanOut     // nil: webhooks is
	// services are started in this order and stopped together.
	services []startstop.Service

	health  *api.Health
	streams *api.Streams
	memory  api.Memory
	httpapi *httpapi.API
	http    *http.Server
	grpc    *grpcapi.API // nil: switched off

	certificates, grpcCertificates *api.Certificates // nil: without TLS

	// started is false until the node answers requests on all its interfaces. failed has room for one error, so that whoever
	// reports does not wait.
	started        bool
	addr, grpcAddr net.Addr
	failed         chan error
	stopOnce       sync.Once
	stopErr        error
}

// Run serves until ctx ends or the node fails, and stops the node.
// The error joins what has failed and what the stop has found. OnStarted is called when requests are answered already.
func Run(ctx context.Context, c Config) error {
	n, err := Start(ctx, c)
	if err != nil {
		return err
	}
	if c.OnStarted != nil {
		c.OnStarted(n.Addr(), n.GRPCAddr())
	}
	select {
	case <-ctx.Done():
	case err = <-n.failed:
	}
	return errors.Join(err, n.Stop())
}

// Start returns when the node answers requests. ctx limits only the start.
// If it fails, what runs is stopped and the pools are closed before it returns. The schema is checked first: a server must not run on a
// schema that it does not know.
func Start(ctx context.Context, c Config) (*Node, error) {
	if c.Database.URL == "" {
		return nil, errors.New("no database: DATABASE_URL is not set")
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if err := checkSchema(ctx, c); err != nil {
		return nil, err
	}
	if c.Pool == nil {
		c.Pool = func(*pgxpool.Config) {}
	}
	pool, err := pg.Connect(ctx, c.Database, c.Pool)
	if err != nil {
		return nil, err
	}
	// Health has a connection of its own, so that a node whose pool is exhausted still answers its probes.
	probe := c.Database
	probe.MaxConns = 1
	probePool, err := pg.Connect(ctx, probe)
	if err != nil {
		pool.Close()
		return nil, err
	}
	n := &Node{config: c, pool: pool, probeDB: pg.New(probePool, c.Database.StatementTimeout), failed: make(chan error, 1)}
	if err := n.build(ctx); err != nil {
		probePool.Close()
		pool.Close()
		n.flushTraces()
		return nil, err
	}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	n.started = true
	n.logStarted(ctx)
	return n, nil
}

// build builds the parts of a node in the order of their dependencies.
// Nothing runs yet but the exporter of traces, and nothing is asked, so a failure needs no stop, only the pools closed and the
// exporter ended. What parts call in those that are built after them is in subscribe.go.
func (n *Node) build(ctx context.Context) error {
	n.archetype = baseservice.NewArchetype(n.config.Logger)
	n.node = eventlog.NewNode()
	for _, step := range []func() error{
		func() error { return n.buildTracing(ctx) },
		n.buildMetrics,
		n.buildCommits,
		n.buildDomains,
		n.buildEventLog,
		n.buildLoops,
		n.buildWebhooks,
		n.buildHTTP,
		n.buildGRPC,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// start runs the services before the port is opened, so that the first request finds a relay and a listener. A port that is taken is
// found after the services were started; Stop ends them.
func (n *Node) start(ctx context.Context) error {
	if err := n.prepare(ctx); err != nil {
		return err
	}
	// Services outlive the start: they end with Stop, not with ctx.
	if err := startstop.StartAll(context.WithoutCancel(ctx), n.services...); err != nil {
		return fmt.Errorf("start services: %w", err)
	}
	ln, err := net.Listen("tcp", n.config.Server.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	n.addr = ln.Addr()
	ln = netutil.LimitListener(ln, n.config.Server.MaxConnections)
	if err := n.metrics.Push(context.WithoutCancel(ctx)); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := n.startGRPC(); err != nil {
		return errors.Join(err, ln.Close())
	}
	serve := n.http.Serve
	if n.certificates != nil {
		serve = func(ln net.Listener) error { return n.http.ServeTLS(ln, "", "") } // the files are in TLSConfig
	}
	go func() {
		if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("serve: %w", err))
		}
	}()
	return nil
}

// prepare creates partitions, reads workers and reseals secrets, all of which the first request may need.
// All of it is idempotent and may run on any number of nodes at once. On a read-only database the node starts all the same,
// if nothing has to be created.
func (n *Node) prepare(ctx context.Context) error {
	if err := n.domains.DB.EnsurePartitions(ctx); err != nil {
		return fmt.Errorf("create partitions: %w", err)
	}
	switch err := n.domains.Queues.StoreServerSettings(ctx); {
	case pg.IsReadOnly(err):
		n.config.Logger.WarnContext(ctx, "ojs.enqueue goes by another OJS_TENANCY or OJS_JOBS_MAX_SIZE, and the database is read-only; start a server again when it is not", slog.String("category", "lifecycle"),
			slog.String("tenancy", n.config.Server.Tenancy), slog.Int64("max_job_bytes", int64(n.config.Jobs.MaxJobBytes)))
	case err != nil:
		return fmt.Errorf("store settings for ojs.enqueue: %w", err)
	}
	if err := n.checkIdentity(ctx); err != nil {
		return err
	}
	if err := n.domains.Workers.Prepare(ctx); err != nil {
		return fmt.Errorf("read workers: %w", err)
	}
	if _, err := n.domains.Maintenance.Get(ctx); err != nil {
		return fmt.Errorf("read the maintenance switch: %w", err)
	}
	if n.webhooks == nil {
		return nil
	}
	if err := n.domains.Webhooks.ResealSecrets(ctx); err != nil {
		return fmt.Errorf("webhook secrets: %w", err)
	}
	return nil
}

// checkIdentity makes a copy quiet, or warns if this may be one that nobody has declared. A node that is only told later has sent webhooks
// and fired crons of the original.
func (n *Node) checkIdentity(ctx context.Context) error {
	lifecycle := slog.String("category", "lifecycle")
	if n.config.Database.Copy {
		done, err := n.domains.DB.Q.SystemQuietCopy(ctx)
		if err != nil && !pg.IsReadOnly(err) { // where nothing can be written, nothing is sent
			return fmt.Errorf("pause crons and webhooks of a copy: %w", err)
		}
		if done.First {
			n.config.Logger.InfoContext(ctx, "this database is a copy: its crons are paused and its webhooks deactivated", lifecycle,
				slog.Group("attributes", "crons", done.Crons, "webhooks", done.Webhooks))
		}
		return nil
	}
	found, err := n.domains.DB.Q.SystemGetIdentity(ctx)
	if err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	if found.Moved {
		n.config.Logger.WarnContext(ctx, "this database was restored or copied, or its server has failed over: its crons fire and its webhooks are sent from here; "+
			"if it is a copy, stop this node and start it with OJS_COPY=true", lifecycle,
			slog.Group("attributes", "before", found.Known, "now", found.Present))
	}
	return nil
}

// fail ends Run with the first error.
// Later errors are dropped: they usually follow from the first.
func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default:
	}
}

// Addr is the address of the HTTP interface.
func (n *Node) Addr() string { return n.addr.String() }

// GRPCAddr is the address of the gRPC interface; "" if it is switched off.
func (n *Node) GRPCAddr() string {
	if n.grpcAddr == nil {
		return ""
	}
	return n.grpcAddr.String()
}

// Domains are the node's domains, for tests of the whole program.
func (n *Node) Domains() api.Domains { return n.domains }

// API is the node's HTTP interface, for tests of the whole program.
func (n *Node) API() *httpapi.API { return n.httpapi }

// SetDraining makes readiness fail, as Stop does first.
func (n *Node) SetDraining() { n.health.SetDraining() }

// Stop ends the node: readiness fails, for the shutdown delay all else goes on, then waiting fetches and streams return,
// requests finish, services stop, connections close. No job changes its state. Requests that take longer than the shutdown
// timeout are cut off. That is not an error: a slow client must not make a restart look failed. It may be called several
// times and waits for the first call. The order matters: fetches and streams end before the interfaces wait for their
// requests; the loops stop after the last request, because an answer may wait for the relay; the pools close after the loops.
// After a start that failed there is no delay: no load balancer knows the node.
func (n *Node) Stop() error {
	n.stopOnce.Do(func() {
		n.SetDraining()
		if n.started {
			time.Sleep(n.config.Server.ShutdownDelay)
		}
		ctx, cancel := context.WithTimeout(context.Background(), n.config.Server.ShutdownTimeout)
		defer cancel()
		n.httpapi.StopStreams()
		n.domains.Jobs.Drain()
		n.stopInterfaces(ctx)
		startstop.StopAllParallel(n.services...)
		n.stopMetrics()
		n.probeDB.Pool.Close()
		n.pool.Close()
		n.flushTraces()
		n.config.Logger.Info("server stopped", slog.String("category", "lifecycle"))
	})
	return n.stopErr
}

// stopInterfaces waits for running requests and streams.
// gRPC and HTTP share the same time.
func (n *Node) stopInterfaces(ctx context.Context) {
	var others sync.WaitGroup
	others.Go(func() { n.stopGRPC(ctx) })
	if err := n.http.Shutdown(ctx); err != nil {
		n.config.Logger.Warn("requests did not end within OJS_SHUTDOWN_TIMEOUT and are cut off", slog.String("category", "lifecycle"),
			slog.Group("attributes", "shutdown_timeout_ms", n.config.Server.ShutdownTimeout.Milliseconds()))
		n.stopErr = n.http.Close()
	}
	others.Wait()
	if err := n.httpapi.AwaitStreams(ctx); err != nil && n.httpapi.Streams() > 0 {
		n.config.Logger.Warn("streams did not end within OJS_SHUTDOWN_TIMEOUT and are cut off", slog.String("category", "lifecycle"))
	}
}

// logStarted logs the addresses of the node, and a warning for each setting that is meant for development only.
func (n *Node) logStarted(ctx context.Context) {
	c, log := n.config, n.config.Logger
	lifecycle := slog.String("category", "lifecycle")
	log.InfoContext(ctx, "server started", lifecycle, slog.Group("attributes", "listen", n.Addr(), "grpc_listen", n.GRPCAddr(),
		"version", c.Version, "node", n.node, "authentication", len(c.Server.APIKeys) > 0, "test_reset", c.Tests.EnableReset))
	if c.Tests.EnableReset {
		log.WarnContext(ctx, "POST /ojs/v1/admin/reset is on: every client of this server can delete all jobs; unset OJS_ENABLE_TEST_RESET in production", lifecycle)
	}
	if c.Webhooks.Enabled && c.Webhooks.AllowHTTP {
		log.WarnContext(ctx, "OJS_WEBHOOKS_ALLOW_HTTP is on: webhooks over plain http can be read and changed on the network", lifecycle)
	}
	if c.Webhooks.Enabled && len(c.Webhooks.EncryptionKeys) == 0 {
		log.WarnContext(ctx, "webhook secrets are stored in plain text; set OJS_WEBHOOKS_ENCRYPTION_KEY to seal them", lifecycle)
	}
}

// components are the parts that health reports.
// It reads memory only. A component that the node does without is off, which is not degraded.
func (n *Node) components() map[string]string {
	publisher := "ok"
	if n.relay.Status().BehindFor > publishLate {
		publisher = "degraded"
	}
	scheduler := "ok"
	if n.timer.Overdue() > sweepLate {
		scheduler = "degraded"
	}
	webhooks := api.Off
	if n.webhooks != nil {
		webhooks = n.webhooks.Status()
	}
	components := map[string]string{"listener": n.listener.Status(), "publisher": publisher, "scheduler": scheduler, "webhooks": webhooks}
	for _, c := range []*api.Certificates{n.certificates, n.grpcCertificates} {
		if c != nil && components["tls"] != api.Degraded {
			components["tls"] = c.Status()
		}
	}
	return components
}

// Beyond these, health reports degraded.
// A relay is late after 10 s without progress although events wait, a sweep after 30 s: longer than any pass that works, and
// shorter than people wait.
const (
	publishLate = 10 * time.Second
	sweepLate   = 30 * time.Second
)

// checkSchema migrates if the configuration says so, and refuses a schema that this program does not know. It uses a
// connection of its own, before there is a pool.
func checkSchema(ctx context.Context, c Config) error {
	if c.Database.Migrate {
		if _, err := migrations.Up(ctx, c.Database.URL, c.Logger); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	cfg, err := pgx.ParseConfig(c.Database.URL)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	pg.Prepare(cfg, "ojsd")
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // behind a pooler, an earlier client may have prepared a statement of the same name
	conn, pooled, err := pg.ConnectSession(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	// It would refuse the start-up parameters of the pool, or, told to ignore them, lose them and the prepared statements.
	if pooled && !c.Database.Pooler() {
		return errPooler
	}
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}
	return pg.CheckLogin(ctx, conn)
}

var errPooler = errors.New("DATABASE_URL leads to a pooler, such as PgBouncer, and DATABASE_LISTEN_URL is not set: set it to the address of PostgreSQL " +
	"itself, past the pooler; if no address leads there, set it to that of DATABASE_URL, and the server asks every 500 ms instead of listening " +
	"(docs/operations.md, Poolers)")
