// Package webhook sends what the relay has put into the delivery table: it claims due deliveries, signs and posts them, and
// records what came of it (contract 40 §9). It never touches a job, never sends before its claim is committed, and never
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

// Config holds what a dispatcher decides by. The zero value of a field means its default.
type Config struct {
	// Rules say what may be called.
	Rules egress.Rules

	// RootCAs verify endpoints. nil: the system's.
	RootCAs *x509.CertPool

	// ProxyURL is the proxy that all requests go through. nil: none; the environment's proxies are not used.
	ProxyURL *url.URL

	// RetrySchedule are the pauses before the second, third, … attempt. 1 min, 5 min, 30 min, 2 h, 8 h, 16 h, 24 h.
	RetrySchedule []time.Duration

	// RetryJitter is the most that is added to a pause, as a share of it. 0.1; negative: nothing.
	RetryJitter float64

	// SignatureList puts the signatures of all valid secrets into X-OJS-Signature, separated by commas.
	SignatureList bool

	// GoneIsFailure treats the answer 410 like any other failure, instead of disabling the subscription.
	GoneIsFailure bool

	// MaxRedirects, 0 to 3, are followed if they keep method and body. 0.
	MaxRedirects int

	// Workers is how many requests of this node run at a time. 100.
	Workers int

	// Retention is how long finished deliveries stay in the log; negative: for ever. 168 h.
	Retention time.Duration

	// Service is the {service} of the source of test events. ojs.
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

// defaultSchedule is the table of contract 40 §9.7, which has eight attempts.
var defaultSchedule = []time.Duration{
	time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 8 * time.Hour, 16 * time.Hour, 24 * time.Hour,
}

func (c Config) withDefaults() Config {
	if c.RetrySchedule == nil {
		c.RetrySchedule = defaultSchedule
	}
	if c.RetryJitter == 0 {
		c.RetryJitter = 0.1
	}
	c.RetryJitter = max(c.RetryJitter, 0)
	if c.Workers == 0 {
		c.Workers = 100
	}
	if c.Retention == 0 {
		c.Retention = 168 * time.Hour
	}
	if c.Service == "" {
		c.Service = "ojs"
	}
	if c.Observer.Attempt == nil {
		c.Observer.Attempt = func(string, string, string, time.Duration) {}
	}
	if c.Observer.Done == nil {
		c.Observer.Done = func(string, int) {}
	}
	return c
}
