package app

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
)

// Fixed values of Config.
// They are the limits of docs/reference/jobs.md, Limits.
const (
	maxBatchBytes = 32 << 20 // body of a batch call
	maxBatchSize  = 10_000   // items of a batch call

	statementTimeout = 15 * time.Second
)

// Config is the configuration of a node: the settings, which FromConfig copies, and values from the program. Values are not
// validated here. A field without a setting has a fixed value, which only tests change.
// It is copied by Start and not changed by the caller afterwards.
type Config struct {
	// DatabaseURL is the Postgres to run against. Required.
	DatabaseURL string

	// DatabaseListenURL is where LISTEN is issued, e.g. past a transaction-mode pooler. Empty: DatabaseURL.
	DatabaseListenURL string

	// DatabaseMaxConns bounds the connection pool.
	DatabaseMaxConns int32

	// DatabasePooler says that DatabaseURL leads to a transaction-mode pooler: statements are not prepared by name.
	DatabasePooler bool

	// Listen is the address of the HTTP interface.
	Listen string

	// Migrate brings the schema up to date before serving.
	// Any number of nodes may do so at once.
	Migrate bool

	// Version is shown in the manifest and by health.
	Version string

	// Logger is the log of the server. nil: slog.Default().
	Logger *slog.Logger

	// APIKeys are the accepted bearer tokens. Empty: the API is open.
	APIKeys []string

	// PublicURL is the base of the manifest's base_url. Empty: the host of each request.
	PublicURL string

	// CORSOrigins are the origins browsers may call from. Empty: none.
	CORSOrigins []string

	// Limits of requests.
	Limits job.Limits

	// FullRetryAfter is after which time producers are told to try again that a full queue has refused.
	FullRetryAfter time.Duration

	// StrictQueues refuses jobs of queues that nobody has created.
	StrictQueues bool
	// Tenancy says whether calls name their tenant. Zero: optional.
	Tenancy queueadmin.TenantMode

	// MaxWorkflowDepth is how deep workflows may be nested.
	MaxWorkflowDepth int

	// MaxBatchBytes bounds the body of batch calls. No setting.
	MaxBatchBytes int

	// MaxBatchSize is the limit of items in a batch call. No setting.
	MaxBatchSize int

	// DefaultVisibility and DefaultTimeout apply to jobs that set none.
	DefaultVisibility time.Duration
	DefaultTimeout    time.Duration

	// WorkerDeadAfter is the silence after which a worker that has registered or sent heartbeats is dead.
	WorkerDeadAfter time.Duration

	// Retention says how long jobs that have ended are kept.
	Retention Retention

	// TestReset adds POST /ojs/v1/admin/reset, which deletes everything.
	TestReset bool

	// TestDirectives honours meta.test_directive of jobs, with which any producer can quiet a worker.
	TestDirectives bool

	// Events are the settings of the event log.
	Events Events

	// Metrics are the settings of metrics.
	Metrics Metrics

	// Realtime are the settings of event streams.
	Realtime api.Realtime

	// GRPC are the settings of the gRPC interface.
	GRPC GRPC

	// Webhooks are the settings of webhooks.
	Webhooks Webhooks

	// TracerProvider makes the spans. nil: one that follows the OTEL_* variables, which without an endpoint makes none.
	TracerProvider trace.TracerProvider

	// StatementTimeout bounds every statement, waiting for a connection included. Clients know it as the time after which they get
	// 504 (docs/reference/errors.md, Catalogue). No setting.
	StatementTimeout time.Duration

	// TimerPollInterval is how often this node looks for due times of other nodes while jobs move. 0: 5 s. No setting.
	TimerPollInterval time.Duration

	// ShutdownDelay is how long the node serves on after a stop while readiness fails already. Zero: not at all.
	ShutdownDelay time.Duration

	// ShutdownTimeout bounds how long requests may take to end after a stop.
	ShutdownTimeout time.Duration

	// OnStarted is called by Run when the node answers, with its addresses; grpcAddress is empty without gRPC. Or nil.
	OnStarted func(address, grpcAddress string)
}

// GRPC are the settings of the gRPC interface (docs/reference/configuration.md).
type GRPC struct {
	// Enabled opens the port.
	Enabled bool

	// Listen is its address.
	Listen string

	// TLSCert and TLSKey are files in PEM; both or none. With ClientCA clients must show a certificate signed by it.
	TLSCert, TLSKey, ClientCA string
}

