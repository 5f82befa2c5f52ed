// Package config owns the settings of a server. The struct tags of Config are the table of all settings: flags, environment
// variables, defaults, checks, `ojsd config` and docs/reference/configuration.md are made from it. It must never read the
// environment itself, and never show a secret.
package config

import (
	"cmp"
	"net/netip"
	"net/url"
	"time"
)

// Config has every setting of a server, as Load has read and checked it. The sentence in `help` defines the meaning of a value, zero
// included: parts of a node take it as it stands. It goes to the parts of a node as it is, or the area that a part needs; tests change what
// Default returns.
//
// The tags of a setting:
//
//	env      the variable; the flag has the same words without OJS_: OJS_JOBS_TIMEOUT, --jobs-timeout
//	default  the default, as a user would write it; dev: the default of `ojsd dev`, if it differs
//	range    the smallest and largest value
//	values   the valid values of a text; of an address, the words that are valid too
//	pattern  a regular expression that a text must match
//	kind     the kind of a text: postgres, address or file
//	schemes  the schemes that a URL may have
//	secret   `ojsd config` and the log never show the value
//	help     one sentence about the effect
//
// Every field of an area with the tag env is a setting. Add a setting here and run `ojsd config --format markdown`; nothing else is needed
// for flag, variable and documentation. A field without env is a fixed value: it has its default, which only tests change.
type Config struct {
	Database   Database   `area:"Database"`
	Server     Server     `area:"Server"`
	Jobs       Jobs       `area:"Jobs"`
	Queues     Queues     `area:"Queues"`
	Workflows  Workflows  `area:"Workflows"`
	Workers    Workers    `area:"Workers"`
	Retention  Retention  `area:"Retention"`
	DeadLetter DeadLetter `area:"Dead letters"`
	Events     Events     `area:"Events"`
	Realtime   Realtime   `area:"Event streams"`
	GRPC       GRPC       `area:"gRPC"`
	Webhooks   Webhooks   `area:"Webhooks"`
	Metrics    Metrics    `area:"Metrics"`
	Logging    Logging    `area:"Logging"`
	Tests      Tests      `area:"Tests"`
}

// Database says where the jobs are.
// ListenURL also decides that statements are not prepared by name, because it is set only where a pooler is between.
type Database struct {
	URL       string `env:"DATABASE_URL" kind:"postgres" help:"The database, as postgres://user:password@host/name."`
	ListenURL string `env:"DATABASE_LISTEN_URL" kind:"postgres" help:"Where LISTEN is issued, if DATABASE_URL leads to a pooler such as pgbouncer: statements are not prepared by name then; empty: DATABASE_URL leads to the server."`
	MaxConns  int    `env:"OJS_DATABASE_MAX_CONNS" default:"16" range:"4..10000" help:"The most connections of a node, besides one for LISTEN and one for health checks."`
	Migrate   bool   `env:"OJS_MIGRATE" default:"false" dev:"true" help:"Bring the schema up to date before serving; any number of nodes may do so at once."`

	Copy bool `env:"OJS_COPY" default:"false" help:"The database is a copy of another one, for tests or analysis: before a node runs on it for the first time, all its crons are paused and all its webhooks deactivated."`

	// StatementTimeout bounds every statement, waiting for a connection included. Clients know it as the time after which they get
	// 504 (docs/reference/errors.md, Catalogue).
	StatementTimeout time.Duration `default:"15s"`
}

// Listener is where LISTEN is issued: past a transaction-mode pooler, if there is one.
func (d Database) Listener() string { return cmp.Or(d.ListenURL, d.URL) }

// Pooler says that URL leads to a transaction-mode pooler: whoever sets a URL to listen on has one.
func (d Database) Pooler() bool { return d.ListenURL != "" }

