package api

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/spec"
)

// What every manifest says (docs/reference/http.md, Manifest).
// ConformanceLevel is the highest level of the specification; raise it only with the tests of that level.
const (
	Name             = "ojsd"
	Language         = "go"
	Backend          = "postgres"
	SpecVersion      = "1.0"
	ConformanceLevel = 4
)

// Extensions are the optional parts of the specification, and our own, that this node has.
// HTTP and gRPC announce the same list.
func Extensions(webhooks bool) []string {
	list := []string{
		"admin-api", "urn:ojs:ext:admin-api", "urn:ojs:ext:queue-config", "urn:ojs:ext:rate-limiting", "urn:ojs:ext:backpressure",
		"urn:ojs:ext:bulk-operations", "urn:ojs:ext:fair-scheduling", "urn:ojs:ext:payload-limits", "urn:ojs:ext:observability",
		"urn:ojs:ext:logging", "urn:ojs:ext:progress",
		"urn:ojs:ext:realtime", "urn:ojsd:ext:long-polling", "urn:ojsd:ext:batch-ack", "urn:ojsd:ext:requeue-delay",
		"urn:ojsd:ext:retry-delay", "urn:ojsd:ext:dry-run",
	}
	if webhooks {
		list = append(list, "urn:ojs:ext:webhooks")
	}
	return list
}

// Protocols are the ways to talk to this node.
func Protocols(grpc bool) []string {
	if grpc {
		return []string{"http", "grpc"}
	}
	return []string{"http"}
}

// probeTimeout bounds a health check's look at the database, probeShare how long its result serves everybody, countShare
// how long the counts do.
// probeTimeout and probeShare keep probes from loading a database that is slow: however many there are, one look per second
// runs. slowPing is what health calls degraded. countShare is longer, because the counts read tables.
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
// mu is held during a look, so concurrent probes wait for it, up to probeTimeout, and share its result.
type Health struct {
	version string
	look    func(ctx context.Context) Look
	// components must not block: it is called for each report.
	components func() map[string]string
	started    time.Time
	draining   atomic.Bool

	mu sync.Mutex
	// at is when latest was read, by the clock of the process; zero: never.
	at     time.Time
	latest Look
}

// Look is what a look at the database gave.
// With Err, Now and the counts mean nothing.
type Look struct {
	Err      error
	ReadOnly bool // a standby, or a primary that was demoted
	Latency  time.Duration
	Now      time.Time // by the database's clock
	// The counts may be 10 s old, and older while they cannot be read.
	Queues, Workers map[string]int64
}

// NewHealth returns the health of a node that has just started. look asks the database; components gives the state of the
// node's services by name: ok, degraded or another word.
// It asks nothing yet.
func NewHealth(version string, look func(ctx context.Context) Look, components func() map[string]string) *Health {
	return &Health{version: version, look: look, components: components, started: time.Now()}
}

// LookAt is the look of NewHealth at the database. It is for one Health, which calls it once at a time. ping reads the clock
// of the database on a connection of its own: a node whose connections all wait is slow, not unhealthy.
// The counts use the pool of the node, with its wait for a connection; an error of theirs is not one of the look.
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
// Only the look uses it, which Health calls once at a time.
type counts struct {
	at              time.Time
	queues, workers map[string]int64 // never changed, only replaced
}

// read keeps what it last knew while the counts cannot be read.
// The maps are handed out and therefore replaced whole.
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
// It cannot be undone.
func (h *Health) SetDraining() { h.draining.Store(true) }

// probe asks the database at most once a second, whoever asks.
// The context of the first caller does not end the look, because others wait for it.
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
// A degraded component does not make the node unhealthy: it still serves.
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
		// There is no time of the database; the clock that follows it is the next best.
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
	body["status"], body["timestamp"] = status, spec.FormatTime(at)
	return status, at, body
}

// Ready tells whether the node may receive traffic, and why not.
// A degraded component does not fail readiness, or all nodes would leave the load balancer together when, for example, LISTEN
// is down.
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
