// Package webhook sends what the relay has put into the delivery table: it claims due deliveries, signs and posts them, and
// records what came of it (docs/reference/webhooks.md). It never touches a job, never sends before its claim is committed, and never
// calls an address that package egress does not admit.
package webhook

import (
	"context"
	"crypto/x509"
	"net/netip"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

// What no setting changes.
const (
	Workers     = 100 // requests of a node at a time: more need more nodes
	RetryJitter = 0.1 // so that what failed together does not come back together
)

// Config holds what a dispatcher decides by. Values are taken as they are.
type Config struct {
	// Rules say what may be called.
	Rules egress.Rules

	// RootCAs verify endpoints. nil: the system's.
	RootCAs *x509.CertPool

	// ProxyURL is the proxy that all requests go through. nil: none; the environment's proxies are not used.
	ProxyURL *url.URL

	// RetrySchedule are the pauses before the second, third, … attempt.
	RetrySchedule []time.Duration

	// RetryJitter is the most that is added to a pause, as a share of it.
	RetryJitter float64

	// Workers is how many requests of this node run at a time.
	Workers int

	// Retention is how long finished deliveries stay in the log; 0: for ever.
	Retention time.Duration

	// Service is the {service} of the source of test events.
	Service string

	// Version of the server, for User-Agent.
	Version string

	// LookUp resolves host names. nil: the system's resolver.
	LookUp func(ctx context.Context, host string) ([]netip.Addr, error)

	// Observer is told of every attempt.
	Observer Observer

	// Tracer makes a span of every attempt. nil: none.
	Tracer *tracing.Tracer
}

// Observer counts. Its functions must not block; nil ones are not called.
type Observer struct {
	// Attempt has ended with status success, failed or dead.
	Attempt func(eventType, webhook, status string, took time.Duration)

	// Done: a delivery has ended, after so many retries.
	Done func(eventType string, retries int)
}

func (c Config) withDefaults() Config {
	if c.Observer.Attempt == nil {
		c.Observer.Attempt = func(string, string, string, time.Duration) {}
	}
	if c.Observer.Done == nil {
		c.Observer.Done = func(string, int) {}
	}
	return c
}
