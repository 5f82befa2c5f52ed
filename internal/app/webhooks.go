package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/webhook/egress"
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
func (n *Node) httpWebhooks() httpapi.Webhooks {
	w := n.config.Webhooks
	return httpapi.Webhooks{
		Enabled: w.Enabled, Rules: w.Rules,
		Test: func(ctx context.Context, hook *webhook.Webhook) (httpapi.WebhookTest, error) {
			res, err := n.webhooks.Test(ctx, hook)
			return httpapi.WebhookTest{
				DeliveryID: res.DeliveryID, Success: res.Success, StatusCode: res.Code, Error: res.Error, Body: res.Snippet, Duration: res.Duration,
			}, err
		},
	}
}
