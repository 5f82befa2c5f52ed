// Package httpapi speaks the Open Job Spec over HTTP (docs/reference/http.md). It owns routes, headers, statuses, bodies and
// streams: it hands what it reads to the decoders of the domains, calls their operations, and encodes what they return. It must
// hold no rule about jobs and no SQL, and must never import grpcapi: what both need is in package api or below.
package httpapi

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// Config holds what the API decides by. The zero value of a field means its default, unless it says otherwise.
type Config struct {
	// APIKeys are the accepted bearer tokens. Empty: the API is open.
	APIKeys []string

	// PublicURL is the base of the manifest's base_url. Empty: taken from each request.
	PublicURL string

	// Limits of job objects, metadata, results and nesting.
	Limits job.Limits

	// MaxBatchBytes bounds the body of batch calls after decompression.
	MaxBatchBytes int

	// MaxBatchSize is the most items of a batch call.
	MaxBatchSize int

	// MaxWorkflowDepth, DefaultVisibility, DefaultTimeout, RetentionCompleted and RetentionDiscarded are shown to administrators.
	MaxWorkflowDepth                       int
	DefaultVisibility, DefaultTimeout      time.Duration
	RetentionCompleted, RetentionDiscarded time.Duration // 0: no limit

	// CORSOrigins are the origins browsers may call from. Empty: none.
	CORSOrigins []string

	// TestReset adds POST /ojs/v1/admin/reset, which deletes everything.
	TestReset bool

	// MetricsAuth makes /metrics need credentials like everything else, if there are any.
	MetricsAuth bool

	// Version of the server, shown in the manifest and by health.
	Version string

	// GRPC says that this node speaks gRPC, too.
	GRPC bool

	// ExtensionEvents says that events of extension types are written.
	ExtensionEvents bool

	// EventRetention and EventMaxCount are shown in the manifest.
	EventRetention time.Duration
	EventMaxCount  int64

	// DeadLetterMaxAge and DeadLetterMaxCount are shown by the dead-letter statistics; 0: no limit.
	DeadLetterMaxAge   time.Duration
	DeadLetterMaxCount int64
}

// API is the HTTP interface of one node. Use New.
type API struct {
	config Config
	api.Domains
	streams  *api.Streams
	memory   *api.Memory
	stats    statsView
	health   *api.Health
	reset    func(ctx context.Context) error
	prune    func() time.Duration
	webhooks Webhooks
	logger   *slog.Logger
	keys     api.Keys

	templates   []template // of all routes, for the answer to a request that matches none
	tracer      *tracing.Tracer
	requestDone func(method, route string, status int, took time.Duration)
	countBulk   func(operation string, items int)
	metrics     Metrics
	sse, socket eventlog.StreamCounter
}

// Deps are the parts an API talks to.
type Deps struct {
	api.Domains
	Logger *slog.Logger

	Health *api.Health

	// Streams counts the streams of all interfaces.
	Streams *api.Streams

	// Memory counts the bytes of requests of all interfaces. nil: of this one.
	Memory *api.Memory

	// Webhooks are the settings of subscriptions.
	Webhooks Webhooks

	// NextPrune is the time until this node prunes jobs.
	NextPrune func() time.Duration

	// Reset empties everything on this node, for the test switch.
	Reset func(ctx context.Context) error

	// Tracer makes the spans of requests. nil: none.
	Tracer *tracing.Tracer

	// RequestDone is told of every request when it has ended, streams at their end: its method and the template of its
	// route, each one of few values, and the status, 499 if nobody waited for the answer. Nil: nobody is told.
	RequestDone func(method, route string, status int, took time.Duration)

	// BulkDone is told of every bulk call that was carried out or replayed: enqueue, cancel, retry or delete, and its number of items.
	BulkDone func(operation string, items int)

	// Metrics are shown by /metrics. Zero: there are no such routes.
	Metrics Metrics
}

// New returns the API.
func New(config Config, deps Deps) *API {
	return &API{
		config: config, Domains: deps.Domains, streams: deps.Streams, memory: cmp.Or(deps.Memory, &api.Memory{}), logger: deps.Logger,
		keys: api.NewKeys(config.APIKeys), prune: deps.NextPrune, health: deps.Health, reset: deps.Reset, webhooks: deps.Webhooks,
		tracer: deps.Tracer, requestDone: deps.RequestDone, countBulk: deps.BulkDone, metrics: deps.Metrics,
	}
}

// Handler returns the routes with everything around them.
func (a *API) Handler() http.Handler {
	e := a.echo()
	a.routes(e)
	a.templates = templates(e)
	return e
}

