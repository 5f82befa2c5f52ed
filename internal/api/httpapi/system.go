package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// systemRoutes need no key (public).
func (a *API) systemRoutes() []route {
	return []route{
		{"GET", "//ojs/manifest", api.Everybody, noBody, "", a.getManifest},
		{"GET", "/health", api.Everybody, noBody, "", a.getHealth},
		{"GET", "//health", api.Everybody, noBody, "", a.getHealth},
		{"GET", "//ready", api.Everybody, noBody, "", a.getReady},
		{"GET", "//readyz", api.Everybody, noBody, "", a.getReady},
		{"GET", "//healthz", api.Everybody, noBody, "", a.getAlive},
		{"GET", "//livez", api.Everybody, noBody, "", a.getAlive},
	}
}

// getHealth is 200 for a degraded node: it still serves. It shares one look at the database per second with all other probes.
func (a *API) getHealth(r *request) error {
	// The time is in the body.
	status, _, body := a.health.Report(r.Request().Context())
	if status == api.Unhealthy {
		r.Response().Header().Set("Retry-After", "1")
		return sendJSON(r, http.StatusServiceUnavailable, body)
	}
	return sendJSON(r, http.StatusOK, body)
}

// expectedKey is a value of the context of a request: true if a status of 5xx is no failure.
const expectedKey = "ojs.expected"

// getReady is 503 while the node stops, before any request is refused, so that a load balancer can move traffic away.
func (a *API) getReady(r *request) error {
	ready, checks := a.health.Ready(r.Request().Context())
	if !ready {
		r.Response().Header().Set("Retry-After", "1")
		// A load balancer asks often until the node has gone, and nothing has failed.
		r.Set(expectedKey, checks["draining"] == "yes" && checks["database"] == "ok")
		return sendJSON(r, http.StatusServiceUnavailable, map[string]any{"status": "not_ready", "checks": checks})
	}
	return sendJSON(r, http.StatusOK, map[string]any{"status": "ready", "checks": checks})
}

// getAlive must not ask the database: an orchestrator would restart all nodes when the database is away, which helps nobody.
func (a *API) getAlive(r *request) error {
	return sendJSON(r, http.StatusOK, map[string]any{"status": "ok"})
}

// postReset deletes all rows and the caches of this node; other nodes drop theirs when they hear of it. Requests in flight
// may fail or leave rows behind. The route exists with its setting only.
func (a *API) postReset(r *request) error {
	if err := a.reset(r.Request().Context()); err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"reset": true})
}

// sendJSON is for answers whose speed does not matter. Those about jobs are appended by hand.
func sendJSON(c echo.Context, status int, body any) error {
	out, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return send(c, status, out)
}

