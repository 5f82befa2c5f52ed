// Package metrics owns the counters of this node and the gauges of the whole deployment, for Prometheus and OTLP
// (docs/reference/observability.md, Metrics). Both read the same counters.
//
// Counting must never query the database, wait, or allocate for a known combination of labels: it takes 0.3 µs per job, where
// OpenTelemetry's own instruments take 3 µs (BenchmarkJob). Gauges are read on request, at most once per interval for all
// readers together.
package metrics

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	prombridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// Deps are the parts of a node that metrics use, and what describes it.
type Deps struct {
	// Version and the service name of events describe this process over OTLP, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES do.
	Version string

	// Protocol is how metrics are pushed: grpc or http/protobuf. The exporter reads the endpoint and all else from the OTEL_
	// variables of the process. "": metrics are not pushed.
	Protocol string

	// Logger logs metrics that cannot be read or pushed. slog.Default().
	Logger *slog.Logger

	// Sources is called once, at the first read or push: the parts that supply figures are built after the counters, because they count
	// themselves. nil: there are none.
	Sources func() Sources
}

// Sources supply the figures that Metrics does not count. A nil source has no series.
type Sources struct {
	// Node is the number of this process, for service.instance.id.
	Node int32

	// Database reads the figures of the whole deployment.
	Database *Database

	// Pool is the connection pool of this node.
	Pool *pgxpool.Pool

	// Reconnects is how often the listener has connected again.
	Reconnects func() int64

	// Streams are the stream counters of this node, by transport. The counters are read on each request; the map itself must
	// not change any more.
	Streams map[string]*eventlog.StreamCounter

	// Components reports the state of this node's services by name, as health does.
	Components func() map[string]string

	// CertificateExpires is when the certificate of each interface with TLS ends.
	CertificateExpires func() map[string]time.Time

	// QueueLimits are the bound of a queue by depth, 0 for none, and whether it has a rate or concurrency limit.
	QueueLimits func(queue string) (maxDepth int64, limited bool)

	// Webhooks counts the subscriptions, and the deliveries that are not finished.
	Webhooks func(ctx context.Context) (subscriptions, pending int64, err error)
}

// Metrics are the metrics of one node. Use New. Counters are kept for the life of the process and begin with 0; a restart is
// seen by the start time that OTLP shows.
type Metrics struct {
	config  config.Config
	deps    Deps
	sources func() Sources
	start   time.Time

	jobs       *vec[jobKey, jobCounters]
	published  *vec[string, atomic.Int64]
	bounded    *vec[string, backpressure]
	limited    *vec[string, atomic.Int64]
	requests   *vec[requestKey, histogram]
	rpcs       *vec[rpcKey, histogram]
	batches    *vec[string, batchCounters]
	bulks      *vec[string, bulkCounters]
	attempts   *vec[attemptKey, atomic.Int64]
	deliveries *vec[deliveryKey, deliveryCounters]
	delivered  *vec[string, histogram]

	outages atomic.Int64

	gauges gauges

	process  *prometheus.Registry // Go and the process
	gatherer prometheus.Gatherer
	readers  []*sdkmetric.MeterProvider
}

