package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/tenant"
)

// systemRoutes need no key (public).
func (a *API) systemRoutes() []route {
	return []route{
		{"GET", "//ojs/manifest", everybody, noBody, "", a.getManifest},
		{"GET", "/health", everybody, noBody, "", a.getHealth},
		{"GET", "//health", everybody, noBody, "", a.getHealth},
		{"GET", "//ready", everybody, noBody, "", a.getReady},
		{"GET", "//readyz", everybody, noBody, "", a.getReady},
		{"GET", "//healthz", everybody, noBody, "", a.getAlive},
		{"GET", "//livez", everybody, noBody, "", a.getAlive},
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

// getReady is 503 while the node stops, before any request is refused, so that a load balancer can move traffic away.
func (a *API) getReady(r *request) error {
	ready, checks := a.health.Ready(r.Request().Context())
	if !ready {
		r.Response().Header().Set("Retry-After", "1")
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
	base := a.config.PublicURL
	if base == "" {
		// Behind a proxy this is only right if the proxy passes Host and X-Forwarded-Proto on; PublicURL is for all others.
		base = r.Scheme() + "://" + r.Request().Host
	}
	// They are those without a tenant.
	limits := a.config.Limits
	return sendJSON(r, http.StatusOK, map[string]any{
		"specversion": api.SpecVersion, "ojs_version": api.SpecVersion,
		"implementation":    map[string]string{"name": api.Name, "version": a.config.Version, "language": api.Language, "homepage": "https://github.com/ojsd/ojsd"},
		"conformance_level": api.ConformanceLevel, "conformance_tier": "runtime", "protocols": api.Protocols(a.config.GRPC), "backend": api.Backend,
		"capabilities": map[string]bool{
			"batch_enqueue": true, "cron": true, "cron_jobs": true, "dead_letter": true, "delayed_jobs": true, "fair_scheduling": true, "job_ttl": true,
			"priority_queues": true, "rate_limiting": true, "schema_validation": true, "unique_jobs": true, "workflows": true,
			"pause_resume": true, "bulk_operations": true, "events": true, "webhooks": a.webhooks.Enabled, "realtime": true, "grpc": a.config.GRPC, "multi_tenancy": a.config.Tenancy != tenant.Off,
		},
		"extensions":        api.Extensions(a.webhooks.Enabled),
		"endpoints":         a.endpoints(base),
		"schema_validation": true, "unique_job_strength": "strong", "test_suite_version": "1.0.0",
		"payload_limits": map[string]any{
			"max_envelope_bytes": a.config.Limits.Envelope(), "max_meta_bytes": limits.Meta(), "max_queue_name_bytes": 128,
			"max_job_type_bytes": 255, "max_batch_size": a.maxItems(), "max_result_bytes": a.config.Limits.Result(),
			"supported_compression": []string{"gzip"}, "external_references": true, "chunking": false, "per_queue_limits": false,
		},
		// These promises are docs/reference/events.md, Guarantees.
		"events": map[string]any{
			"delivery_guarantee": "at_least_once", "ordering": "per_subject", "retention_period": hours(a.config.EventRetention),
			"max_count": a.config.EventMaxCount, "transports": a.transports(),
		},
	})
}

// Only base_url is absolute; the others are paths, as the specification has them.
func (a *API) endpoints(base string) map[string]string {
	endpoints := map[string]string{
		"base_url": base + "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health", "events": "/ojs/v1/events",
		"queues": "/ojs/v1/queues", "workflows": "/ojs/v1/workflows", "events_stream": "/ojs/v1/events/stream", "websocket": "/ojs/v1/ws", "metrics": "/metrics",
	}
	if a.webhooks.Enabled {
		endpoints["webhooks"] = "/ojs/v1/webhooks"
	}
	return endpoints
}

// transports are the ways in which events reach clients.
// notify is LISTEN in SQL.
func (a *API) transports() []string {
	list := []string{"notify", "poll", "sse", "websocket"}
	if a.config.GRPC {
		list = append(list, "grpc")
	}
	if a.webhooks.Enabled {
		list = append(list, "webhook")
	}
	return list
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
