package server

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/node"
	"github.com/ojsd/ojsd/internal/sweep"
)

// Config is everything a server can be told. The zero value of a field means its default.
type Config struct {
	// DatabaseURL is the Postgres to run against. Required.
	DatabaseURL string

	// DatabaseListenURL is where LISTEN is issued, e.g. past a transaction-mode pooler. Default: DatabaseURL.
	DatabaseListenURL string

	// DatabaseMaxConns bounds the connection pool. 16.
	DatabaseMaxConns int32

	// DatabasePooler says that DatabaseURL leads to a transaction-mode pooler: statements are not prepared by name.
	DatabasePooler bool

	// Listen is the address of the HTTP interface. ":8080".
	Listen string

	// Migrate brings the schema up to date before serving.
	Migrate bool

	// Version is shown in the manifest and by health.
	Version string

	// Logger gets everything the server has to say. slog.Default().
	Logger *slog.Logger

	// APIKeys are the accepted bearer tokens. Empty: the API is open.
	APIKeys []string

	// PublicURL is the base of the manifest's base_url. Empty: taken from each request.
	PublicURL string

	// CORSOrigins are the origins browsers may call from. Empty: none.
	CORSOrigins []string

	// Limits of requests; zero fields mean 1 MiB per job, 64 KiB of meta, 1 MiB of result.
	Limits envelope.Limits

	// MaxBatchBytes bounds the body of batch calls. 33 554 432.
	MaxBatchBytes int

	// MaxBatchSize is the most items of a batch call. 10 000, at least 1 000.
	MaxBatchSize int

	// DefaultVisibility and DefaultTimeout serve jobs that set none. 30 s and 30 min.
	DefaultVisibility time.Duration
	DefaultTimeout    time.Duration

	// WorkerDeadAfter is the silence after which a worker that has registered or sent heartbeats is dead. 60 s.
	WorkerDeadAfter time.Duration

	// CronVisibility is the reservation of jobs made by crons whose template sets none. 10 min.
	CronVisibility time.Duration

	// MaxErrorHistory is the number of failures kept per job. 50.
	MaxErrorHistory int

	// ResultTTL is how long the result of a job that sets no result_ttl is shown, in whole seconds. 7 days; below one
	// second it is not kept at all; negative: it is kept as long as the job.
	ResultTTL time.Duration

	// Retention says how long jobs that have ended are kept.
	Retention Retention

	// NoPythonQuirk, NoV1Prefix and NoCompatMembers switch off what some clients need (contract 10 §16, 50 A7, 40 §1.3).
	NoPythonQuirk   bool
	NoV1Prefix      bool
	NoCompatMembers bool

	// TestReset adds POST /ojs/v1/admin/reset, which deletes everything.
	TestReset bool

	// TestDirectives honours meta.test_directive of jobs, with which any producer can quiet a worker.
	TestDirectives bool

	// Events are the settings of the event log.
	Events Events

	// Metrics are the settings of metrics.
	Metrics Metrics

	// Realtime are the settings of event streams; its zero fields mean their defaults.
	Realtime node.Realtime

	// GRPC are the settings of the gRPC interface.
	GRPC GRPC

	// Webhooks are the settings of webhooks.
	Webhooks Webhooks

	// LogSample is the share of log lines about ordinary success that are written, ends of jobs excepted. 1; negative: none.
	LogSample float64

	// LogMeta and LogPayloads show in the log jobs' meta, but for members that sound like secrets, and args and results.
	LogMeta     bool
	LogPayloads bool

	// Tracing are the settings of traces.
	Tracing Tracing

	// TracerProvider makes the spans. nil: one that follows the OTEL_* variables, which without an endpoint makes none.
	TracerProvider trace.TracerProvider

	// ShutdownTimeout bounds how long requests may take to end after a stop. 30 s.
	ShutdownTimeout time.Duration

	// OnStarted is called by Run when the node answers, with its addresses; grpcAddress is empty without gRPC. nil: nobody.
	OnStarted func(address, grpcAddress string)
}

// Tracing are the settings of contract 40 §12, §15. The zero value of a field means its default.
type Tracing struct {
	// NoExecuteSpans leaves out ojs.execute, one span per attempt.
	NoExecuteSpans bool

	// NoInjectMeta leaves the meta of jobs alone, whatever trace their request is part of.
	NoInjectMeta bool

	// MaxParentDelay is the wait of a job beyond which its execution begins a trace of its own. 1 h; negative: always.
	MaxParentDelay time.Duration
}

