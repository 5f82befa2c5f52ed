// Package httpapi speaks the Open Job Spec over HTTP (docs/reference/http.md). It owns routes, headers, statuses, bodies and
// streams: it hands what it reads to the decoders of the domains, calls their operations, and encodes what they return. It must
// hold no rule about jobs and no SQL, and must never import grpcapi: what both need is in package api or below.
package httpapi

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
)

// API is the HTTP interface of one node. Use New.
// All fields are set before the first request and only read afterwards; what changes behind them guards itself.
type API struct {
	config  config.Config
	tenancy queueadmin.TenantMode
	version string
	api.Domains
	streams *api.Streams
	memory  *api.Memory
	// stats is the latest overview, shared by all streams of statistics.
	stats    statsView
	health   *api.Health
	reset    func(ctx context.Context) error
	sendTest func(ctx context.Context, w *webhook.Webhook) (webhook.Tested, error)
	prune    func() time.Duration
	logger   *slog.Logger
	keys     *api.Keys
	// localOnly: without keys, on loopback, it answers under the names of this machine only; see checkVisitor.
	localOnly bool

	table       []route // in the order of paths, for the answer to a request that matches none
	tracer      *tracing.Tracer
	requestDone func(method, route string, status int, took time.Duration)
	// countBulk is nil in tests only.
	countBulk func(operation string, items int)
	metrics   Metrics
	// The open streams by transport, for metrics; api.Streams bounds their number.
	sse, socket eventlog.StreamCounter
}

// Deps are the parts an API talks to.
type Deps struct {
	api.Domains
	Logger *slog.Logger

	Health *api.Health

	// Streams counts the streams of all interfaces.
	// It must be the one of gRPC, too, or the limits of streams hold per interface.
	Streams *api.Streams

	// Memory counts the bytes of requests of all interfaces. nil: of this one.
	// A node has one bound for the bodies of both interfaces.
	Memory *api.Memory

	// Version of the server, shown in the manifest and by health.
	Version string

	// TestWebhook sends one event and waits for the answer.
	// It is called only if webhooks are enabled. It goes on, and is logged, even if the client hangs up.
	TestWebhook func(ctx context.Context, w *webhook.Webhook) (webhook.Tested, error)

	// NextPrune is the time until this node prunes jobs.
	// It is shown by the statistics of dead letters only.
	NextPrune func() time.Duration

	// Reset empties everything on this node, for the test switch.
	// The caches of other nodes are dropped when they hear of the reset.
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
// It starts nothing and reads nothing. Streams of this API end with StopStreams.
func New(c config.Config, deps Deps) *API {
	return &API{
		config: c, localOnly: c.Server.Loopback() && !c.Server.AllowAll, tenancy: queueadmin.TenantMode(c.Server.Tenancy),
		version: deps.Version, Domains: deps.Domains,
		streams: deps.Streams, memory: cmp.Or(deps.Memory, &api.Memory{}), logger: deps.Logger,
		keys: api.NewKeys(c.Server.APIKeys), prune: deps.NextPrune, health: deps.Health, reset: deps.Reset, sendTest: deps.TestWebhook,
		tracer: deps.Tracer, requestDone: deps.RequestDone, countBulk: deps.BulkDone, metrics: deps.Metrics,
	}
}

// Handler returns the routes with everything around them.
// Call it once: it fills fields of the API that requests read without a lock.
func (a *API) Handler() http.Handler {
	e := a.echo()
	a.mount(e, a.routes())
	return e
}

// echo has everything but routes.
// The order is that of docs/reference/http.md, Check order. observed is outermost, so that it answers the errors and panics
// of all others. prepare sets the headers that every answer has, errors and preflights included. CORS stands before admit,
// because a preflight carries no key. admit runs before the router: an unknown path is 401 without a key. confine stands
// around each route.
func (a *API) echo() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = func(err error, c echo.Context) { _, _ = a.handleError(err, c) } // observed leaves it no error
	e.Pre(a.observed(e), a.prepare)
	if len(a.config.Server.CORSOrigins) > 0 {
		e.Pre(middleware.CORSWithConfig(middleware.CORSConfig{
			AllowOrigins: a.config.Server.CORSOrigins,
			AllowMethods: []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"},
			AllowHeaders: []string{"Content-Type", "Accept", "Authorization", "X-Request-Id", "OJS-Version", "Idempotency-Key",
				headerBlockTimeout, job.TenantHeader, "Last-Event-ID", "Cache-Control"},
			ExposeHeaders: []string{"X-Request-Id", "OJS-Version", "Location", "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining",
				"X-RateLimit-Reset", headerQueueDepth, headerQueueBound, headerQueuePressure},
			MaxAge: 86400,
		}))
	}
	e.Pre(a.admit)
	return e
}

// mediaPython contains the text application/json for a client that looks for it (docs/reference/http.md, Official clients).
const (
	mediaOJS    = "application/openjobspec+json"
	mediaJSON   = "application/json"
	mediaPython = mediaOJS + `; alias="application/json"`
)

// Header values that never change are shared, so that a response costs no allocation for them.
// They must never be changed in place.
var (
	valueVersion = []string{"1.0"}
	valueNosniff = []string{"nosniff"}
	valueNoStore = []string{"no-store"}
	valueHSTS    = []string{"max-age=31536000"}
	valueOJS     = []string{mediaOJS}
	valueJSON    = []string{mediaJSON}
	valuePython  = []string{mediaPython}
)