// New returns metrics that count.
func New(c config.Config, deps Deps) (*Metrics, error) {
	if deps.Sources == nil {
		deps.Sources = func() Sources { return Sources{} }
	}
	deps.Logger = cmp.Or(deps.Logger, slog.Default())
	m := &Metrics{config: c, deps: deps, start: time.Now(), process: prometheus.NewRegistry()}
	m.sources = sync.OnceValue(m.deps.Sources)
	limited := func() *limiter { return &limiter{max: m.config.Metrics.MaxLabelValues, values: map[string]struct{}{}} }
	jobTypes, queues := limited(), m.queueLimiter()
	m.jobs = newVec[jobKey, jobCounters](func(k jobKey) jobKey {
		k.queue = queues.label(k.queue)
		// Pairs are bounded as well as each label: a thousand types in fifty queues would be fifty thousand series. The sums over a queue
		// stay right.
		if m.jobs.len() >= m.config.Metrics.MaxPairs {
			return jobKey{other, k.queue}
		}
		return jobKey{jobTypes.label(k.jobType), k.queue}
	}, func(k jobKey) attribute.Set {
		return attribute.NewSet(attribute.String("job_type", k.jobType), attribute.String("queue", k.queue))
	})
	m.published = newVec[string, atomic.Int64](same, func(kind string) attribute.Set { return label("type", kind) })
	m.bounded = newVec[string, backpressure](m.queueLimiter().label, func(queue string) attribute.Set { return label("queue", queue) })
	m.limited = newVec[string, atomic.Int64](limited().label, func(key string) attribute.Set { return label("key", key) })
	m.requests = newVec[requestKey, histogram](func(k requestKey) requestKey { return k }, func(k requestKey) attribute.Set {
		return attribute.NewSet(attribute.String("method", k.method), attribute.String("route", k.route),
			attribute.String("status", strconv.Itoa(k.status)))
	})
	// The method of a gRPC call is limited, because an unknown one is counted by the name that the client sent.
	methods := limited()
	m.rpcs = newVec[rpcKey, histogram](func(k rpcKey) rpcKey { return rpcKey{methods.label(k.method), k.code} },
		func(k rpcKey) attribute.Set {
			return attribute.NewSet(attribute.String("method", k.method), attribute.String("code", k.code))
		})
	m.bulks = newVec[string, bulkCounters](same, func(operation string) attribute.Set { return label("operation", operation) })
	m.batches = newVec[string, batchCounters](same, func(operation string) attribute.Set { return label("operation", operation) })
	// These limits are shared by all series of deliveries: a type that has its own value in one has it in all.
	eventTypes, subscriptions := limited(), limited()
	m.attempts = newVec[attemptKey, atomic.Int64](func(k attemptKey) attemptKey {
		return attemptKey{eventTypes.label(k.eventType), k.status}
	}, func(k attemptKey) attribute.Set {
		return attribute.NewSet(attribute.String("event_type", k.eventType), attribute.String("status", k.status))
	})
	m.deliveries = newVec[deliveryKey, deliveryCounters](func(k deliveryKey) deliveryKey {
		return deliveryKey{eventTypes.label(k.eventType), subscriptions.label(k.subscription)}
	}, func(k deliveryKey) attribute.Set {
		return attribute.NewSet(attribute.String("event_type", k.eventType), attribute.String("subscription_id", k.subscription))
	})
	m.delivered = newVec[string, histogram](eventTypes.label,
		func(eventType string) attribute.Set { return label("event_type", eventType) })
	m.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.gauges.init(m.config.Metrics.GaugeInterval, m.deps.Logger)
	if err := m.expose(); err != nil {
		return nil, err
	}
	return m, nil
}

func same(key string) string { return key }

// queueLimiter has room for the configured queues from the beginning.
func (m *Metrics) queueLimiter() *limiter {
	l := &limiter{max: m.config.Metrics.MaxQueues, values: map[string]struct{}{}}
	for _, name := range m.config.Metrics.Queues {
		l.label(name)
	}
	return l
}

// Produce returns all metrics (sdkmetric.Producer). Prometheus and OTLP each call it for each of their reads; gauges are cached
// for both.
func (m *Metrics) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	families := m.jobFamilies()
	families = append(families, m.refusalFamilies()...)
	families = append(families, m.trafficFamilies()...)
	families = append(families, m.webhookFamilies()...)
	families = append(families, m.nodeFamilies()...)
	families = append(families, m.gaugeFamilies(ctx)...)
	now := time.Now()
	var scope metricdata.ScopeMetrics
	scope.Scope.Name = "github.com/ojsd/ojsd"
	for _, f := range families {
		if data, ok := f.data(m.start, now); ok {
			scope.Metrics = append(scope.Metrics, data)
		}
	}
	return []metricdata.ScopeMetrics{scope}, nil
}

