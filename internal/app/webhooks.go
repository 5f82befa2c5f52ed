package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

// Webhooks are the settings of contract 40 §15. The zero value of a field means its default.
type Webhooks struct {
	// Disabled: this node neither shows subscriptions nor delivers. Other nodes may.
	Disabled bool

	// GenerateSecret makes a secret for a subscription that comes without.
	GenerateSecret bool

	// Rules say which URLs may be called.
	Rules egress.Rules

	// CAFile holds certificates, in PEM, that are trusted besides the system's.
	CAFile string

	// ProxyURL is the proxy that all requests go through.
	ProxyURL *url.URL

	// EncryptionKeys seal secrets, 32 bytes each, the current one first. None: secrets are stored in plain text.
	EncryptionKeys [][]byte

	// RotationOverlap is how long the previous secret stays valid. 24 h; below one second: not at all.
	RotationOverlap time.Duration

	// SignatureList puts the signatures of all valid secrets into X-OJS-Signature.
	SignatureList bool

	// RetrySchedule are the pauses before the second, third, … attempt; RetryJitter is the most that is added, as a share.
	// Eight attempts in 50 h 36 min, and 0.1; a negative jitter adds nothing.
	RetrySchedule []time.Duration
	RetryJitter   float64

	// GoneIsFailure treats 410 like other failures.
	GoneIsFailure bool

	// MaxRedirects, up to 3, are followed. 0.
	MaxRedirects int

	// DisableAfter is how long a subscription may fail. 120 h; negative: for ever.
	DisableAfter time.Duration

	// Workers is how many requests of this node run at a time. 100.
	Workers int

	// MaxSubscriptions is the most there may be. 100.
	MaxSubscriptions int32

	// DeliveryRetention is how long finished deliveries are shown. 168 h; negative: for ever.
	DeliveryRetention time.Duration
}

func (w Webhooks) validate() error {
	if _, err := readRoots(w.CAFile); err != nil {
		return err
	}
	switch {
	case w.MaxRedirects < 0 || w.MaxRedirects > 3:
		return fmt.Errorf("webhooks max redirects must be from 0 to 3, got %d", w.MaxRedirects)
	case w.Workers < 0 || w.MaxSubscriptions < 0:
		return errors.New("webhooks workers and max subscriptions must be at least 1")
	case !(w.RetryJitter <= 10): // nor NaN
		return fmt.Errorf("webhooks retry jitter must be from 0 to 10, got %g", w.RetryJitter)
	case w.ProxyURL != nil && (w.ProxyURL.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, w.ProxyURL.Scheme)):
		return fmt.Errorf("webhooks proxy url %q must be like http://host:3128; schemes are http, https and socks5", w.ProxyURL.Redacted())
	case slices.ContainsFunc(w.Rules.AllowedPorts, func(port int) bool { return port < 1 || port > 65535 }):
		return errors.New("webhooks allowed ports must be from 1 to 65535")
	case slices.ContainsFunc(w.Rules.AllowHosts, func(host string) bool { return host == "" || strings.ContainsAny(host, "/ @") }):
		return errors.New("webhooks allow hosts must be names or addresses such as hooks.internal, without scheme or port")
	case slices.ContainsFunc(w.Rules.AllowNetworks, func(p netip.Prefix) bool { return p.Addr().Is4In6() }):
		return errors.New("webhooks allow networks must be written as IPv4, such as 127.0.0.0/8, not mapped into IPv6")
	case w.RotationOverlap < 0 || w.RotationOverlap > maxConfigured:
		return fmt.Errorf("webhooks rotation overlap must be at most 36500 days, got %s", w.RotationOverlap)
	case slices.ContainsFunc(w.EncryptionKeys, func(key []byte) bool { return len(key) != 32 }):
		return errors.New("webhooks encryption key must be 32 bytes in base64, as `openssl rand -base64 32` prints them")
	case slices.ContainsFunc(w.RetrySchedule, func(d time.Duration) bool { return d < 0 || d > maxConfigured }):
		return errors.New("webhooks retry schedule must be a list of durations")
	}
	return nil
}

// buildWebhooks wires the dispatcher, if there is one on this node.
func (s *Server) buildWebhooks(archetype *baseservice.Archetype, tracer *tracing.Tracer) {
	w := s.config.Webhooks
	if w.Disabled {
		return
	}
	roots, _ := readRoots(w.CAFile) // validate has read it
	s.webhooks = webhook.NewDispatcher(archetype, s.store, webhook.Config{
		Rules: w.Rules, RootCAs: roots, ProxyURL: w.ProxyURL, RetrySchedule: w.RetrySchedule, RetryJitter: w.RetryJitter,
		SignatureList: w.SignatureList, GoneIsFailure: w.GoneIsFailure, MaxRedirects: w.MaxRedirects, Workers: w.Workers,
		Retention: w.DeliveryRetention, Service: s.config.Events.ServiceName, Version: s.config.Version, Tracer: tracer,
		Observer: webhook.Observer{Attempt: s.metrics.WebhookAttempt, Done: s.metrics.WebhookDone},
	})
	s.maker = webhook.NewMaker(archetype, s.store)
	s.listener.Handle("ojs_webhooks", func(payload string) {
		s.webhooks.Wake()
		if payload != "made" { // a subscription has changed, or something may have been missed
			s.maker.Wake()
		}
	})
	s.listener.OnPublished(func(p eventlog.Published) {
		s.maker.Published()
		if p.All { // perhaps for want of LISTEN
			s.webhooks.Wake()
			s.maker.Wake()
		}
	})
	s.services = append(s.services, s.webhooks, s.maker)
}

func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("webhooks ca file: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("webhooks ca file %s holds no certificate in PEM", file)
	}
	return roots, nil
}

// httpWebhooks are the settings that the HTTP interface needs.
func (s *Server) httpWebhooks() httpapi.Webhooks {
	w := s.config.Webhooks
	return httpapi.Webhooks{
		Disabled: w.Disabled, GenerateSecret: w.GenerateSecret, Rules: w.Rules,
		Test: func(ctx context.Context, hook *store.Webhook) (httpapi.WebhookTest, error) {
			res, err := s.webhooks.Test(ctx, hook)
			return httpapi.WebhookTest{
				DeliveryID: res.DeliveryID, Success: res.Success, StatusCode: res.Code, Error: res.Error, Body: res.Snippet, Duration: res.Duration,
			}, err
		},
	}
}

// warnWebhooks says what is fine for development only.
func (s *Server) warnWebhooks(ctx context.Context) {
	w := s.config.Webhooks
	if w.Disabled {
		return
	}
	if w.Rules.AllowHTTP {
		s.config.Logger.WarnContext(ctx, "webhooks may be sent over plain http: anybody on the way can read and change them")
	}
	if len(w.EncryptionKeys) == 0 {
		s.config.Logger.WarnContext(ctx, "webhook secrets are stored in plain text; set OJS_WEBHOOKS_ENCRYPTION_KEY to seal them")
	}
}
