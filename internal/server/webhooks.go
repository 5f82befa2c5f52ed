package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/egress"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/httpapi"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/internal/tracing"
	"github.com/ojsd/ojsd/internal/webhook"
)

// Webhooks are the settings of webhooks.
type Webhooks struct {
	// Enabled: this node shows subscriptions and delivers. Other nodes may, whatever this one does.
	Enabled bool

	// Rules say which URLs may be called.
	Rules egress.Rules

	// CAFile holds certificates, in PEM, that are trusted besides the system's.
	CAFile string

	// ProxyURL is the proxy that all requests go through.
	ProxyURL *url.URL

	// EncryptionKeys seal secrets, 32 bytes each, the current one first. None: secrets are stored in plain text.
	EncryptionKeys [][]byte

	// RetrySchedule are the pauses before the second, third, … attempt; RetryJitter is the most that is added, as a share.
	// RetryJitter is no setting.
	RetrySchedule []time.Duration
	RetryJitter   float64

	// DisableAfter is how long a subscription may fail. 0: for ever.
	DisableAfter time.Duration

	// Workers is how many requests of this node run at a time. No setting.
	Workers int

	// MaxSubscriptions is the most there may be.
	MaxSubscriptions int32

	// DeliveryRetention is how long finished deliveries are shown. 0: for ever.
	DeliveryRetention time.Duration
}

// buildWebhooks wires the dispatcher, if there is one on this node.
func (s *Server) buildWebhooks(archetype *baseservice.Archetype, tracer *tracing.Tracer) error {
	w := s.config.Webhooks
	if !w.Enabled {
		return nil
	}
	roots, err := readRoots(w.CAFile)
	if err != nil {
		return err
	}
	s.webhooks = webhook.NewDispatcher(archetype, s.store, webhook.Config{
		Rules: w.Rules, RootCAs: roots, ProxyURL: w.ProxyURL, RetrySchedule: w.RetrySchedule, RetryJitter: w.RetryJitter,
		Workers:   w.Workers,
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
	return nil
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
		Enabled: w.Enabled, Rules: w.Rules,
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
	if !w.Enabled {
		return
	}
	if w.Rules.AllowHTTP {
		s.config.Logger.WarnContext(ctx, "webhooks may be sent over plain http: anybody on the way can read and change them")
	}
	if len(w.EncryptionKeys) == 0 {
		s.config.Logger.WarnContext(ctx, "webhook secrets are stored in plain text; set OJS_WEBHOOKS_ENCRYPTION_KEY to seal them")
	}
}