// Retention says how long jobs are kept that have ended. Zero: no limit.
type Retention struct {
	// Completed is for completed and cancelled jobs and counts from the end of the job's day (UTC).
	Completed time.Duration

	// Discarded is for discarded jobs that are not dead letters.
	Discarded time.Duration

	// DeadLetterMaxAge and DeadLetterMaxCount bound the dead letters; both apply.
	DeadLetterMaxAge   time.Duration
	DeadLetterMaxCount int64

	// PruneInterval is how often retention runs while jobs change. No setting.
	PruneInterval time.Duration
}

// Metrics are the settings of metrics.
type Metrics struct {
	// RequireAuth makes /metrics need a key, if there are any.
	RequireAuth bool

	// GaugeInterval is how often figures of the whole deployment are read at most. No setting.
	GaugeInterval time.Duration

	// MaxLabelValues is how many job types and how many queues have their own series. No setting.
	MaxLabelValues int

	// Protocol is how metrics are pushed over OTLP: grpc or http/protobuf. The exporter reads the OTEL_ variables for all else.
	// Empty: metrics are not pushed.
	Protocol string
}

// Events are the settings of the event log.
type Events struct {
	// ServiceName is in the source of every event, ojs://{service}/….
	ServiceName string

	// RetentionPeriod and MaxCount bound what consumers can read. Whole partitions are dropped, so storage follows later. 0: no limit.
	RetentionPeriod time.Duration
	MaxCount        int64

	// ExtensionTypes writes events of types that only extensions of the specification name.
	ExtensionTypes bool

	// EnqueuedOnRequeue makes the events of jobs that become available again public job.enqueued.
	EnqueuedOnRequeue bool

	// JobHeartbeatInterval is the least time between two job.heartbeat events of a run. 0: one per extension.
	JobHeartbeatInterval time.Duration

	// WorkerHeartbeat writes worker.heartbeat, one event per heartbeat call.
	WorkerHeartbeat bool
}

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
		Tenancy:          queueadmin.TenantMode(c.Server.Tenancy),
		Limits:           job.Limits{MaxEnvelopeBytes: int(c.Jobs.MaxSize), MaxResultBytes: int(c.Jobs.MaxSize)},
		StrictQueues:     c.Jobs.StrictQueues,
		MaxWorkflowDepth: c.Workflows.MaxDepth, MaxBatchBytes: maxBatchBytes, MaxBatchSize: maxBatchSize,
		DefaultVisibility: c.Jobs.VisibilityTimeout, DefaultTimeout: c.Jobs.Timeout, FullRetryAfter: c.Queues.FullRetryAfter,
		WorkerDeadAfter: c.Workers.DeadAfter,
		Retention: Retention{
			Completed: c.Retention.Completed, Discarded: c.Retention.Discarded,
			DeadLetterMaxAge: c.DeadLetter.MaxAge, DeadLetterMaxCount: c.DeadLetter.MaxCount, PruneInterval: queueadmin.PruneInterval,
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
		Rules:   webhook.EgressRules{AllowHTTP: c.AllowHTTP, AllowNetworks: c.AllowNetworks.Networks, AllowHosts: c.AllowNetworks.Hosts},
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
func (c Config) domains() api.DomainConfig {
	limits := c.Tenancy.Limits(c.Limits, "")
	limits.TenantRequired = false // what is stored already was enqueued by a tenant, or before that was required
	return api.DomainConfig{
		Queue: queue.Config{DefaultVisibility: c.DefaultVisibility, DefaultTimeout: c.DefaultTimeout, StrictQueues: c.StrictQueues, FullRetryAfter: c.FullRetryAfter},
		Queues: queueadmin.Config{
			ExtensionEvents: c.Events.ExtensionTypes,
			Retention:       queueadmin.Retention{Completed: c.Retention.Completed, Discarded: c.Retention.Discarded, Cancelled: c.Retention.Completed},
		},
		Progress: queue.ProgressConfig{DefaultTimeout: c.DefaultTimeout},
		Worker: worker.Config{
			DeadAfter: c.WorkerDeadAfter, DefaultTimeout: c.DefaultTimeout, HeartbeatEvents: c.Events.WorkerHeartbeat,
			JobHeartbeatInterval: c.Events.JobHeartbeatInterval, TestDirectives: c.TestDirectives,
		},
		Cron:     cron.Config{Limits: limits},
		Workflow: workflow.Config{Limits: limits, MaxDepth: c.MaxWorkflowDepth},
		Webhook:  webhook.StoreConfig{Keys: c.Webhooks.EncryptionKeys, MaxWebhooks: c.Webhooks.MaxSubscriptions},
	}
}
