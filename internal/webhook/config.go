// Package webhook owns subscriptions, their secrets and their deliveries (docs/reference/webhooks.md). FanOut creates
// deliveries from the event log; Dispatcher claims due ones, signs and sends them, and records the outcomes.
//
// It must never change a job, send before the claim is committed, or call an address that package egress does not allow.
//
// A delivery is pending when FanOut has created it. A claim makes it delivering, with a lease and a number; the request is
// made outside of any transaction; the outcome makes it delivered, failed, with a next time, or dead. A lease that ends
// without an outcome makes it claimable again. So each delivery is sent at least once, and possibly more often, always under the same id.
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

// Fixed values of Config.
const (
	// Workers is a number of requests, each of which takes a goroutine, a connection and up to 64 KiB of a response.
	Workers = 100 // requests of a node at a time: more need more nodes
	// RetryJitter only lengthens a pause (docs/reference/webhooks.md, Retry table).
	RetryJitter = 0.1 // spreads the retries of deliveries that failed at the same time
)

const (
	// disableAfter is how long a subscription may fail before a delivery that is given up disables it. It is longer than the
	// outage of a long weekend, and about twice as long as the default retry schedule tries one delivery (51 h). Both
	// conditions must hold: time alone would disable a subscription that rarely has events.
	disableAfter = 5 * 24 * time.Hour

	// deliveryRetention is how long finished deliveries can be listed and replayed: as long as events by default, because a
	// delivery shows the event that it sent. It is counted from the end of a delivery.
	deliveryRetention = 7 * 24 * time.Hour
)

// Config holds the settings of a dispatcher. Values are not validated here.
type Config struct {
	// Rules say which addresses may be called.
	Rules egress.Rules

	// RootCAs verify endpoints. nil: the system's.
	RootCAs *x509.CertPool

	// ProxyURL is the proxy that all requests go through. nil: none; the environment's proxies are not used.
	ProxyURL *url.URL

	// RetrySchedule are the pauses before the second, third, … attempt. Its length plus one is the number of attempts.
	// Empty: one attempt.
	RetrySchedule []time.Duration

	// RetryJitter is the most that is added to a pause, as a share of it.
	RetryJitter float64

	// Workers is how many requests of this node run at a time.
	Workers int

	// Service is the {service} of the source of test events.
	Service string

	// Version of the server, for User-Agent.
	Version string

	// LookUp resolves host names. nil: the system's resolver.
	LookUp func(ctx context.Context, host string) ([]netip.Addr, error)

	// Observer counts attempts.
	Observer Observer

	// Tracer makes a span of every attempt. nil: none.
	Tracer *tracing.Tracer
}

// Observer counts attempts and deliveries. Its functions must not block; nil ones are not called. They are called after the
// outcome was recorded, from the goroutines of the requests, several at a time.
type Observer struct {
	// Attempt is called when an attempt has ended with status success, failed or dead.
	Attempt func(eventType, webhook, status string, took time.Duration)

	// Done is called when a delivery has ended, with the number of its retries.
	Done func(eventType string, retries int)
}

// Functions that do nothing save a test for nil at each call.
func (c Config) withDefaults() Config {
	if c.Observer.Attempt == nil {
		c.Observer.Attempt = func(string, string, string, time.Duration) {}
	}
	if c.Observer.Done == nil {
		c.Observer.Done = func(string, int) {}
	}
	return c
}
