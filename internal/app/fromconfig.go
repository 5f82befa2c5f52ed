package app

import (
	"log/slog"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/app/domains"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/retention"
	"github.com/ojsd/ojsd/internal/tenant"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/webhook/egress"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
)

// FromConfig is the configuration of a node with these settings, and fixed values for fields without a setting. Settings
// become configuration only here.
// DatabasePooler follows from a listen URL: whoever sets one has a pooler between.
func FromConfig(c config.Config, logger *slog.Logger, version string) Config {
	return Config{
		DatabaseURL: c.Database.URL, DatabaseListenURL: c.Database.ListenURL,
		DatabaseMaxConns: int32(c.Database.MaxConns), DatabasePooler: c.Database.ListenURL != "", Migrate: c.Database.Migrate,
		StatementTimeout: statementTimeout,
		Listen:           c.Server.Listen, APIKeys: c.Server.APIKeys, CORSOrigins: c.Server.CORSOrigins, ShutdownDelay: c.Server.ShutdownDelay, ShutdownTimeout: c.Server.ShutdownTimeout,
		PublicURL: publicURL(c), Version: version, Logger: logger,
		Tenancy:          tenant.Mode(c.Server.Tenancy),
		Limits:           job.Limits{MaxEnvelopeBytes: int(c.Jobs.MaxSize), MaxResultBytes: int(c.Jobs.MaxSize)},
		StrictQueues:     c.Jobs.StrictQueues,
		MaxWorkflowDepth: c.Workflows.MaxDepth, MaxBatchBytes: maxBatchBytes, MaxBatchSize: maxBatchSize,
		DefaultVisibility: c.Jobs.VisibilityTimeout, DefaultTimeout: c.Jobs.Timeout, FullRetryAfter: c.Queues.FullRetryAfter,
		WorkerDeadAfter: c.Workers.DeadAfter,
		Retention: Retention{
			Completed: c.Retention.Completed, Discarded: c.Retention.Discarded,
			DeadLetterMaxAge: c.DeadLetter.MaxAge, DeadLetterMaxCount: c.DeadLetter.MaxCount, PruneInterval: retention.PruneInterval,
		},
		Events: Events{
			ServiceName: c.Events.ServiceName, RetentionPeriod: c.Events.RetentionPeriod, MaxCount: c.Events.MaxCount,
			WorkerHeartbeat: c.Events.WorkerHeartbeat, JobHeartbeatInterval: c.Events.JobHeartbeatMinInterval,
			EnqueuedOnRequeue: c.Events.EnqueuedOnRequeue, ExtensionTypes: c.Events.ExtensionTypes,
		},
		Realtime: api.Realtime{
			BufferSize: api.BufferSize, DropOldest: c.Realtime.Overflow == "drop", RateLimit: c.Realtime.RateLimitPerSecond,
			MaxConnections: api.MaxConnections, MaxPerClient: c.Realtime.MaxConnectionsPerClient,
			QueryToken: c.Realtime.AllowQueryToken, AllowedOrigins: c.Server.CORSOrigins, StatsInterval: api.StatsInterval,
		},
		GRPC: GRPC{
			Enabled: c.GRPC.Listen != "off", Listen: c.GRPC.Listen, TLSCert: c.GRPC.TLSCert, TLSKey: c.GRPC.TLSKey, ClientCA: c.GRPC.ClientCA,
		},
		Webhooks: webhooksFromConfig(c.Webhooks),
		Metrics: Metrics{
			RequireAuth: c.Metrics.RequireAuth, GaugeInterval: metrics.GaugeInterval, MaxLabelValues: metrics.MaxLabelValues,
		},
		TestReset: c.Tests.EnableReset, TestDirectives: c.Tests.Directives,
	}
}

// Keys are copied into the type of the store.
func webhooksFromConfig(c config.Webhooks) Webhooks {
	w := Webhooks{
		Enabled: c.Enabled,
		Rules:   egress.Rules{AllowHTTP: c.AllowHTTP, AllowNetworks: c.AllowNetworks.Networks, AllowHosts: c.AllowNetworks.Hosts},
		CAFile:  c.CAFile, ProxyURL: c.ProxyURL, RetrySchedule: c.RetrySchedule, RetryJitter: webhook.RetryJitter, Workers: webhook.Workers,
		MaxSubscriptions: int32(c.MaxSubscriptions),
	}
	for _, key := range c.EncryptionKeys {
		w.EncryptionKeys = append(w.EncryptionKeys, key)
	}
	return w
}

// "" means that each request decides.
func publicURL(c config.Config) string {
	if c.Server.PublicURL == nil {
		return ""
	}
	return c.Server.PublicURL.String()
}

// domains is the configuration of each domain.
// Crons and workflows decode stored definitions again, hence the limits among their settings.
func (c Config) domains() domains.Config {
	limits := c.Tenancy.Limits(c.Limits, "")
	limits.TenantRequired = false // what is stored already was enqueued by a tenant, or before that was required
	return domains.Config{
		Queue: queue.Config{DefaultVisibility: c.DefaultVisibility, DefaultTimeout: c.DefaultTimeout, StrictQueues: c.StrictQueues, FullRetryAfter: c.FullRetryAfter},
		Queues: queueadmin.Config{
			ExtensionEvents: c.Events.ExtensionTypes,
			Retention:       queueadmin.Retention{Completed: c.Retention.Completed, Discarded: c.Retention.Discarded, Cancelled: c.Retention.Completed},
		},
		Progress: progress.Config{DefaultTimeout: c.DefaultTimeout},
		Worker: worker.Config{
			DeadAfter: c.WorkerDeadAfter, DefaultTimeout: c.DefaultTimeout, HeartbeatEvents: c.Events.WorkerHeartbeat,
			JobHeartbeatInterval: c.Events.JobHeartbeatInterval, TestDirectives: c.TestDirectives,
		},
		Cron:     cron.Config{Limits: limits},
		Workflow: workflow.Config{Limits: limits, MaxDepth: c.MaxWorkflowDepth},
		Webhook:  webhook.StoreConfig{Keys: c.Webhooks.EncryptionKeys, MaxWebhooks: c.Webhooks.MaxSubscriptions},
	}
}
