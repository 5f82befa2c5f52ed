package app

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/app/domains"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/internal/maintenance"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/retention"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
)

func (n *Node) buildMetrics() (err error) {
	c := n.config
	n.metrics, err = metrics.New(metrics.Config{
		MaxLabelValues: c.Metrics.MaxLabelValues, GaugeInterval: c.Metrics.GaugeInterval,
		Service: c.Events.ServiceName, Version: c.Version, Protocol: c.Metrics.Protocol, Logger: c.Logger,
	})
	return err
}

// The timer is made before the domains, which schedule on it, and serves them afterwards.
func (n *Node) buildDomains() error {
	c, db := n.config, pg.New(n.pool, n.config.StatementTimeout)
	n.timer = timer.New(n.archetype, db)
	n.timer.Intervals.Busy = cmp.Or(c.TimerPollInterval, n.timer.Intervals.Busy)
	config := c.domains()
	config.Queue.OnFull, config.Queue.OnLimited = n.metrics.QueueFull, n.metrics.Limited
	config.Queue.OnFlush, config.Progress.OnFlush, config.Worker.OnFlush = n.metrics.Flush, n.metrics.Flush, n.metrics.Flush
	n.domains = domains.New(domains.Deps{DB: db, Commits: n.commits, Timer: n.timer, Logger: c.Logger, Tracer: n.tracer}, config)
	n.domains.ServeTimer(n.timer)
	// What a queue gives to its jobs as retry policy is known only when its cache exists; the interfaces get the limits after
	// this.
	n.config.Limits.QueueRetry = n.domains.Configured.Retry
	return nil
}