// getManifest tells what is really enabled (docs/reference/http.md, Manifest).
// It needs no key, so it must show nothing that is not public. A setting of this node may differ from that of another one.
func (a *API) getManifest(r *request) error {
	// Behind a proxy this is only right if the proxy passes Host and X-Forwarded-Proto on; PublicURL is for all others.
	base := r.Scheme() + "://" + r.Request().Host
	if a.config.Server.PublicURL != nil {
		base = a.config.Server.PublicURL.String()
	}
	// One absolute URL; the others are paths, as the specification has them.
	endpoints := map[string]string{
		"base_url": base + "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health", "events": "/ojs/v1/events",
		"queues": "/ojs/v1/queues", "workflows": "/ojs/v1/workflows", "events_stream": "/ojs/v1/events/stream",
		"websocket": "/ojs/v1/ws", "metrics": "/metrics",
	}
	transports := []string{"notify", "poll", "sse", "websocket"} // of events; notify is LISTEN in SQL
	if a.config.GRPC.Enabled() {
		transports = append(transports, "grpc")
	}
	if a.config.Webhooks.Enabled {
		transports, endpoints["webhooks"] = append(transports, "webhook"), "/ojs/v1/webhooks"
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		"specversion": api.SpecVersion, "ojs_version": api.SpecVersion,
		"implementation": map[string]string{"name": api.Name, "version": a.version, "language": api.Language,
			"homepage": "https://github.com/ojsd/ojsd"},
		"conformance_level": api.ConformanceLevel, "conformance_tier": "runtime",
		"protocols": api.Protocols(a.config.GRPC.Enabled()), "backend": api.Backend,
		"capabilities": map[string]bool{
			"batch_enqueue": true, "cron": true, "cron_jobs": true, "dead_letter": true, "delayed_jobs": true, "fair_scheduling": true,
			"job_ttl": true, "priority_queues": true, "rate_limiting": true, "schema_validation": true, "unique_jobs": true,
			"workflows": true, "pause_resume": true, "bulk_operations": true, "events": true, "webhooks": a.config.Webhooks.Enabled,
			"realtime": true, "grpc": a.config.GRPC.Enabled(), "multi_tenancy": a.tenancy != queueadmin.TenantsOff,
		},
		"extensions":        api.Extensions(a.config.Webhooks.Enabled),
		"endpoints":         endpoints,
		"schema_validation": true, "unique_job_strength": "strong", "test_suite_version": "1.0.0",
		"payload_limits": map[string]any{
			"max_envelope_bytes": a.JobLimits.MaxJobBytes, "max_meta_bytes": job.MaxMetaBytes, "max_queue_name_bytes": 128,
			"max_job_type_bytes": 255, "max_batch_size": a.config.Server.MaxBatchSize, "max_result_bytes": a.JobLimits.MaxJobBytes,
			"supported_compression": []string{"gzip"}, "external_references": true, "chunking": false, "per_queue_limits": false,
		},
		// These promises are docs/reference/events.md, Guarantees.
		"events": map[string]any{
			"delivery_guarantee": "at_least_once", "ordering": "per_subject", "retention_period": hours(a.config.Events.RetentionPeriod),
			"max_count": a.config.Events.MaxCount, "transports": transports,
		},
	})
}

// hours is a duration without the zero parts that String adds: 168h, not 168h0m0s.
// time.ParseDuration reads both forms.
func hours(d time.Duration) string {
	text := d.String()
	if cut, ok := strings.CutSuffix(text, "m0s"); ok {
		text = cut + "m"
	}
	if cut, ok := strings.CutSuffix(text, "h0m"); ok {
		text = cut + "h"
	}
	return text
}

// adminSystemRoutes are those of docs/reference/admin.md, System, with their short names.
// The alias and the route are the same handler, so a tool may turn maintenance on by one and off by the other.
func (a *API) adminSystemRoutes() []route {
	routes := []route{
		{"GET", "/admin/system/maintenance", api.Operators, noBody, "", a.getMaintenance},
		{"POST", "/admin/system/maintenance", api.Operators, oneBody, "started_by", a.postMaintenance},
		{"GET", "/admin/maintenance", api.Operators, noBody, "", a.getMaintenance},
		{"POST", "/admin/maintenance", api.Operators, oneBody, "started_by", a.postMaintenance},
		{"GET", "/admin/system/config", api.Operators, noBody, "", a.getConfig},
		{"GET", "/admin/config", api.Operators, noBody, "", a.getConfig},
		{"GET", "/middleware", api.Operators, noBody, "", a.getMiddleware},
	}
	if a.config.Tests.EnableReset {
		routes = append(routes, route{"POST", "/admin/reset", api.Operators, noBody, "", a.postReset})
	}
	return routes
}

// sendMaintenance is the answer of docs/reference/admin.md, Maintenance. enabled and maintenance are equal, and so are
// started_at and enabled_at: admin tools read different names. ends_at is when maintenance ends by itself; absent: it does not.
// estimated_end is only shown to people and ends nothing.
func sendMaintenance(c echo.Context, s queueconfig.MaintenanceState) error {
	return sendJSON(c, http.StatusOK, object{
		{"enabled", s.On}, {"maintenance", s.On}, {"reason", given(s.Reason)}, {"started_at", s.StartedAt}, {"enabled_at", s.StartedAt},
		{"started_by", given(s.StartedBy)}, {"ends_at", s.EndsAt}, {"estimated_end", s.EstimatedEnd},
	})
}