// GRPC are the settings of the gRPC interface (contract 40 §15).
type GRPC struct {
	// Disabled opens no port.
	Disabled bool

	// Listen is its address. ":9090".
	Listen string

	// NoReflection hides the description of the services from tools such as grpcurl.
	NoReflection bool

	// TLSCert and TLSKey are files in PEM; both or none. With ClientCA clients must show a certificate signed by it.
	TLSCert, TLSKey, ClientCA string

	// ConflictExists answers conflicts of states with ALREADY_EXISTS in place of FAILED_PRECONDITION.
	ConflictExists bool
}

// check refuses what would leave the interface less protected than somebody thinks.
func (g GRPC) check() error {
	switch {
	case (g.TLSCert == "") != (g.TLSKey == ""):
		return errors.New("grpc tls cert and grpc tls key belong together: set both or none")
	case g.ClientCA != "" && g.TLSCert == "":
		return errors.New("grpc client ca needs a grpc tls cert and key")
	}
	return nil
}

// Retention are the settings of contract 20 §8.4. The zero value of a field means its default; a negative one: no limit.
type Retention struct {
	// Completed and Cancelled count from the end of the job's day (UTC). 7 days each.
	Completed, Cancelled time.Duration

	// Discarded is for discarded jobs that are no dead letters. 30 days.
	Discarded time.Duration

	// DeadLetterMaxAge and DeadLetterMaxCount bound the dead letters; both apply. 180 days and 10 000.
	DeadLetterMaxAge   time.Duration
	DeadLetterMaxCount int64

	// PruneInterval is how often retention is looked at while jobs move. 60 s.
	PruneInterval time.Duration
}

func (r Retention) pruner() sweep.PrunerConfig {
	return sweep.PrunerConfig{
		Interval: r.PruneInterval, DeadLetterMaxAge: r.DeadLetterMaxAge, DeadLetterMaxCount: r.DeadLetterMaxCount,
		Discarded: r.Discarded, Completed: r.Completed, Cancelled: r.Cancelled,
	}.WithDefaults()
}

// Metrics are the settings of contract 40 §11.
type Metrics struct {
	// RequireAuth makes /metrics need a key, if there are any.
	RequireAuth bool

	// NoCompat leaves out the ojs_job_… series of the observability extension.
	NoCompat bool

	// GaugeInterval is how often figures of the whole deployment are read at most. 10 s.
	GaugeInterval time.Duration

	// MaxLabelValues is how many job types and how many queues have series of their own. 1 000.
	MaxLabelValues int

	// Protocol is how metrics are pushed over OTLP: grpc or http/protobuf; the rest is in the OTEL_ variables, which the
	// exporter reads by itself. Empty: they are not pushed.
	Protocol string
}

// Events are the settings of the event log (contract 40 §15).
type Events struct {
	// ServiceName stands in every event's source, ojs://{service}/…. "ojs".
	ServiceName string

	// MaxDataBytes caps the payload of an event. 24 576.
	MaxDataBytes int

	// PollFallback is how often the log is read while LISTEN is impossible. 500 ms.
	PollFallback time.Duration

	// RetentionPeriod and MaxCount bound what is kept; whole partitions go, so a little more may stay. 168 h and
	// 1 000 000; negative: no limit.
	RetentionPeriod time.Duration
	MaxCount        int64

	// PruneInterval is how often retention is looked at. 60 s.
	PruneInterval time.Duration

	// SourceInstance adds this node's mark to the sources api, scheduler and cron of events.
	SourceInstance bool

	// EnqueuedOnRequeue makes the events of jobs that become available again public job.enqueued (contract 40 §3.5).
	EnqueuedOnRequeue bool

	// JobHeartbeatInterval is the least time between two job.heartbeat events of a run. 0: one per extension.
	JobHeartbeatInterval time.Duration

	// NoWorkerHeartbeat leaves out worker.heartbeat, one event per heartbeat call.
	NoWorkerHeartbeat bool
}

var serviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// maxConfigured is the largest value of any duration setting: 36 500 days.
const maxConfigured = 36_500 * 24 * time.Hour