// Server is about the process and its HTTP interface.
// All keys may do everything; several of them tell producers apart, and let a key change without an outage.
type Server struct {
	Listen          string        `env:"OJS_LISTEN" default:":8080" dev:"127.0.0.1:8080" kind:"address" help:"Address of the HTTP interface."`
	PublicURL       *url.URL      `env:"OJS_PUBLIC_URL" help:"Base of the URLs in the manifest, such as https://jobs.example.com; empty: taken from each request."`
	APIKeys         []string      `env:"OJS_API_KEY" secret:"true" help:"Keys that clients may show as bearer tokens, separated by commas; empty: the API is open."`
	TLSCert         string        `env:"OJS_TLS_CERT" kind:"file" help:"Certificate of the HTTP and the gRPC interface, in PEM, with those between it and its authority; with it, clients must use TLS. Changed files are read again."`
	TLSKey          string        `env:"OJS_TLS_KEY" kind:"file" help:"Private key of that certificate, in PEM."`
	ClientCA        string        `env:"OJS_TLS_CLIENT_CA" kind:"file" help:"Certificates in PEM; clients must show one that is signed by one of these, for all but health checks over HTTP; empty: clients need none."`
	HTTP2Cleartext  bool          `env:"OJS_HTTP2_CLEARTEXT" default:"false" help:"Take HTTP/2 without TLS, for proxies that speak it (h2c); with TLS, HTTP/2 is always there."`
	AllowAll        bool          `env:"OJS_ALLOW_UNAUTHENTICATED" default:"false" help:"Without API keys, let everybody who reaches the server do everything: it may listen beyond loopback then, and answers under any host name."`
	Tenancy         string        `env:"OJS_TENANCY" default:"optional" values:"off|optional|required" help:"Whether calls name their tenant in the header X-OJS-Tenant: the header is ignored (off), calls without it are those of operators (optional), or these must not enqueue (required)."`
	CORSOrigins     []string      `env:"OJS_CORS_ORIGINS" help:"Origins from which browsers may call the API and open WebSockets, separated by commas; * for all, without API keys only; empty: none but the server's own."`
	ShutdownDelay   time.Duration `env:"OJS_SHUTDOWN_DELAY" default:"0" range:"0..7d" help:"How long a node serves on after SIGTERM while /readyz answers 503, so that load balancers notice; 0: not at all."`
	ShutdownTimeout time.Duration `env:"OJS_SHUTDOWN_TIMEOUT" default:"30s" range:"1ms..7d" help:"How long requests may take to end after SIGTERM, before they are cut off."`

	// What clients hold open costs memory and file descriptors.
	MaxConnections    int `env:"OJS_MAX_CONNECTIONS" default:"20000" range:"10..1000000" help:"The most connections of HTTP, and of gRPC; a further one waits until another ends."`
	MaxWaitingFetches int `env:"OJS_MAX_WAITING_FETCHES" default:"10000" range:"0..1000000" help:"The most fetches that wait for jobs on a node; a further one is answered at once, as without a wait; 0: none waits."`

	// MaxBatchBytes bounds the body of a batch call after decompression, MaxBatchSize its items (docs/reference/jobs.md, Limits).
	// MaxBatchSize also bounds the jobs that a call with a filter takes.
	MaxBatchBytes Size `default:"32MiB"`
	MaxBatchSize  int  `default:"10000"`
}

// Jobs are the defaults and limits of jobs. A job is reserved for VisibilityTimeout at a time, which heartbeats renew; Timeout bounds the
// whole attempt. A job keeps the reservation that its claim has chosen. The timeout is not stored with a job that sets none: every
// statement that computes the end of an active job, and every failure, takes the setting of the node that runs it, so nodes with different
// settings move the end of a run.
type Jobs struct {
	VisibilityTimeout time.Duration `env:"OJS_JOBS_VISIBILITY_TIMEOUT" default:"30s" range:"1ms..36500d" help:"How long a fetched job is reserved, if neither the fetch nor the job says so."`
	Timeout           time.Duration `env:"OJS_JOBS_TIMEOUT" default:"30m" range:"1ms..36500d" help:"How long an attempt may run, if the job does not say so."`
	MaxJobBytes       Size          `env:"OJS_JOBS_MAX_SIZE" default:"1MiB" range:"1KiB..10MiB" help:"The largest job, and the largest result of a job, as JSON."`
	StrictQueues      bool          `env:"OJS_STRICT_QUEUES" default:"false" help:"Refuse jobs of queues that nobody has created, instead of creating the queue with its first job."`

	// DuePollInterval is how often a node looks for due times of other nodes while jobs move: the node that has scheduled a run may have
	// stopped.
	DuePollInterval time.Duration `default:"5s"`
}