// echo has everything but routes.
func (a *API) echo() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = func(err error, c echo.Context) { _, _ = a.handleError(err, c) } // observed leaves it no error
	e.Pre(a.observed(e), a.prepare)
	if len(a.config.CORSOrigins) > 0 {
		e.Pre(middleware.CORSWithConfig(middleware.CORSConfig{
			AllowOrigins:  a.config.CORSOrigins,
			AllowMethods:  []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"},
			AllowHeaders:  []string{"Content-Type", "Accept", "Authorization", "X-Request-Id", "OJS-Version", "Idempotency-Key", headerBlockTimeout, "Last-Event-ID", "Cache-Control"},
			ExposeHeaders: []string{"X-Request-Id", "OJS-Version", "Location", "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", headerQueueDepth, headerQueueBound, headerQueuePressure},
			MaxAge:        86400,
		}))
	}
	e.Pre(a.admit)
	return e
}

func (a *API) routes(e *echo.Echo) {
	v1 := e.Group("/ojs/v1")
	get := func(g *echo.Group, path string, h echo.HandlerFunc) {
		g.Match([]string{http.MethodGet, http.MethodHead}, path, h)
	}
	root := e.Group("")

	get(root, "/ojs/manifest", a.getManifest)
	get(root, "/ojs/v1/health", a.getHealth)
	get(root, "/health", a.getHealth)
	get(root, "/ready", a.getReady)
	get(root, "/readyz", a.getReady)
	get(root, "/healthz", a.getAlive)
	get(root, "/livez", a.getAlive)
	a.metricsRoutes(root, v1)

	one := bodyLimit{a.config.Limits.Envelope(), "envelope"}
	many := bodyLimit{a.config.MaxBatchBytes, "batch"}
	v1.POST("/jobs", a.withBody(one, a.postJob))
	get(v1, "/jobs", a.listJobs)
	v1.POST("/jobs/batch", a.withBody(many, a.postBatch))
	v1.POST("/jobs/bulk", a.withBody(many, a.postBulk))
	v1.POST("/jobs/bulk/cancel", a.withBody(many, a.bulkHandler(job.BulkCancel)))
	v1.POST("/jobs/bulk/retry", a.withBody(many, a.bulkHandler(job.BulkRetry)))
	v1.POST("/jobs/bulk/delete", a.withBody(many, a.bulkHandler(job.BulkDelete)))
	get(v1, "/jobs/:id", notLiteral(a.getJob))
	v1.DELETE("/jobs/:id", notLiteral(a.deleteJob))
	get(v1, "/jobs/:id/explain", a.getExplanation)
	v1.POST("/jobs/:id/activate", a.withBody(one, a.activateJob))

	v1.POST("/workers/fetch", a.withBody(one, a.postFetch))
	v1.POST("/workers/ack", a.withBody(bodyLimit{a.config.Limits.Result() + ackRoom, "result"}, a.postAck))
	v1.POST("/workers/nack", a.withBody(many, a.postNack))
	v1.POST("/workers/ack/batch", a.withBody(many, a.postAckBatch))
	v1.POST("/workers/nack/batch", a.withBody(many, a.postNackBatch))
	v1.POST("/workers/heartbeat", a.withBody(one, a.postHeartbeat))
	a.registryRoutes(v1)

	a.progressRoutes(v1)
	a.checkpointRoutes(v1)
	a.resultRoutes(v1)
	a.historyRoutes(v1)

	v1.POST("/jobs/:id/ack", a.withBody(bodyLimit{a.config.Limits.Result() + ackRoom, "envelope"}, a.postJobAck))
	v1.POST("/jobs/:id/nack", a.withBody(many, a.postJobNack))
	a.deadLetterRoutes(v1)
	a.adminRoutes(v1)
	get(v1, "/unique-jobs", a.listUnique)
	a.rateLimitRoutes(v1, one)
	a.cronRoutes(v1)
	a.poolRoutes(v1)
	a.workflowRoutes(v1)
	a.priorityRoutes(v1)
	a.schemaRoutes(v1)
	a.queueRoutes(v1)
	a.eventRoutes(v1)
	a.streamRoutes(v1)
	a.webhookRoutes(v1)
	if a.config.TestReset {
		v1.POST("/admin/reset", a.postReset)
	}
}

func (a *API) eventRoutes(v1 *echo.Group) {
	get := []string{http.MethodGet, http.MethodHead}
	v1.Match(get, "/events", a.listEvents)
	v1.Match(get, "/events/:id", a.getEvent)
	v1.Match(get, "/events/:id/history", a.getEventHistory)
}

// notLiteral answers 405 where the last segment is the name of a collection that only POST knows, not an id.
func notLiteral(h echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		switch c.Param("id") {
		case "batch", "bulk", "results":
			c.Response().Header().Set(echo.HeaderAllow, http.MethodPost)
			return echo.ErrMethodNotAllowed
		}
		return h(c)
	}
}
