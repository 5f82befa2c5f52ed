package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// probeTimeout bounds a health check's look at the database, probeShare how long its result serves everybody, countShare
// how long the counts do.
const (
	probeTimeout = time.Second
	probeShare   = time.Second
	countShare   = 10 * time.Second
	slowPing     = 500 * time.Millisecond
)

type health struct {
	store      *store.Store
	components func() map[string]string
	reset      func(ctx context.Context) error
	draining   atomic.Bool

	mu     sync.Mutex
	at     time.Time
	latest probeResult

	countedAt       time.Time
	queues, workers map[string]int64 // never changed, only replaced
}

type probeResult struct {
	err     error
	latency time.Duration
	now     time.Time
	queues  map[string]int64
	workers map[string]int64
}

// probe asks the database at most once a second, whoever asks.
func (h *health) probe(ctx context.Context) probeResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < probeShare {
		return h.latest
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	start := time.Now()
	now, err := h.store.Ping(ctx)
	h.latest = probeResult{err: err, latency: time.Since(start), now: now}
	if err == nil {
		h.count(ctx)
		h.latest.queues, h.latest.workers = h.queues, h.workers
	}
	h.at = time.Now()
	return h.latest
}

// count keeps what it last knew while the counts cannot be read.
func (h *health) count(ctx context.Context) {
	if !h.countedAt.IsZero() && time.Since(h.countedAt) < countShare {
		return
	}
	queues, err := h.store.QueueTotals(ctx)
	if err != nil {
		return
	}
	workers, err := h.store.WorkerTotals(ctx)
	if err != nil {
		return
	}
	live := workers.Total - workers.Stale
	h.queues = map[string]int64{"total": queues.Total, "active": queues.Active, "paused": queues.Paused}
	h.workers = map[string]int64{"total": workers.Total, "active": live, "connected": live, "stale": workers.Stale}
	h.countedAt = time.Now()
}

func (a *API) getHealth(c echo.Context) error {
	p := a.health.probe(c.Request().Context())
	components := a.health.components()
	backend := map[string]any{"type": "postgres", "status": "ok", "connection": "connected", "latency_ms": p.latency.Milliseconds()}
	body := map[string]any{
		"status": "ok", "version": "1.0", "server_version": a.config.Version, "uptime_seconds": int64(time.Since(a.started).Seconds()),
		"timestamp": ojs.FormatTime(time.Now()), "backend": backend, "components": components,
	}
	status := http.StatusOK
	switch {
	case p.err != nil:
		status = http.StatusServiceUnavailable
		body["status"], backend["status"], backend["connection"] = "unhealthy", "unhealthy", "disconnected"
		backend["error"] = "The database cannot be reached."
		c.Response().Header().Set("Retry-After", "1")
	case p.latency > slowPing:
		backend["status"] = "degraded"
	}
	if p.err == nil {
		body["timestamp"] = ojs.FormatTime(p.now)
		body["queues"], body["workers"] = p.queues, p.workers
		for _, state := range components {
			if state != "ok" {
				body["status"] = "degraded"
			}
		}
	}
	return sendJSON(c, status, body)
}

func (a *API) getReady(c echo.Context) error {
	p := a.health.probe(c.Request().Context())
	checks := map[string]string{"database": "ok", "migrations": "ok", "draining": "no"}
	ready := true
	if p.err != nil {
		checks["database"], ready = "unreachable", false
	}
	if a.health.draining.Load() {
		checks["draining"], ready = "yes", false
	}
	for name, state := range a.health.components() {
		checks[name] = state
	}
	if !ready {
		c.Response().Header().Set("Retry-After", "1")
		return sendJSON(c, http.StatusServiceUnavailable, map[string]any{"status": "not_ready", "checks": checks})
	}
	return sendJSON(c, http.StatusOK, map[string]any{"status": "ready", "checks": checks})
}

func (a *API) getAlive(c echo.Context) error {
	return sendJSON(c, http.StatusOK, map[string]any{"status": "ok"})
}

func (a *API) postReset(c echo.Context) error {
	if err := a.health.reset(c.Request().Context()); err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"reset": true})
}

func sendJSON(c echo.Context, status int, body any) error {
	out, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return send(c, status, out)
}

// getManifest tells what is really enabled (contract 10 §13.1, 40 §4).
func (a *API) getManifest(c echo.Context) error {
	base := a.config.PublicURL
	if base == "" {
		base = c.Scheme() + "://" + c.Request().Host
	}
	limits := a.config.Limits
	return sendJSON(c, http.StatusOK, map[string]any{
		"specversion": "1.0", "ojs_version": "1.0",
		"implementation":    map[string]string{"name": "ojsd", "version": a.config.Version, "language": "go", "homepage": "https://github.com/ojsd/ojsd"},
		"conformance_level": 2, "conformance_tier": "runtime", "protocols": []string{"http"}, "backend": "postgres",
		"capabilities": map[string]bool{
			"batch_enqueue": true, "cron": true, "cron_jobs": true, "dead_letter": true, "delayed_jobs": true, "job_ttl": true,
			"priority_queues": true, "rate_limiting": false, "schema_validation": false, "unique_jobs": false, "workflows": false,
			"pause_resume": false, "bulk_operations": true, "events": true, "webhooks": !a.webhooks.Disabled, "realtime": true, "grpc": false,
		},
		"extensions": a.extensions(),
		"endpoints": map[string]string{
			"base_url": base + "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health", "events": "/ojs/v1/events",
			"events_stream": "/ojs/v1/events/stream", "websocket": "/ojs/v1/ws", "webhooks": "/ojs/v1/webhooks",
			"metrics": "/metrics",
		},
		"schema_validation": false, "unique_job_strength": "none", "test_suite_version": "1.0.0",
		"payload_limits": map[string]any{
			"max_envelope_bytes": a.envelopeBytes(), "max_meta_bytes": orDefault(limits.MaxMetaBytes, 65_536), "max_queue_name_bytes": 128,
			"max_job_type_bytes": 255, "max_batch_size": a.maxItems(), "max_result_bytes": a.resultBytes(),
			"supported_compression": []string{"gzip"}, "external_references": true, "chunking": false, "per_queue_limits": false,
		},
		"events": map[string]any{
			"delivery_guarantee": "at_least_once", "ordering": "per_subject", "retention_period": a.config.EventRetention.String(),
			"max_count": a.config.EventMaxCount, "transports": a.transports(),
		},
	})
}

// transports are the ways in which events reach clients.
func (a *API) transports() []string {
	list := []string{"notify", "poll", "sse", "websocket"}
	if !a.webhooks.Disabled {
		list = append(list, "webhook")
	}
	return list
}

func (a *API) extensions() []string {
	list := []string{
		"urn:ojs:ext:bulk-operations", "urn:ojs:ext:payload-limits", "urn:ojs:ext:observability", "urn:ojs:ext:logging", "urn:ojs:ext:progress", "urn:ojs:ext:realtime",
		"urn:ojsd:ext:long-polling", "urn:ojsd:ext:batch-ack",
	}
	if !a.webhooks.Disabled {
		list = append(list, "urn:ojs:ext:webhooks")
	}
	return list
}

func orDefault(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}