// Queues is about bounded queues.
type Queues struct {
	FullRetryAfter time.Duration `env:"OJS_BACKPRESSURE_RETRY_AFTER" default:"5s" range:"1s..7d" help:"After which time producers are told to try again that a full queue has refused; whole seconds."`
}

// Workflows bounds the definitions of workflows.
type Workflows struct {
	MaxDepth int `env:"OJS_MAX_WORKFLOW_DEPTH" default:"5" range:"1..100" help:"How deep workflows may be nested, the outermost included."`
}

// Workers is about the processes that run jobs.
// Too small a DeadAfter fails the jobs of workers that are only slow to call; it should be several times their interval of
// heartbeats.
type Workers struct {
	DeadAfter time.Duration `env:"OJS_WORKERS_DEAD_AFTER" default:"60s" range:"1ms..36500d" help:"Silence after which a worker that has sent heartbeats is dead and its jobs go back to their queues."`
}

// Retention says how long ended jobs are kept. Zero: no limit.
// Queues may set times of their own.
type Retention struct {
	Completed time.Duration `env:"OJS_RETENTION_COMPLETED" default:"7d" range:"0..36500d" help:"How long completed and cancelled jobs are kept after the end of their day (UTC); 0: for ever."`
	Discarded time.Duration `env:"OJS_RETENTION_DISCARDED" default:"30d" range:"0..36500d" help:"How long discarded jobs are kept that are no dead letters; 0: for ever."`

	// PruneInterval is how often retention runs while jobs move.
	PruneInterval time.Duration `default:"1m"`
}

// DeadLetter bounds the dead letters; both limits apply. Zero: no limit.
// The older ones go first.
type DeadLetter struct {
	MaxAge   time.Duration `env:"OJS_DEAD_LETTER_MAX_AGE" default:"180d" range:"0..36500d" help:"How long dead letters are kept; 0: for ever."`
	MaxCount int64         `env:"OJS_DEAD_LETTER_MAX_COUNT" default:"10000" range:"0..1000000000" help:"How many dead letters are kept, the newest; 0: all."`
}

// Events is about the event log. Zero limits: none.
type Events struct {
	RetentionPeriod time.Duration `env:"OJS_EVENTS_RETENTION_PERIOD" default:"168h" range:"0..36500d" help:"How long events are kept; 0: until OJS_EVENTS_MAX_COUNT newer ones exist."`
	MaxCount        int64         `env:"OJS_EVENTS_MAX_COUNT" default:"1000000" range:"0..1000000000000" help:"How many events are kept, the newest; 0: all of the retention period."`
	ServiceName     string        `env:"OJS_EVENTS_SERVICE_NAME" default:"ojs" pattern:"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$" help:"Name of this deployment in the source of events, ojs://NAME/…, and in telemetry."`
	WorkerHeartbeat bool          `env:"OJS_EVENTS_WORKER_HEARTBEAT" default:"true" help:"Write an event worker.heartbeat for each heartbeat of a worker."`

	JobHeartbeatMinInterval time.Duration `env:"OJS_EVENTS_JOB_HEARTBEAT_MIN_INTERVAL" default:"0" range:"0..36500d" help:"The least time between two events job.heartbeat of one attempt, for large fleets; 0: one for each heartbeat that extends the job."`
	EnqueuedOnRequeue       bool          `env:"OJS_EVENTS_ENQUEUED_ON_REQUEUE" default:"false" help:"A job that becomes available again writes the public job.enqueued instead of job.state_changed."`
	Notify                  string        `env:"OJS_EVENTS_NOTIFY" default:"full" values:"full|envelope" help:"What a notification on ojs_events has, which every role that may connect to the database can listen to: the event (full), or the event without data (envelope). All nodes need the same value."`
	ExtensionTypes          bool          `env:"OJS_EVENTS_EXTENSION_TYPES" default:"false" help:"Write events of types that only extensions of the specification name, such as queue.created; without it they are only logged."`
}

