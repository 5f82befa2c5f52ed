package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/riverqueue/river/rivershared/startstop"
	"go.opentelemetry.io/otel"
	"golang.org/x/net/netutil"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/grpcapi"
	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
)

func (n *Node) buildMetrics() (err error) {
	c := n.config
	n.metrics, err = metrics.New(c.Config, metrics.Deps{Version: c.Version, Protocol: c.MetricsProtocol, Logger: c.Logger,
		Sources: n.metricSources})
	return err
}

func (n *Node) buildCommits() error {
	n.commits = eventlog.NewCommits(eventlog.CommitsConfig{
		Node: n.node, Events: n.config.Events, Changes: n.changeSubscribers(), Committed: n.commitSubscribers(),
	})
	return nil
}

// buildDomains makes the timer before the domains, which schedule on it.
func (n *Node) buildDomains() error {
	c, db := n.config, pg.New(n.pool, n.config.Database.StatementTimeout)
	n.timer = loop.NewTimer(n.archetype, db, api.TimerSources(&n.domains))
	n.timer.Intervals.Busy = c.Jobs.DuePollInterval
	queues := queueconfig.NewCache(db, c.Logger, queueconfig.CacheConfig{Found: n.queueConfigured, Listening: n.listening})
	n.domains = api.NewDomains(api.DomainDeps{
		DB: db, Commits: n.commits, Timer: n.timer, Queues: queues, Logger: c.Logger, Tracer: n.tracer,
		Observer: queue.Observer{
			Full: n.metrics.QueueFull, Limited: n.metrics.Limited, Flush: n.metrics.Flush, Outage: n.metrics.Outage,
		},
		MaintenanceEnded: n.maintenanceEnded, Listening: n.listening,
	}, c.Config)
	return nil
}

// buildEventLog gives the reader the relay of this node to wait for its own events.
func (n *Node) buildEventLog() error {
	c := n.config
	n.relay = eventlog.NewRelay(n.archetype, n.pool, eventlog.RelayConfig{
		Events: c.Events, Pass: n.relayPass, HasReaders: n.hasReaders, AfterPublish: n.afterOwnPublish, Counts: n.metrics.CountPublished,
	})
	n.listener = eventlog.NewListener(n.archetype, eventlog.ListenerConfig{URL: c.Database.Listener(), Handlers: n.notificationHandlers()})
	n.domains.Events = eventlog.NewReader(n.domains.DB, n.relay)
	n.feed = eventlog.NewFeed(n.archetype, n.domains.Events, eventlog.FeedConfig{Events: c.Events})
	n.domains.Feed = n.feed
	return nil
}

// relayPass begins the span of a pass of the relay.
func (n *Node) relayPass(ctx context.Context) (context.Context, func(published int, err error)) {
	ctx, span := n.tracer.Pass(ctx, "ojs.events.publish")
	return ctx, span.End
}

// probe asks the database on a connection of its own. On a read-only one all connections are made anew (pg.DB.Probe).
// After a failover the pool may hold sessions of the former primary, which answer but refuse writes.
func (n *Node) probe(ctx context.Context) (now time.Time, readOnly bool, err error) {
	now, readOnly, err = n.probeDB.Probe(ctx)
	if readOnly {
		n.pool.Reset()
	}
	return now, readOnly, err
}

