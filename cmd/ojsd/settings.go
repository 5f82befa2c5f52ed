package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/job"
)

// span is a duration in Go's form (168h, 1m30s) or in ISO 8601 (P7D).
type span time.Duration

// UnmarshalText is what kong calls.
func (s *span) UnmarshalText(text []byte) error {
	if d, err := time.ParseDuration(string(text)); err == nil {
		*s = span(d)
		return nil
	}
	if string(text) == "-1" {
		*s = -1 // what many programs write for "for ever"
		return nil
	}
	d, err := duration.Parse(string(text))
	if err != nil {
		return fmt.Errorf("%q is neither a duration like 168h nor one like P7D", text)
	}
	*s = span(d)
	return nil
}

// String is how the summary of the configuration shows it.
func (s span) String() string { return time.Duration(s).String() }

// limit is for fields of app.Config where zero stands for the default: an explicit zero is the shortest time there is.
func (s span) limit() time.Duration {
	if s == 0 {
		return 1
	}
	return time.Duration(s)
}

// settings are the options of a server that `serve` and `dev` share. README's table is checked against them.
type settings struct {
	DatabaseListenURL string `env:"DATABASE_LISTEN_URL" placeholder:"URL" help:"Where LISTEN is issued, e.g. past a transaction-mode pooler. Default: the database."`
	DatabaseMaxConns  int32  `env:"OJS_DATABASE_MAX_CONNS" default:"16" placeholder:"N" help:"Connections of the pool, at least 4."`
	DatabasePooler    bool   `env:"OJS_DATABASE_POOLER" help:"The database is reached through a transaction-mode pooler."`

	APIKey      []string `name:"api-key" env:"OJS_API_KEY" placeholder:"KEY,…" help:"Accepted bearer keys. Empty: the API is open."`
	PublicURL   string   `env:"OJS_PUBLIC_URL" placeholder:"URL" help:"Base of the manifest's base_url. Default: taken from each request."`
	CORSOrigins []string `name:"cors-origins" env:"OJS_CORS_ORIGINS" placeholder:"ORIGIN,…" help:"Origins browsers may call from. Empty: none."`

	MaxEnvelopeBytes int `env:"OJS_MAX_ENVELOPE_BYTES" default:"1048576" placeholder:"BYTES" help:"Largest job, up to 10485760 bytes."`
	MaxBatchBytes    int `env:"OJS_MAX_BATCH_BYTES" default:"33554432" placeholder:"BYTES" help:"Largest body of a batch call, decompressed."`
	MaxBatchSize     int `env:"OJS_MAX_BATCH_SIZE" default:"10000" placeholder:"N" help:"Most items of a batch call, at least 1000."`

	DefaultVisibilityTimeoutMS int64 `name:"default-visibility-timeout-ms" env:"OJS_DEFAULT_VISIBILITY_TIMEOUT_MS" default:"30000" placeholder:"MS" help:"Reservation of a fetched job when neither fetch nor job sets one, in ms."`
	DefaultTimeoutMS           int64 `name:"default-timeout-ms" env:"OJS_DEFAULT_TIMEOUT_MS" default:"1800000" placeholder:"MS" help:"Execution timeout of a job that sets none, in ms."`
	ResultTTL                  int64 `name:"result-ttl" env:"OJS_RESULT_TTL" default:"604800" placeholder:"S" help:"How long the result of a job without result_ttl is shown, in s; 0: not kept; -1: as long as the job."`
	ResultMaxBytes             int   `env:"OJS_RESULT_MAX_BYTES" default:"1048576" placeholder:"BYTES" help:"Largest result of a job, up to 33554432 bytes."`
	WorkerDeadAfterMS          int64 `name:"worker-dead-after-ms" env:"OJS_WORKER_DEAD_AFTER_MS" default:"60000" placeholder:"MS" help:"Silence after which a worker that has registered or sent heartbeats is dead and its jobs are given back, in ms."`
	CronVisibilityTimeoutMS    int64 `name:"cron-visibility-timeout-ms" env:"OJS_CRON_VISIBILITY_TIMEOUT_MS" default:"600000" placeholder:"MS" help:"The same for jobs of crons whose template sets none, in ms."`
	MaxErrorHistory            int   `env:"OJS_MAX_ERROR_HISTORY" default:"50" placeholder:"N" help:"Failures kept per job, the newest win; at least 10."`
	RetentionCompleted         span  `env:"OJS_RETENTION_COMPLETED" default:"P7D" placeholder:"DURATION" help:"How long completed jobs are kept, counted from the end of their day (UTC); negative: for ever."`
	RetentionCancelled         span  `env:"OJS_RETENTION_CANCELLED" default:"P7D" placeholder:"DURATION" help:"How long cancelled jobs are kept, counted from the end of their day (UTC); negative: for ever."`
	RetentionDiscarded         span  `env:"OJS_RETENTION_DISCARDED" default:"P30D" placeholder:"DURATION" help:"How long discarded jobs are kept that are no dead letters; negative: for ever."`
	DeadLetterMaxAge           span  `env:"OJS_DEAD_LETTER_MAX_AGE" default:"P180D" placeholder:"DURATION" help:"How long dead letters are kept; negative: for ever."`
	DeadLetterMaxCount         int64 `env:"OJS_DEAD_LETTER_MAX_COUNT" default:"10000" placeholder:"N" help:"How many dead letters are kept, the newest, at least 1; negative: all."`
	PruneIntervalMS            int64 `name:"prune-interval-ms" env:"OJS_PRUNE_INTERVAL_MS" default:"60000" placeholder:"MS" help:"How often job retention is looked at while jobs move, in ms."`
	ShutdownTimeoutMS          int64 `name:"shutdown-timeout-ms" env:"OJS_SHUTDOWN_TIMEOUT_MS" default:"30000" placeholder:"MS" help:"How long requests may take to end after SIGTERM, in ms."`

	CompatPythonSDK bool `name:"compat-python-sdk" env:"OJS_COMPAT_PYTHON_SDK" default:"true" negatable:"" help:"Content-Type parameter that the Python SDK needs, for its User-Agent only."`
	CompatV1Prefix  bool `name:"compat-v1-prefix" env:"OJS_COMPAT_V1_PREFIX" default:"true" negatable:"" help:"GET /v1/… as an alias of /ojs/v1/…."`
	TestDirectives  bool `env:"OJS_TEST_DIRECTIVES" help:"meta.test_directive of a job decides what its worker is told. For tests only: any producer can quiet a worker."`
	EnableTestReset bool `env:"OJS_ENABLE_TEST_RESET" help:"POST /ojs/v1/admin/reset deletes everything. For tests only."`

	Events   eventSettings    `embed:"" prefix:"events-"`
	Realtime realtimeSettings `embed:"" prefix:"realtime-"`
	GRPC     grpcSettings     `embed:"" prefix:"grpc-"`
	Webhooks webhookSettings  `embed:"" prefix:"webhooks-"`
	Tracing  tracingSettings  `embed:"" prefix:"tracing-"`
	Metrics  metricsSettings  `embed:"" prefix:"metrics-"`
}