// Realtime is about SSE, WebSocket and gRPC streams.
// The limits are per node, because nodes do not count together.
type Realtime struct {
	MaxConnectionsPerClient int    `env:"OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT" default:"100" range:"1..1000000" help:"The most event streams of one API key, or of one address if the API is open, on each node."`
	RateLimitPerSecond      int    `env:"OJS_REALTIME_RATE_LIMIT_PER_SECOND" default:"1000" range:"0..1000000" help:"The most frames per second of one stream; further ones are delayed; 0: no limit."`
	Overflow                string `env:"OJS_REALTIME_OVERFLOW" default:"catchup" values:"catchup|drop" help:"What a stream does whose client is too slow: read from the database what it has missed (catchup), or lose the oldest events (drop)."`
	AllowQueryToken         bool   `env:"OJS_REALTIME_ALLOW_QUERY_TOKEN" default:"false" help:"Accept an API key as ?access_token=KEY on streams, because browsers cannot set headers there."`

	// MaxConnections bounds the streams of a node, and with them its goroutines and buffers: more need more nodes.
	MaxConnections int `default:"10000"`

	// BufferSize is how many events may wait for a slow client that would rather lose some.
	BufferSize int `default:"1000"`

	// StatsInterval is the pause between two overviews of the stats stream.
	StatsInterval time.Duration `default:"2s"`

	// KeepAlive is the silence after which an SSE stream gets a comment, so that a proxy sees that it is alive.
	KeepAlive time.Duration `default:"15s"`

	// WriteTimeout is how long one write to a client may take; a client that is slower loses its stream.
	WriteTimeout time.Duration `default:"10s"`
}

// DropOldest makes a slow client lose events and go on live. Otherwise it reads what it missed from the table.
func (r Realtime) DropOldest() bool { return r.Overflow == "drop" }

// GRPC is about the gRPC interface.
type GRPC struct {
	Listen   string `env:"OJS_GRPC_LISTEN" default:":9090" dev:"127.0.0.1:9090" kind:"address" values:"off" help:"Address of the gRPC interface; off: none."`
	TLSCert  string `env:"OJS_GRPC_TLS_CERT" kind:"file" help:"Another certificate for the gRPC interface than OJS_TLS_CERT, in PEM."`
	TLSKey   string `env:"OJS_GRPC_TLS_KEY" kind:"file" help:"Private key of that certificate, in PEM."`
	ClientCA string `env:"OJS_GRPC_CLIENT_CA" kind:"file" help:"The same as OJS_TLS_CLIENT_CA, for the certificate of the gRPC interface."`

	// KeepAlive is after how long without events StreamEvents says so.
	KeepAlive time.Duration `default:"30s"`

	// Reconcile is how often StreamJobs asks the database about the jobs of a stream, in case an event was missed.
	Reconcile time.Duration `default:"30s"`
}

// TLS are the files of an interface; all are empty without TLS.
type TLS struct{ Cert, Key, ClientCA string }

// TLS are the files of the HTTP interface.
func (s Server) TLS() TLS { return TLS{s.TLSCert, s.TLSKey, s.ClientCA} }

// GRPCTLS are the files of the gRPC interface: its own, or those of HTTP.
func (c Config) GRPCTLS() TLS {
	if c.GRPC.TLSCert != "" {
		return TLS{c.GRPC.TLSCert, c.GRPC.TLSKey, c.GRPC.ClientCA}
	}
	return c.Server.TLS()
}

// Enabled says that there is a gRPC interface.
func (g GRPC) Enabled() bool { return g.Listen != "off" }