// validate fills in defaults and refuses what cannot work.
func (c Config) validate() (Config, error) {
	if c.DatabaseURL == "" {
		return c, errors.New("no database: set DATABASE_URL or --database-url, e.g. postgres://user:password@host/name; `ojsd dev` brings its own")
	}
	setDefault(&c.DatabaseListenURL, c.DatabaseURL)
	setDefault(&c.DatabaseMaxConns, 16)
	setDefault(&c.Listen, ":8080")
	setDefault(&c.GRPC.Listen, ":9090")
	setDefault(&c.Version, "dev")
	setDefault(&c.DefaultVisibility, 30*time.Second)
	setDefault(&c.DefaultTimeout, 30*time.Minute)
	setDefault(&c.ResultTTL, 7*24*time.Hour)
	setDefault(&c.WorkerDeadAfter, time.Minute)
	setDefault(&c.Retention.PruneInterval, time.Minute)
	setDefault(&c.CronVisibility, 10*time.Minute)
	setDefault(&c.ShutdownTimeout, 30*time.Second)
	setDefault(&c.Events.ServiceName, "ojs")
	setDefault(&c.Events.MaxDataBytes, 24_576)
	setDefault(&c.Events.PollFallback, 500*time.Millisecond)
	setDefault(&c.Events.RetentionPeriod, 168*time.Hour)
	setDefault(&c.Events.MaxCount, 1_000_000)
	setDefault(&c.Events.PruneInterval, time.Minute)
	setDefault(&c.Metrics.GaugeInterval, 10*time.Second)
	setDefault(&c.Metrics.MaxLabelValues, 1000)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case !serviceName.MatchString(c.Events.ServiceName):
		return c, fmt.Errorf("events service name %q must match %s", c.Events.ServiceName, serviceName)
	case c.Events.JobHeartbeatInterval < 0 || c.Events.JobHeartbeatInterval > maxConfigured:
		return c, fmt.Errorf("events job heartbeat min interval must be at most 36500 days, got %s", c.Events.JobHeartbeatInterval)
	case c.Events.MaxDataBytes < 4096:
		return c, fmt.Errorf("events max data bytes must be at least 4096, got %d", c.Events.MaxDataBytes)
	case c.Limits.MaxEnvelopeBytes > 10_485_760:
		return c, fmt.Errorf("max envelope bytes must be at most 10485760, got %d", c.Limits.MaxEnvelopeBytes)
	case c.Limits.MaxResultBytes < 0 || c.Limits.MaxResultBytes > 33_554_432:
		return c, fmt.Errorf("max result bytes must be at most 33554432, got %d", c.Limits.MaxResultBytes)
	case c.ResultTTL > maxConfigured:
		return c, fmt.Errorf("result ttl must be at most 36500 days, got %s", c.ResultTTL)
	case c.MaxBatchSize != 0 && c.MaxBatchSize < 1000:
		return c, fmt.Errorf("max batch size must be at least 1000, got %d", c.MaxBatchSize)
	case slices.Contains(c.APIKeys, ""):
		return c, errors.New("an api key is empty: leave the setting out for an open server")
	case slices.Contains(c.CORSOrigins, "*") && len(c.APIKeys) > 0:
		return c, errors.New("cors origin * does not go together with api keys: list the origins")
	case c.Realtime.BufferSize < 0, c.Realtime.MaxConnections < 0, c.Realtime.MaxPerClient < 0:
		return c, errors.New("realtime buffer size and connection limits must be at least 1")
	case c.Realtime.StatsInterval < 0 || c.Realtime.StatsInterval > maxConfigured:
		return c, fmt.Errorf("realtime stats interval must be between 1 ms and 36500 days, got %s", c.Realtime.StatsInterval)
	case c.Metrics.MaxLabelValues < 1 || c.Metrics.MaxLabelValues > 100_000:
		return c, fmt.Errorf("metrics max label values must be between 1 and 100000, got %d", c.Metrics.MaxLabelValues)
	case c.DatabaseMaxConns < 4:
		return c, fmt.Errorf("database max conns must be at least 4, got %d", c.DatabaseMaxConns)
	}
	if err := errors.Join(c.Webhooks.validate(), c.GRPC.check()); err != nil {
		return c, err
	}
	for name, d := range map[string]time.Duration{
		"default visibility timeout": c.DefaultVisibility, "default timeout": c.DefaultTimeout, "cron visibility timeout": c.CronVisibility, "worker dead after": c.WorkerDeadAfter, "shutdown timeout": c.ShutdownTimeout,
		"events poll fallback": c.Events.PollFallback, "events prune interval": c.Events.PruneInterval, "prune interval": c.Retention.PruneInterval,
		"metrics gauge interval": c.Metrics.GaugeInterval,
	} {
		if d <= 0 || d > maxConfigured {
			return c, fmt.Errorf("%s must be between 1 ms and 36500 days, got %s", name, d)
		}
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