// The reader needs the relay of this node to wait for its own events.
func (n *Node) buildEventLog() error {
	c := n.config
	n.relay = eventlog.NewRelay(n.archetype, n.pool, eventlog.RelayConfig{Service: c.Events.ServiceName, Tracer: n.tracer})
	n.listener = eventlog.NewListener(n.archetype, eventlog.ListenerConfig{URL: c.DatabaseListenURL})
	n.domains.Events = eventlog.NewReader(n.domains.DB, n.relay)
	n.feed = eventlog.NewFeed(n.archetype, n.domains.Events, eventlog.FeedConfig{MaxAge: c.Events.RetentionPeriod, MaxCount: c.Events.MaxCount})
	n.domains.Feed = n.feed
	return nil
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

// Every loop may run on every node at once; what they do is guarded in the database. There is no leader.
func (n *Node) buildLoops() error {
	c := n.config
	n.pruner = retention.New(n.archetype, retention.Deps{DB: n.domains.DB, Commits: n.commits, DeadLetters: n.domains.DeadLetters, Workflows: n.domains.Workflows, Queues: n.domains.Configured}, retention.Config{
		Interval: c.Retention.PruneInterval, Discarded: c.Retention.Discarded, Completed: c.Retention.Completed,
		DeadLetterMaxAge: c.Retention.DeadLetterMaxAge, DeadLetterMaxCount: c.Retention.DeadLetterMaxCount,
	})
	n.liveness = worker.NewLiveness(n.archetype, n.domains.Workers)
	// When maintenance ends, due jobs are promoted at once, and parked fetches of all queues look again.
	n.domains.Maintenance.OnEnded(func() {
		n.timer.Schedule(0)
		n.domains.Jobs.NotifyAll()
	})
	n.follower = workflow.NewFollower(n.archetype, n.domains.Workflows)
	n.limits = limit.NewFollower(n.archetype, n.domains.Limits)
	maintainer := eventlog.NewMaintainer(n.archetype, n.pool, eventlog.MaintainerConfig{
		RetentionPeriod: c.Events.RetentionPeriod, MaxCount: c.Events.MaxCount, RetentionDone: c.Retention.Completed,
	}, n.relay)
	// The retention of a queue may be longer than the setting, so the longest that holds decides when a day of finished jobs
	// may go.
	maintainer.KeepDone(func(ctx context.Context) time.Duration {
		view, err := n.domains.Configured.View(ctx)
		if err != nil {
			return 0 // for ever, until it is known
		}
		return retention.Done(view, c.Retention.Completed)
	})
	n.services = []startstop.Service{
		n.relay, n.listener, n.feed, maintainer, n.timer, n.pruner, queue.NewPoller(n.archetype, n.domains.Jobs), n.liveness, n.follower, n.limits,
		maintenance.NewFollower(n.archetype, n.domains.Maintenance), schema.NewFollower(n.archetype, n.domains.Schemas),
		queueconfig.NewFollower(n.archetype, n.domains.Configured), queueadmin.NewFinisher(n.archetype, n.domains.Queues),
	}
	return nil
}

// buildWebhooks builds the fan-out and the dispatcher, unless webhooks are switched off on this node.
func (n *Node) buildWebhooks() error {
	w := n.config.Webhooks
	if !w.Enabled {
		return nil
	}
	roots, err := readRoots(w.CAFile)
	if err != nil {
		return err
	}
	n.webhooks = webhook.NewDispatcher(n.archetype, n.domains.Webhooks, webhook.Config{
		Rules: w.Rules, RootCAs: roots, ProxyURL: w.ProxyURL, RetrySchedule: w.RetrySchedule, RetryJitter: w.RetryJitter, Workers: w.Workers,
		Service: n.config.Events.ServiceName, Version: n.config.Version, Tracer: n.tracer,
		Observer: webhook.Observer{Attempt: n.metrics.WebhookAttempt, Done: n.metrics.WebhookDone},
	})
	n.fanOut = webhook.NewFanOut(n.archetype, n.domains.Webhooks)
	n.services = append(n.services, n.webhooks, n.fanOut)
	return nil
}

// There is no WriteTimeout: streams write for hours, and answers have deadlines of their own (httpapi, body.go).
func (n *Node) buildHTTP() error {
	c := n.config
	n.health = api.NewHealth(c.Version, api.LookAt(n.domains.Domains, n.probe), n.components)
	n.streams = api.NewStreams(c.Realtime)
	n.httpapi = httpapi.New(httpapi.Config{
		APIKeys: c.APIKeys, PublicURL: c.PublicURL, Limits: c.Limits, Tenancy: c.Tenancy, MaxBatchBytes: c.MaxBatchBytes, MaxBatchSize: c.MaxBatchSize, CORSOrigins: c.CORSOrigins,
		TestReset: c.TestReset, GRPC: c.GRPC.Enabled, Version: c.Version, EventRetention: c.Events.RetentionPeriod, EventMaxCount: c.Events.MaxCount,
		DeadLetterMaxAge: c.Retention.DeadLetterMaxAge, DeadLetterMaxCount: c.Retention.DeadLetterMaxCount, MetricsAuth: c.Metrics.RequireAuth,
		MaxWorkflowDepth: c.MaxWorkflowDepth, DefaultVisibility: c.DefaultVisibility, DefaultTimeout: c.DefaultTimeout,
		RetentionCompleted: c.Retention.Completed, RetentionDiscarded: c.Retention.Discarded,
		ExtensionEvents: c.Events.ExtensionTypes,
	}, httpapi.Deps{
		Domains: n.domains.Domains, Logger: c.Logger, Health: n.health, Streams: n.streams, Memory: &n.memory, Reset: n.reset, NextPrune: n.pruner.NextIn,
		Webhooks: n.httpWebhooks(), Tracer: n.tracer,
		RequestDone: n.metrics.Request, BulkDone: n.metrics.Bulk, Metrics: httpapi.Metrics{WriteText: n.metrics.WriteText, Gauges: n.metrics.Gauges},
	})
	n.http = &http.Server{
		Handler: n.httpapi.Handler(),
		// Against clients that open connections and send nothing. ReadTimeout is for the whole request: at 32 MiB it asks for
		// 273 KiB/s. Both are in docs/reference/http.md, Bodies.
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       2 * time.Minute,
		IdleTimeout:       5 * time.Minute,
		// What net/http logs are mistakes of clients, such as broken TLS or headers.
		ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
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

// It is called after all parts are built.
func (n *Node) metricSources() metrics.Sources {
	streams := n.httpapi.StreamCounters()
	if n.grpc != nil {
		streams["grpc"] = n.grpc.StreamCounter()
	}
	return metrics.Sources{
		Node: n.commits.Node, Database: metrics.NewDatabase(n.domains.DB), Pool: n.pool, Reconnects: n.listener.Reconnects, Streams: streams,
		Webhooks: n.domains.Webhooks.Backlog, Components: n.components, QueueLimits: n.domains.Jobs.KnownLimits,
	}
}
