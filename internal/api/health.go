package api

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/clock"
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

// The states of a node (docs/reference/observability.md, Health).
const (
	Healthy   = "ok"
	Off       = "off" // of a component that this node does without
	Degraded  = "degraded"
	Unhealthy = "unhealthy"

	readOnly = "read_only" // of the database
)

// Health tells how the node is. Use NewHealth.
type Health struct {
	version    string
	look       func(ctx context.Context) Look
	components func() map[string]string
	started    time.Time
	draining   atomic.Bool

	mu     sync.Mutex
	at     time.Time
	latest Look
}

// Look is what a look at the database gave.
type Look struct {
	Err             error
	ReadOnly        bool // a standby, or a primary that was demoted
	Latency         time.Duration
	Now             time.Time // by the database's clock
	Queues, Workers map[string]int64
}

// NewHealth returns the health of a node that has just started. look asks the database; components gives the state of the
// node's services by name: ok, degraded or another word.
func NewHealth(version string, look func(ctx context.Context) Look, components func() map[string]string) *Health {
	return &Health{version: version, look: look, components: components, started: time.Now()}
}

// LookAt is the look of NewHealth at the database. It is for one Health, which calls it once at a time. ping reads the clock
// of the database on a connection of its own: a node whose connections all wait is slow, not unhealthy.
func LookAt(d Domains, ping func(ctx context.Context) (now time.Time, readOnly bool, err error)) func(ctx context.Context) Look {
	var c counts
	return func(ctx context.Context) Look {
		start := time.Now()
		now, readOnly, err := ping(ctx)
		look := Look{Err: err, ReadOnly: readOnly, Latency: time.Since(start), Now: now}
		if err == nil {
			c.read(ctx, d)
			look.Queues, look.Workers = c.queues, c.workers
		}
		return look
	}
}

// counts cost more than a ping and are read less often.
type counts struct {
	at              time.Time
	queues, workers map[string]int64 // never changed, only replaced
}

// read keeps what it last knew while the counts cannot be read.
func (c *counts) read(ctx context.Context, d Domains) {
	if !c.at.IsZero() && time.Since(c.at) < countShare {
		return
	}
	queues, err := d.Jobs.QueueGetTotals(ctx)
	if err != nil {
		return
	}
	workers, err := d.Workers.Totals(ctx)
	if err != nil {
		return
	}
	live := workers.Total - workers.Stale
	c.queues = map[string]int64{"total": queues.Total, "active": queues.Active, "paused": queues.Paused}
	c.workers = map[string]int64{"total": workers.Total, "active": live, "connected": live, "stale": workers.Stale}
	c.at = time.Now()
}

// Uptime is how long the node runs.
func (h *Health) Uptime() time.Duration { return time.Since(h.started) }

// SetDraining makes readiness fail, so that traffic goes elsewhere.
func (h *Health) SetDraining() { h.draining.Store(true) }

// probe asks the database at most once a second, whoever asks.
func (h *Health) probe(ctx context.Context) Look {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < probeShare {
		return h.latest
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	h.latest = h.look(ctx)
	h.at = time.Now()
	return h.latest
}

// Report is the detailed health (docs/reference/observability.md, Health): Healthy, Degraded or Unhealthy, when, and all of it as JSON.
func (h *Health) Report(ctx context.Context) (status string, at time.Time, body map[string]any) {
	p := h.probe(ctx)
	components := h.components()
	backend := map[string]any{"type": Backend, "status": Healthy, "connection": "connected", "latency_ms": p.Latency.Milliseconds()}
	status, at = Healthy, p.Now
	body = map[string]any{
		"version": SpecVersion, "server_version": h.version, "uptime_seconds": int64(h.Uptime().Seconds()),
		"backend": backend, "components": components,
	}
	switch {
	case p.Err != nil:
		status, at = Unhealthy, clock.Now()
		backend["status"], backend["connection"] = Unhealthy, "disconnected"
		backend["error"] = "The database cannot be reached."
	case p.ReadOnly:
		status = Unhealthy
		backend["status"], backend["connection"] = Unhealthy, readOnly
		backend["error"] = "The database is read-only: it is a standby, or default_transaction_read_only is on."
	case p.Latency > slowPing:
		backend["status"] = Degraded
	}
	if p.Err == nil {
		body["queues"], body["workers"] = p.Queues, p.Workers
		for _, state := range components {
			if status == Healthy && state != Healthy && state != Off {
				status = Degraded
			}
		}
	}
	body["status"], body["timestamp"] = status, ojs.FormatTime(at)
	return status, at, body
}

// Ready tells whether the node may receive traffic, and why not.
func (h *Health) Ready(ctx context.Context) (ready bool, checks map[string]string) {
	p := h.probe(ctx)
	checks = map[string]string{"database": "ok", "migrations": "ok", "draining": "no"}
	ready = true
	switch {
	case p.Err != nil:
		checks["database"], ready = "unreachable", false
	case p.ReadOnly:
		checks["database"], ready = readOnly, false
	}
	if h.draining.Load() {
		checks["draining"], ready = "yes", false
	}
	maps.Copy(checks, h.components())
	return ready, checks
}