// prepare sets what every response carries, whatever becomes of the request (docs/reference/http.md, Response headers).
// It writes the header map directly, with keys in canonical form, which Set would compute for each request.
func (a *API) prepare(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, h := c.Request(), c.Response().Header()
		h["Ojs-Version"] = valueVersion
		h["X-Ojs-Version"] = valueVersion
		h["X-Content-Type-Options"] = valueNosniff
		h["Cache-Control"] = valueNoStore
		if r.TLS != nil {
			h["Strict-Transport-Security"] = valueHSTS
		}
		h["Content-Type"] = a.contentType(r)
		// It must be there before any other stage can fail, because errors show it.
		h["X-Request-Id"] = []string{api.RequestID(r.Header.Get("X-Request-Id"))}

		// Both forms of the path are kept in step, because the router reads RawPath where there is one and all others read
		// Path.
		if r.URL.RawPath != "" {
			r.URL.RawPath = decodeSegments(r.URL.RawPath)
		}
		// /v1 is an alias for reading only. Other methods there are 404, so that nothing is changed under a path that may go
		// away.
		if strings.HasPrefix(r.URL.Path, "/v1/") && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			r.URL.Path = "/ojs" + r.URL.Path
			if r.URL.RawPath != "" {
				r.URL.RawPath = "/ojs" + r.URL.RawPath
			}
		}
		return next(c)
	}
}

var slashInSegment = strings.NewReplacer("%", "%25", "/", "%2F")

// decodeSegments decodes a raw path except for slashes inside a segment. The router compares and returns the raw path if
// there is one, so a single escape anywhere would otherwise hide the route from it; param undoes the rest.
// The percent sign is escaped again, so that param can tell %2F that was in the segment from an escape that was decoded.
func decodeSegments(raw string) string {
	segments := strings.Split(raw, "/")
	for i, segment := range segments {
		// Each segment is decoded by itself, so that %2F does not become a separator.
		if text, err := url.PathUnescape(segment); err == nil { // net/http has checked it
			segments[i] = slashInSegment.Replace(text)
		}
	}
	return strings.Join(segments, "/")
}

// param is a segment of the path, decoded.
// Handlers must use it and never c.Param, except to compare with a literal.
func param(c echo.Context, name string) string {
	text := c.Param(name)
	if c.Request().URL.RawPath != "" {
		if decoded, err := url.PathUnescape(text); err == nil { // decodeSegments has written it
			return decoded
		}
	}
	return text
}

// contentType follows Accept only between the two names of the same JSON; it never refuses.
// Both names stand for the same bytes, so the choice has no effect beyond the header.
func (a *API) contentType(r *http.Request) []string {
	if accept := r.Header["Accept"]; names(accept, mediaJSON) && !names(accept, mediaOJS) {
		return valueJSON
	}
	if strings.HasPrefix(r.UserAgent(), "python-httpx/") {
		return valuePython
	}
	return valueOJS
}

// names reports whether an Accept header names the media type itself; a range such as */* does not.
func names(accept []string, media string) bool {
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			if isMedia(item, media) {
				return true
			}
		}
	}
	return false
}

// isMedia compares a media type with a value that may have parameters.
func isMedia(value, media string) bool {
	name, _, _ := strings.Cut(value, ";")
	return strings.EqualFold(strings.TrimSpace(name), media)
}

// admit checks credentials and the spec version, before routing (docs/reference/http.md, Check order).
// The checks are in the order key, version, tenant. It rewrites the request: handlers find the producer in its context, and
// no token in its URL.
func (a *API) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		// Health checks show no certificate.
		if a.config.Server.ClientCA != "" && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) && (!public(r.URL.Path) || r.URL.Path == "/ojs/manifest") {
			return spec.NoCertificate()
		}
		// /metrics may be open although keys are configured: scrapers often cannot send one.
		if public(r.URL.Path) || r.URL.Path == "/metrics" && !a.config.Metrics.RequireAuth {
			return next(c)
		}
		if !a.keys.Any() {
			if err := a.checkVisitor(r); err != nil {
				return err
			}
		}
		// Before the check, because the key may stand in the query. It also takes the token out of the URL when no keys are
		// configured.
		a.takeQueryToken(r)
		if a.keys.Any() {
			principal, err := a.keys.Admit(r.RemoteAddr, api.BearerToken(r.Header.Get("Authorization")))
			if err != nil {
				return err
			}
			// The producer is checked against the configuration of queues when a job is stored.
			c.SetRequest(r.WithContext(queue.WithProducer(r.Context(), principal)))
		}
		// An empty value is refused; only an absent header is fine.
		if v, present := r.Header["Ojs-Version"]; present && !job.ValidVersion(v[0]) {
			return spec.Version("OJS-Version", v[0])
		}
		// Checked here once, so that API.tenant can ignore the error later.
		if _, err := a.tenancy.Caller(r.Header[tenantHeader]); err != nil {
			return err
		}
		return next(c)
	}
}

// public paths need neither key nor version, so that probes and discovery work with nothing configured.
func public(path string) bool {
	switch path {
	case "/ojs/manifest", "/ojs/v1/health", "/health", "/ready", "/readyz", "/healthz", "/livez":
		return true
	}
	return false
}

// caller is who sent the request.
// It reads the key again rather than carry it along: few calls need it.
func (a *API) caller(r *http.Request) api.Caller {
	principal := a.keys.Principal(api.BearerToken(r.Header.Get("Authorization")))
	return api.Caller{Principal: principal, Tenant: a.tenant(r), Address: r.RemoteAddr}
}

// actor names in events who did something: the key, else the header, else the query parameter, else what the body claims.
// What a client claims is not proven; only a key is.
func (a *API) actor(c echo.Context, parameter string, claimed ...string) string {
	names := append([]string{c.Request().Header.Get("X-OJS-Actor"), c.QueryParam(parameter)}, claimed...)
	return a.caller(c.Request()).Actor(names...)
}