// getMaintenance reads the database, not what this node remembers, so a tool sees the change that it has just made on another
// node.
func (a *API) getMaintenance(r *request) error {
	state, err := a.Maintenance.Get(r.Request().Context())
	if err != nil {
		return err
	}
	return sendMaintenance(r, state)
}

// postMaintenance turns maintenance on or off. Both are idempotent. When it returns, this node follows the change; the others
// follow within a second (docs/reference/admin.md, Maintenance).
func (a *API) postMaintenance(r *request) error {
	in, wire := queueconfig.DecodeMaintenance(r.body)
	if wire != nil {
		return wire
	}
	by := a.actor(r, "started_by", in.Start.By)
	if !in.Enabled {
		// It is no error if maintenance is off already.
		if err := a.Maintenance.End(r.Request().Context(), by); err != nil {
			return err
		}
		// The state after an end is known without a read.
		return sendMaintenance(r, queueconfig.MaintenanceState{})
	}
	in.Start.By = by
	state, err := a.Maintenance.Start(r.Request().Context(), in.Start)
	if err != nil {
		return err
	}
	return sendMaintenance(r, state)
}

// getConfig shows what operators may want to compare between nodes, and no secret.
// It shows the settings of the node that answers, which is not necessarily that of the next call behind a load balancer. Add
// no secret and no URL here: with API keys any key may read it.
func (a *API) getConfig(r *request) error {
	conf := a.config
	kept := func(d time.Duration) any {
		if d <= 0 {
			return nil // without limit
		}
		return days(d)
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		"implementation": api.Name, "version": a.version, "conformance_level": api.ConformanceLevel, "backend": api.Backend,
		"max_batch_size": a.config.Server.MaxBatchSize, "max_workflow_depth": conf.Workflows.MaxDepth,
		"max_envelope_bytes": a.JobLimits.MaxJobBytes, "max_meta_bytes": job.MaxMetaBytes,
		"max_result_bytes": a.JobLimits.MaxJobBytes, "max_batch_bytes": conf.Server.MaxBatchBytes,
		// Durations are shown as ISO 8601 texts, as in jobs.
		"default_visibility_timeout": jsonread.FormatDuration(conf.Jobs.VisibilityTimeout),
		"default_timeout":            jsonread.FormatDuration(conf.Jobs.Timeout),
		"worker_dead_after":          jsonread.FormatDuration(a.Workers.DeadAfter()),
		"retention": map[string]any{
			"completed": kept(conf.Retention.Completed), "cancelled": kept(conf.Retention.Completed),
			"discarded": kept(conf.Retention.Discarded), "dead_letter": kept(conf.DeadLetter.MaxAge),
			"dead_letter_max_count": conf.DeadLetter.MaxCount, "events": kept(conf.Events.RetentionPeriod),
			"events_max_count": conf.Events.MaxCount,
		},
		"authentication": len(conf.Server.APIKeys) > 0, "grpc": conf.GRPC.Enabled(),
		"webhooks": a.config.Webhooks.Enabled, "test_reset": conf.Tests.EnableReset,
	})
}

// stages are what an enqueue passes, in this order.
// It is a description for tools, not configuration. Whoever changes the order of queue/enqueue.go changes it here, too.
var stages = []string{"trace_context", "authentication", "validation", "queue_admission", "unique", "depth_bound", "rate_limit", "insert",
	"events"}

// getMiddleware shows the stages in the form of the middleware endpoint of other servers, which let users add their own.
// Nothing can be added here, and nothing runs around the execution of a job, because workers are processes of their own.
func (a *API) getMiddleware(r *request) error {
	list := make([]object, len(stages))
	for i, name := range stages {
		list[i] = object{{"name", name}, {"phase", "enqueue"}, {"order", i + 1}}
	}
	return sendJSON(r, http.StatusOK, map[string]any{"enqueue": list, "execution": []object{}})
}