// tracingSettings go with the standard OTEL_* variables, which say where traces are sent.
type tracingSettings struct {
	ExecuteSpans   bool `env:"OJS_TRACING_EXECUTE_SPANS" default:"true" negatable:"" help:"ojs.execute, one span per attempt, made by the server."`
	InjectMeta     bool `env:"OJS_TRACING_INJECT_META" default:"true" negatable:"" help:"A job whose meta has no trace context gets that of its request."`
	MaxParentDelay span `env:"OJS_TRACING_MAX_PARENT_DELAY" default:"1h" placeholder:"DURATION" help:"Wait of a job beyond which its execution begins a trace of its own, with a link; negative: always."`
}

func (s tracingSettings) config() app.Tracing {
	return app.Tracing{NoExecuteSpans: !s.ExecuteSpans, NoInjectMeta: !s.InjectMeta, MaxParentDelay: s.MaxParentDelay.limit()}
}

// number is at least 1, for fields of app.Config where zero stands for the default.
type number int

// UnmarshalText is what kong calls.
func (n *number) UnmarshalText(text []byte) error {
	i, err := strconv.Atoi(string(text))
	if err != nil || i < 1 {
		return fmt.Errorf("%q is no whole number from 1 on", text)
	}
	*n = number(i)
	return nil
}

type metricsSettings struct {
	RequireAuth    bool   `env:"OJS_METRICS_REQUIRE_AUTH" help:"GET /metrics needs a key like everything else, if there are any."`
	Compat         bool   `env:"OJS_METRICS_COMPAT" default:"true" negatable:"" help:"The ojs_job_… series of the observability extension beside ojs_jobs_…."`
	GaugeInterval  span   `env:"OJS_METRICS_GAUGE_INTERVAL" default:"10s" placeholder:"DURATION" help:"How often figures of the whole deployment are read at most, when somebody asks; 0: each time, if that costs little."`
	MaxLabelValues number `env:"OJS_METRICS_MAX_LABEL_VALUES" default:"1000" placeholder:"N" help:"How many job types, and how many queues, have series of their own, 1 to 100000; the rest share __other__."`
}