// Webhooks is about subscriptions and deliveries.
// Enabled may differ between nodes, to let only some of them send; the rest should be equal on all.
type Webhooks struct {
	Enabled          bool            `env:"OJS_WEBHOOKS_ENABLED" default:"true" help:"Serve webhook subscriptions and send deliveries on this node."`
	AllowHTTP        bool            `env:"OJS_WEBHOOKS_ALLOW_HTTP" default:"false" help:"Accept http URLs besides https; for development only."`
	AllowNetworks    Destinations    `env:"OJS_WEBHOOKS_ALLOW_NETWORKS" help:"Private networks and private host names that webhooks may be sent to, such as 10.0.0.0/8,hooks.internal; empty: none."`
	CAFile           string          `env:"OJS_WEBHOOKS_CA_FILE" kind:"file" help:"Certificates in PEM that endpoints may be signed by, besides the system's."`
	ProxyURL         *url.URL        `env:"OJS_WEBHOOKS_PROXY_URL" schemes:"http|https|socks5" help:"Proxy for all webhook requests; empty: none, whatever HTTPS_PROXY says."`
	EncryptionKeys   []Key           `env:"OJS_WEBHOOKS_ENCRYPTION_KEY" secret:"true" help:"Key that seals webhook secrets in the database, 32 bytes in base64; NEW,OLD while it changes; empty: secrets are stored as they are."`
	RetrySchedule    []time.Duration `env:"OJS_WEBHOOKS_RETRY_SCHEDULE" default:"1m,5m,30m,2h,8h,16h,24h" range:"0..36500d" help:"Pauses before the second, third, … attempt, separated by commas; after the last attempt a delivery is given up."`
	MaxSubscriptions int             `env:"OJS_WEBHOOKS_MAX_SUBSCRIPTIONS" default:"100" range:"1..100000" help:"The most subscriptions."`

	// RetryJitter is the most that is added to a pause, in percent of it (docs/reference/webhooks.md, Retry table). It spreads the retries
	// of deliveries that failed at the same time.
	RetryJitter int `default:"10"`

	// Workers is how many requests of a node run at a time, each of which takes a goroutine, a connection and up to 64 KiB of a response.
	Workers int `default:"100"`
}

// Metrics is about GET /metrics. The variables of OpenTelemetry (OTEL_…) say where metrics and traces are pushed.
type Metrics struct {
	RequireAuth bool `env:"OJS_METRICS_REQUIRE_AUTH" default:"false" help:"GET /metrics needs an API key like every other route, if there are any."`

	// GaugeInterval is how often figures of the whole deployment are read at most: Prometheus scrapes less often.
	GaugeInterval time.Duration `default:"10s"`

	Compat bool `env:"OJS_METRICS_COMPAT" default:"false" help:"Show the figures of jobs again under the names of the observability extension, ojs_job_…."`

	// The bounds are those of an answer: a queue has about 700 bytes, a pair of job type and queue 3 KB.
	Queues    []string `env:"OJS_METRICS_QUEUES" help:"Queues that have series of their own whatever the others do, separated by commas."`
	MaxQueues int      `env:"OJS_METRICS_MAX_QUEUES" default:"50" range:"1..10000" help:"How many queues have series of their own, those of OJS_METRICS_QUEUES and then those with the most jobs; the others share __other__."`
	MaxPairs  int      `env:"OJS_METRICS_MAX_PAIRS" default:"200" range:"1..100000" help:"How many pairs of job type and queue have series of their own; beyond, the job type is __other__."`

	// MaxLabelValues is how many job types and other values of clients have their own series; the others share __other__. It limits
	// the series that a client can create with ever new job types.
	MaxLabelValues int `default:"1000"`
}

// Logging is about the log on stderr.
type Logging struct {
	Level  string `env:"OJS_LOGGING_LEVEL" default:"info" values:"debug|info|warn|error" help:"Lines below this level are left out."`
	Format string `env:"OJS_LOGGING_FORMAT" default:"json" dev:"text" values:"json|text" help:"Form of the lines: json for machines, text for people."`
}

// Tests are switches for test environments.
// Both are dangerous on a server that anybody else can reach.
type Tests struct {
	EnableReset bool `env:"OJS_ENABLE_TEST_RESET" default:"false" help:"Serve POST /ojs/v1/admin/reset, which deletes everything; for tests only."`
	Directives  bool `env:"OJS_TEST_DIRECTIVES" default:"false" help:"meta.test_directive of a job decides which directive its worker gets; for tests only: any producer can quiet a worker."`
}

// Size is a number of bytes.
type Size int64

// Key is a key of 32 bytes. Its String does not contain it.
type Key []byte

// String keeps the key out of messages.
func (Key) String() string { return "…" }

// Destinations are networks and host names.
type Destinations struct {
	Networks []netip.Prefix
	Hosts    []string
}