// buildLoops makes loops that may all run on every node at once; what they do is guarded in the database. There is no leader.
func (n *Node) buildLoops() error {
	c := n.config
	n.pruner = queueadmin.NewPruner(n.archetype, queueadmin.PrunerDeps{
		DB: n.domains.DB, Commits: n.commits, Queues: n.domains.Configured,
		DeadLetters: n.domains.DeadLetters.Prune, Workflows: n.domains.Workflows.Prune,
	}, c.Config)
	n.liveness = worker.NewLiveness(n.archetype, n.domains.Workers)
	n.follower = workflow.NewFollower(n.archetype, n.domains.Workflows)
	n.limits = limit.NewFollower(n.archetype, n.domains.Limits)
	n.outages = queue.NewOutageWatch(n.archetype, n.domains.Jobs)
	maintainer := eventlog.NewMaintainer(n.archetype, n.pool, eventlog.MaintainerConfig{
		Events: c.Events,
		// The retention of a queue may be longer than the setting, so the longest that holds decides when a day of finished jobs
		// may go.
		KeepDone: func(ctx context.Context) time.Duration {
			view, err := n.domains.Configured.View(ctx)
			if err != nil {
				n.config.Logger.WarnContext(ctx, "finished jobs are kept until the retention of the queues can be read", slog.String("category", "lifecycle"),
					slog.Any("error", err))
				return 0 // for ever
			}
			return queueadmin.KeepDone(view, c.Retention.Completed)
		},
	}, n.relay)
	n.services = []startstop.Service{
		n.relay, n.listener, n.feed, maintainer, n.timer, n.pruner, queue.NewPoller(n.archetype, n.domains.Jobs), n.liveness, n.follower,
		n.limits, n.outages,
		queueconfig.NewMaintenanceFollower(n.archetype, n.domains.Maintenance), schema.NewFollower(n.archetype, n.domains.Schemas),
		queueconfig.NewFollower(n.archetype, n.domains.Configured), queueadmin.NewFinisher(n.archetype, n.domains.Queues),
	}
	return nil
}

// buildWebhooks builds the fan-out and the dispatcher, unless webhooks are switched off on this node.
func (n *Node) buildWebhooks() error {
	if !n.config.Webhooks.Enabled {
		return nil
	}
	roots, err := readRoots(n.config.Webhooks.CAFile)
	if err != nil {
		return err
	}
	n.webhooks = webhook.NewDispatcher(n.archetype, n.domains.Webhooks, n.config.Config, webhook.DispatcherDeps{
		RootCAs: roots, Version: n.config.Version, Tracer: n.tracer,
		Observer: webhook.Observer{Attempt: n.metrics.WebhookAttempt, Done: n.metrics.WebhookDone},
	})
	n.fanOut = webhook.NewFanOut(n.archetype, n.domains.Webhooks)
	n.services = append(n.services, n.webhooks, n.fanOut)
	return nil
}

// buildHTTP sets no WriteTimeout: streams write for hours, and answers have deadlines of their own (httpapi, body.go).
func (n *Node) buildHTTP() (err error) {
	c := n.config
	n.health = api.NewHealth(c.Version, api.LookAt(n.domains, n.probe), n.components)
	n.streams = api.NewStreams(c.Realtime)
	n.httpapi = httpapi.New(c.Config, httpapi.Deps{
		Domains: n.domains, Logger: c.Logger, Health: n.health, Streams: n.streams, Memory: &n.memory, Reset: n.reset,
		NextPrune: n.pruner.NextIn, Version: c.Version, TestWebhook: n.webhooks.Test, Tracer: n.tracer, RequestDone: n.metrics.Request,
		BulkDone: n.metrics.Bulk, Metrics: httpapi.Metrics{WriteText: n.metrics.WriteText, Gauges: n.metrics.Gauges},
	})
	n.http = &http.Server{
		Handler: n.httpapi.Handler(),
		// Against clients that open connections and send nothing. ReadTimeout is for the whole request: at 32 MiB it asks for
		// 273 KiB/s. Both are in docs/reference/http.md, Bodies.
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       2 * time.Minute,
		IdleTimeout:       5 * time.Minute,
		// What net/http logs are mistakes of clients, such as broken TLS or headers.
		ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
	}
	n.http.Protocols.SetHTTP1(true)
	n.http.Protocols.SetHTTP2(true)
	n.http.Protocols.SetUnencryptedHTTP2(c.Server.HTTP2Cleartext)
	if files := c.Server.TLS(); files.Cert != "" {
		// Probes show no certificate, so httpapi asks for one where it is needed.
		n.certificates, err = api.NewCertificates(files, tls.VerifyClientCertIfGiven, c.Logger, "h2", "http/1.1")
		if err != nil {
			return err
		}
		n.http.TLSConfig = n.certificates.Server()
	}
	return nil
}