func (s metricsSettings) config() app.Metrics {
	return app.Metrics{
		RequireAuth: s.RequireAuth, NoCompat: !s.Compat, GaugeInterval: s.GaugeInterval.limit(), MaxLabelValues: int(s.MaxLabelValues),
		Protocol: metricsProtocol(os.Getenv),
	}
}

type realtimeSettings struct {
	BufferSize              int      `env:"OJS_REALTIME_BUFFER_SIZE" default:"1000" placeholder:"N" help:"Events that may wait for one slow stream before drop loses the oldest."`
	Overflow                string   `env:"OJS_REALTIME_OVERFLOW" enum:"catchup,drop" default:"catchup" placeholder:"catchup|drop" help:"A stream that is too slow reads what it missed from the table, or loses it."`
	RateLimitPerSecond      int      `env:"OJS_REALTIME_RATE_LIMIT_PER_SECOND" default:"1000" placeholder:"N" help:"Frames per second and connection; more are delayed. 0: no limit."`
	MaxConnections          int      `env:"OJS_REALTIME_MAX_CONNECTIONS" default:"10000" placeholder:"N" help:"Streams per node."`
	MaxConnectionsPerClient int      `env:"OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT" default:"100" placeholder:"N" help:"Streams per key, or address without keys, and node."`
	AllowQueryToken         bool     `env:"OJS_REALTIME_ALLOW_QUERY_TOKEN" help:"Accept access_token=KEY on streams: browsers cannot set headers there."`
	AllowedOrigins          []string `env:"OJS_REALTIME_ALLOWED_ORIGINS" placeholder:"ORIGIN,…" help:"Origins besides the server's own from which browsers may open a WebSocket."`
	StatsInterval           span     `env:"OJS_REALTIME_STATS_INTERVAL" default:"2s" placeholder:"DURATION" help:"Pause between two overviews of the stats stream."`
}

func (s realtimeSettings) config() api.Realtime {
	r := api.Realtime{
		BufferSize: s.BufferSize, DropOldest: s.Overflow == "drop", RateLimit: s.RateLimitPerSecond,
		MaxConnections: s.MaxConnections, MaxPerClient: s.MaxConnectionsPerClient,
		QueryToken: s.AllowQueryToken, AllowedOrigins: s.AllowedOrigins, StatsInterval: time.Duration(s.StatsInterval),
	}
	if r.RateLimit == 0 {
		r.RateLimit = -1
	}
	return r
}

// grpcSettings has no address: it depends on the command, like that of HTTP.
type grpcSettings struct {
	Enabled           bool   `env:"OJS_GRPC_ENABLED" default:"true" negatable:"" help:"The gRPC interface."`
	Reflection        bool   `env:"OJS_GRPC_REFLECTION" default:"true" negatable:"" help:"Tools such as grpcurl may ask for the description of the services."`
	TLSCert           string `name:"tls-cert" env:"OJS_GRPC_TLS_CERT" placeholder:"FILE" help:"Certificate of the gRPC interface, in PEM; with it, TLS only."`
	TLSKey            string `name:"tls-key" env:"OJS_GRPC_TLS_KEY" placeholder:"FILE" help:"Private key of that certificate, in PEM."`
	ClientCA          string `name:"client-ca" env:"OJS_GRPC_CLIENT_CA" placeholder:"FILE" help:"Clients must show a certificate signed by one of these, in PEM."`
	StateConflictCode string `env:"OJS_GRPC_STATE_CONFLICT_CODE" enum:"failed_precondition,already_exists" default:"failed_precondition" placeholder:"CODE" help:"Status of a conflict of states, failed_precondition or already_exists, which the conformance runner expects."`
}

func (s grpcSettings) config(listen string) app.GRPC {
	return app.GRPC{
		Disabled: !s.Enabled, Listen: listen, NoReflection: !s.Reflection, TLSCert: s.TLSCert, TLSKey: s.TLSKey, ClientCA: s.ClientCA,
		ConflictExists: s.StateConflictCode == "already_exists",
	}
}