// Metrics are where the routes of docs/reference/observability.md, Metrics read from.
// Both functions may be nil together; the routes then do not exist.
type Metrics struct {
	// WriteText writes all series of this node in the text format of Prometheus, or as OpenMetrics 1.0.
	WriteText func(ctx context.Context, w io.Writer, openMetrics bool) error

	// Gauges are the figures of the whole deployment.
	Gauges func(ctx context.Context) (metrics.Gauges, error)
}

// Media types of /metrics. The bare one is for those who ask for exactly it and compare the whole header.
const (
	mediaOpenMetrics = "application/openmetrics-text"
	mediaText        = "text/plain"

	typeOpenMetrics = mediaOpenMetrics + "; version=1.0.0; charset=utf-8"
	typePrometheus  = mediaText + "; version=0.0.4; charset=utf-8"
)

// metricsRoutes has /metrics outside of the base path, where scrapers look for it. admit lets it through without a key unless the setting
// says otherwise.
func (a *API) metricsRoutes() []route {
	if a.metrics.WriteText == nil {
		return nil
	}
	return []route{
		{"GET", "//metrics", api.Operators, noBody, "", a.getMetrics},
		{"GET", "/metrics", api.Operators, noBody, "format", a.getMetricsSummary},
	}
}

// getMetrics is GET /metrics.
// The status is sent before the figures are read: WriteText leaves out what it cannot read and fails only if the connection
// does.
func (a *API) getMetrics(r *request) error {
	// The format follows Accept, and nothing is refused. OpenMetrics is chosen whenever it is named, whatever its weight: scrapers that
	// name it prefer it.
	kind, accept := typePrometheus, strings.Join(r.Request().Header["Accept"], ",")
	switch {
	case strings.Contains(strings.ToLower(accept), mediaOpenMetrics):
		kind = typeOpenMetrics
	case strings.EqualFold(strings.TrimSpace(accept), mediaText):
		kind = mediaText
	}
	h := r.Response().Header()
	h["Content-Type"] = []string{kind}
	h.Add("Vary", "Accept")
	r.Response().WriteHeader(http.StatusOK)
	if r.Request().Method == http.MethodHead {
		return nil
	}
	return a.metrics.WriteText(r.Request().Context(), r.Response(), kind == typeOpenMetrics)
}

// getMetricsSummary is GET /ojs/v1/metrics, for the CLI: figures of the whole deployment, but for the uptime, with rates over the last 60
// s. The gauges are shared with /metrics and may be as old as their interval. Totals are counters of the deployment, not of this node.
// jobs_failed_total counts discarded jobs. avg_latency_ms is the average run time of the jobs that completed in the last 60 s, 0 if none
// did.
func (a *API) getMetricsSummary(r *request) error {
	switch format := r.QueryParam("format"); format {
	case "prometheus":
		return a.getMetrics(r)
	case "", "json":
	default:
		return spec.InvalidRequest("format", "json or prometheus", format, "format must be json or prometheus.")
	}
	g, err := a.metrics.Gauges(r.Request().Context())
	if err != nil {
		return pg.ClientError(err)
	}
	// There is no total of active jobs among the gauges.
	active, latency := int64(0), 0.0
	for _, q := range g.Queues {
		active += q.Jobs[ojs.StateActive]
	}
	if g.Completed > 0 {
		latency = float64(g.Ran.Milliseconds()) / g.Completed
	}
	return sendJSON(r, http.StatusOK, object{
		{"uptime_seconds", int64(a.health.Uptime().Seconds())}, {"jobs_enqueued_total", g.EnqueuedTotal},
		{"jobs_completed_total", g.CompletedTotal},
		{"jobs_failed_total", g.DiscardedTotal}, {"jobs_active", active}, {"queues_active", g.QueuesActive},
		{"workers_active", g.WorkersActive},
		{"avg_latency_ms", latency}, {"throughput_per_second", g.Completed / 60},
	})
}