// reset empties the database and the caches of this node. For tests only.
// Other nodes are told by a notification. Requests in flight may write rows that stay.
func (n *Node) reset(ctx context.Context) error {
	if err := n.domains.DB.Reset(ctx); err != nil {
		return err
	}
	n.domains.Forget()
	return nil
}

// metricSources is called after all parts are built.
func (n *Node) metricSources() metrics.Sources {
	streams := n.httpapi.StreamCounters()
	if n.grpc != nil {
		streams["grpc"] = n.grpc.StreamCounter()
	}
	return metrics.Sources{
		Node: n.node, Database: metrics.NewDatabase(n.domains.DB), Pool: n.pool, Reconnects: n.listener.Reconnects, Streams: streams,
		Webhooks: n.domains.Webhooks.Backlog, Components: n.components, QueueLimits: n.domains.Jobs.KnownLimits,
		CertificateExpires: n.certificateExpires,
	}
}

// certificateExpires has no entry for an interface without TLS.
func (n *Node) certificateExpires() map[string]time.Time {
	ends := map[string]time.Time{}
	if n.certificates != nil {
		ends["http"] = n.certificates.Expires()
	}
	if n.grpcCertificates != nil {
		ends["grpc"] = n.grpcCertificates.Expires()
	}
	return ends
}

// buildGRPC builds the gRPC interface, unless it is switched off.
// It must follow buildHTTP, whose health and streams it shares.
func (n *Node) buildGRPC() (err error) {
	c := n.config
	if !c.GRPC.Enabled() {
		return nil
	}
	if files := c.GRPCTLS(); files.Cert != "" {
		if n.grpcCertificates, err = api.NewCertificates(files, tls.RequireAndVerifyClientCert, c.Logger); err != nil {
			return fmt.Errorf("grpc: %w", err)
		}
	}
	n.grpc, err = grpcapi.New(c.Config, grpcapi.Deps{
		Domains: n.domains, Health: n.health, Streams: n.streams, Memory: &n.memory, Logger: c.Logger, Version: c.Version,
		Tracer: n.tracer, RequestDone: n.metrics.RPC, Certificates: n.grpcCertificates,
	})
	return err
}

// startGRPC has an error that names the setting, because a taken port 9090 is the most common reason why a second server on a machine does
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
	ln = netutil.LimitListener(ln, n.config.Server.MaxConnections)
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
			slog.Group("attributes", "shutdown_timeout_ms", n.config.Server.ShutdownTimeout.Milliseconds()))
	}
}

// readRoots reads the file once. Without a certificate pool of the system those of the file are all.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("webhooks ca file: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("webhooks ca file %s contains no certificate in PEM", file)
	}
	return roots, nil
}

// flushTimeout bounds how long a stop waits for the collectors of traces and metrics.
// A collector that is down must not hold up a stop.
const flushTimeout = 5 * time.Second

// buildTracing follows the OTEL_* variables, unless the configuration has its own provider.
// Without an endpoint there is no provider, and spans cost nothing.
func (n *Node) buildTracing(ctx context.Context) error {
	if n.config.TracerProvider == nil {
		traces, err := tracing.NewProvider(ctx, tracing.Service{Name: n.config.Events.ServiceName, Version: n.config.Version,
			Instance: strconv.Itoa(int(n.node))})
		if err != nil {
			return err
		}
		if traces != nil {
			n.traces, n.config.TracerProvider = traces, traces
			// The library has a global logger and error handler only; two nodes in one process share them.
			logger := n.config.Logger
			otel.SetLogger(logr.FromSlogHandler(logger.Handler()))
			otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
				logger.Warn("telemetry was not exported", slog.String("category", "system"), slog.Any("error", err))
			}))
		}
	}
	n.tracer = tracing.New(tracing.Config{Provider: n.config.TracerProvider})
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