type eventSettings struct {
	ServiceName             string `env:"OJS_EVENTS_SERVICE_NAME" default:"ojs" placeholder:"NAME" help:"{service} in the source ojs://{service}/… of events."`
	CompatMembers           bool   `env:"OJS_EVENTS_COMPAT_MEMBERS" default:"true" negatable:"" help:"Flat members beside the event envelope in polling."`
	MaxDataBytes            int    `env:"OJS_EVENTS_MAX_DATA_BYTES" default:"24576" placeholder:"BYTES" help:"Largest payload of an event; more is cut and marked. At least 4096."`
	PollFallback            span   `env:"OJS_EVENTS_POLL_FALLBACK" default:"500ms" placeholder:"DURATION" help:"How often the log is read while LISTEN is impossible."`
	RetentionPeriod         span   `env:"OJS_EVENTS_RETENTION_PERIOD" default:"168h" placeholder:"DURATION" help:"How long events are kept; negative: no limit."`
	MaxCount                int64  `env:"OJS_EVENTS_MAX_COUNT" default:"1000000" placeholder:"N" help:"How many events are kept at least before the oldest go; negative: no limit."`
	PruneInterval           span   `env:"OJS_EVENTS_PRUNE_INTERVAL" default:"60s" placeholder:"DURATION" help:"How often retention is looked at while events come."`
	WorkerHeartbeat         string `env:"OJS_EVENTS_WORKER_HEARTBEAT" enum:"all,off" default:"all" placeholder:"all|off" help:"worker.heartbeat events: one per heartbeat call, or none."`
	JobHeartbeatMinInterval span   `env:"OJS_EVENTS_JOB_HEARTBEAT_MIN_INTERVAL" default:"0" placeholder:"DURATION" help:"Least time between two job.heartbeat events of one run; 0: one per extension."`
	SourceInstance          bool   `env:"OJS_EVENTS_SOURCE_INSTANCE" help:"Sources of events name the node: ojs://{service}/api/{node}."`
	EnqueuedOnRequeue       bool   `env:"OJS_EVENTS_ENQUEUED_ON_REQUEUE" help:"job.enqueued also when a job becomes available again: handed back, lost or retried."`
}

// config is the part of app.Config that the settings decide.
func (s settings) config(log *slog.Logger) app.Config {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return app.Config{
		DatabaseListenURL: s.DatabaseListenURL, DatabaseMaxConns: s.DatabaseMaxConns, DatabasePooler: s.DatabasePooler,
		Version: currentVersion(), Logger: log,
		APIKeys: s.APIKey, PublicURL: s.PublicURL, CORSOrigins: s.CORSOrigins,
		Limits:        job.Limits{MaxEnvelopeBytes: s.MaxEnvelopeBytes, MaxResultBytes: s.ResultMaxBytes},
		MaxBatchBytes: s.MaxBatchBytes, MaxBatchSize: s.MaxBatchSize,

		DefaultVisibility: ms(s.DefaultVisibilityTimeoutMS), DefaultTimeout: ms(s.DefaultTimeoutMS), CronVisibility: ms(s.CronVisibilityTimeoutMS),
		WorkerDeadAfter: ms(s.WorkerDeadAfterMS), ResultTTL: resultTTL(s.ResultTTL),
		MaxErrorHistory: s.MaxErrorHistory, ShutdownTimeout: ms(s.ShutdownTimeoutMS),
		Retention: app.Retention{
			Completed: s.RetentionCompleted.limit(), Cancelled: s.RetentionCancelled.limit(), Discarded: s.RetentionDiscarded.limit(),
			DeadLetterMaxAge: s.DeadLetterMaxAge.limit(), DeadLetterMaxCount: s.DeadLetterMaxCount, PruneInterval: ms(s.PruneIntervalMS),
		},
		NoPythonQuirk: !s.CompatPythonSDK, NoV1Prefix: !s.CompatV1Prefix, NoCompatMembers: !s.Events.CompatMembers, TestReset: s.EnableTestReset, TestDirectives: s.TestDirectives,
		Realtime: s.Realtime.config(), Tracing: s.Tracing.config(), Webhooks: s.Webhooks.config(), Metrics: s.Metrics.config(),
		Events: app.Events{
			ServiceName: s.Events.ServiceName, MaxDataBytes: s.Events.MaxDataBytes, PollFallback: time.Duration(s.Events.PollFallback),
			RetentionPeriod: time.Duration(s.Events.RetentionPeriod), MaxCount: s.Events.MaxCount,
			PruneInterval: time.Duration(s.Events.PruneInterval), NoWorkerHeartbeat: s.Events.WorkerHeartbeat == "off",
			JobHeartbeatInterval: time.Duration(s.Events.JobHeartbeatMinInterval), SourceInstance: s.Events.SourceInstance, EnqueuedOnRequeue: s.Events.EnqueuedOnRequeue,
		},
	}
}

// resultTTL of 0 s is the shortest there is, because a zero field of app.Config stands for its default.
func resultTTL(seconds int64) time.Duration {
	const most = 36_500*24*3600 + 1 // one more than is allowed: no overflow, and refused
	switch {
	case seconds < 0:
		return -1
	case seconds == 0:
		return 1
	}
	return time.Duration(min(seconds, most)) * time.Second
}