// nodeFamilies are the relay, pool, listener, streams and services of this node.
func (m *Metrics) nodeFamilies() []family {
	events := counter("ojs.events.published", "{event}", "Events that the relay of this node has published, by type.")
	m.published.each(func(_ string, labels attribute.Set, n *atomic.Int64) { events.add(labels, n.Load()) })
	families := []family{events}
	if m.sources().Pool != nil {
		s := m.sources().Pool.Stat()
		connections := gauge("ojs.db.pool_connections", "{connection}", "Connections of this node's pool.")
		connections.set(label("state", "in_use"), float64(s.AcquiredConns()))
		connections.set(label("state", "idle"), float64(s.IdleConns()))
		connections.set(label("state", "connecting"), float64(s.ConstructingConns()))
		most := gauge("ojs.db.pool_max_connections", "{connection}", "Most connections that this node's pool may have.")
		most.set(noLabels, float64(s.MaxConns()))
		waits := counter("ojs.db.pool_waits", "{wait}", "How often a statement had to wait for a connection of the pool.")
		waits.add(noLabels, s.EmptyAcquireCount())
		families = append(families, connections, most, waits)
	}
	if m.sources().Reconnects != nil {
		f := counter("ojs.listener.reconnects", "{connection}", "How often the LISTEN connection has been made anew.")
		f.add(noLabels, m.sources().Reconnects())
		families = append(families, f)
	}
	if m.sources().CertificateExpires != nil {
		f := gauge("ojs.tls.expires_seconds", "s", "Time until the certificate of an interface ends; negative: it has ended.")
		for name, at := range m.sources().CertificateExpires() {
			f.set(label("interface", name), time.Until(at).Seconds())
		}
		families = append(families, f)
	}
	outages := counter("ojs.database.outages", "{outage}", "Outages of the database whose end this node has found first.")
	outages.add(noLabels, m.outages.Load())
	families = append(families, outages)
	open := gauge("ojs.realtime.connections", "{connection}", "Open event streams of this node.")
	behind := gauge("ojs.realtime.catchup_connections", "{connection}",
		"Event streams that read from the table because they are too far behind.")
	dropped := counter("ojs.realtime.dropped", "{event}", "Events that slow streams have lost (realtime.overflow=drop).")
	for transport, t := range m.sources().Streams {
		labels := label("transport", transport)
		open.set(labels, float64(t.Connections()))
		behind.set(labels, float64(t.CatchingUp()))
		dropped.add(labels, t.Dropped())
	}
	families = append(families, open, behind, dropped)
	if m.sources().Components == nil {
		return families
	}
	// The states of services are those of health. A service that is off has no series.
	fine := gauge("ojs.component_ok", "1", "1 if the service of this node is ok, 0 if it is degraded; as in /health.")
	for name, state := range m.sources().Components() {
		switch state {
		case "off":
		case "ok":
			fine.set(label("component", name), 1)
		default:
			fine.set(label("component", name), 0)
		}
	}
	return append(families, fine)
}

// Push starts to send all metrics over OTLP, if Config.Protocol is set. A failed push is logged and tried again at the next
// interval. Call it when the parts of Sources are built, and before Shutdown. It does not connect: the first push does.
func (m *Metrics) Push(ctx context.Context) error {
	if m.deps.Protocol == "" {
		return nil
	}
	exporter, err := newExporter(ctx, m.deps.Protocol)
	if err != nil {
		return fmt.Errorf("otlp metrics: %w", err)
	}
	// Each node is an instance of the service, because counters are per node. A restarted node is a new instance, since its number is new,
	// so its counters may begin with 0.
	attrs := []attribute.KeyValue{attribute.String("service.name", m.config.Events.ServiceName),
		attribute.String("service.version", m.deps.Version)}
	if m.sources().Node != 0 {
		attrs = append(attrs, attribute.String("service.instance.id", strconv.Itoa(int(m.sources().Node))))
	}
	sender, err := resource.New(ctx, resource.WithAttributes(attrs...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return fmt.Errorf("otlp resource: %w", err)
	}
	// The interval comes from the environment, 60 s by default.
	reader := sdkmetric.NewPeriodicReader(&loggingExporter{Exporter: exporter, logger: m.deps.Logger},
		sdkmetric.WithProducer(m), sdkmetric.WithProducer(prombridge.NewMetricProducer(prombridge.WithGatherer(m.process))))
	m.readers = append(m.readers, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(sender)))
	return nil
}

// newExporter reads everything but the protocol from the environment by itself.
func newExporter(ctx context.Context, protocol string) (sdkmetric.Exporter, error) {
	if err := tracing.CheckEndpoint("METRICS"); err != nil {
		return nil, err
	}
	switch protocol {
	case "grpc":
		return otlpmetricgrpc.New(ctx)
	case "http/protobuf":
		return otlpmetrichttp.New(ctx)
	}
	return nil, fmt.Errorf("protocol %q is not supported: use grpc or http/protobuf", protocol)
}

// loggingExporter logs the first of several failures in a row. failed is true from the first failure to the next success.
type loggingExporter struct {
	sdkmetric.Exporter
	logger *slog.Logger
	failed atomic.Bool
}

// Export never fails: OpenTelemetry would log each failure to its own logger.
func (e *loggingExporter) Export(ctx context.Context, data *metricdata.ResourceMetrics) error {
	err := e.Exporter.Export(ctx, data)
	switch {
	case err == nil:
		e.failed.Store(false)
	case !e.failed.Swap(true):
		e.logger.WarnContext(ctx, "metrics cannot be pushed; trying again at each interval", slog.String("error", err.Error()))
	}
	return nil
}
