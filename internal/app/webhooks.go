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
// Subscriptions and deliveries are shared by all nodes; these settings are those of one.
type Webhooks struct {
	// Enabled makes this node serve subscriptions and send deliveries. It does not affect other nodes.
	Enabled bool

	// Rules say which URLs may be called.
	Rules egress.Rules

	// CAFile contains certificates in PEM that are trusted besides the system's.
	CAFile string

	// ProxyURL is the proxy that all requests go through.
	ProxyURL *url.URL

	// EncryptionKeys encrypt secrets, 32 bytes each, the current one first. None: secrets are stored in plain text.
	EncryptionKeys [][]byte

	// RetrySchedule are the pauses before the second, third, … attempt. RetryJitter, which is not a setting, is the largest
	// random part that is added to a pause, as a share of it.
	RetrySchedule []time.Duration
	RetryJitter   float64

	// Workers is how many requests of this node run at a time. No setting.
	Workers int

	// MaxSubscriptions is the largest number of subscriptions.
	MaxSubscriptions int32
}

// The file is read once. Without a certificate pool of the system those of the file are all.
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
		return nil, fmt.Errorf("webhooks ca file %s contains no certificate in PEM", file)
	}
	return roots, nil
}

// httpWebhooks is what the HTTP interface needs of webhooks.
// Test is called only if webhooks are enabled, so n.webhooks is not nil then.
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
