package main

import (
	"encoding/base64"
	"errors"
	"net/netip"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

type webhookSettings struct {
	Enabled           bool           `env:"OJS_WEBHOOKS_ENABLED" default:"true" negatable:"" help:"Subscriptions and deliveries on this node."`
	GenerateSecret    bool           `env:"OJS_WEBHOOKS_GENERATE_SECRET" help:"A subscription may come without a secret and gets one."`
	AllowHTTP         bool           `name:"allow-http" env:"OJS_WEBHOOKS_ALLOW_HTTP" help:"Accept http URLs besides https. For development only."`
	AllowNetworks     []netip.Prefix `env:"OJS_WEBHOOKS_ALLOW_NETWORKS" placeholder:"CIDR,…" help:"Private networks that webhooks may be sent to."`
	AllowHosts        []string       `env:"OJS_WEBHOOKS_ALLOW_HOSTS" placeholder:"HOST,…" help:"Private host names that webhooks may be sent to, exact."`
	AllowedPorts      []int          `env:"OJS_WEBHOOKS_ALLOWED_PORTS" placeholder:"PORT,…" help:"The only ports that webhooks may be sent to. Empty: any."`
	CAFile            string         `name:"ca-file" env:"OJS_WEBHOOKS_CA_FILE" placeholder:"FILE" help:"Certificates in PEM that endpoints may be signed by, besides the system's."`
	ProxyURL          *url.URL       `env:"OJS_WEBHOOKS_PROXY_URL" placeholder:"URL" help:"Proxy for all webhook requests; those of the environment are not used."`
	EncryptionKey     []sealKey      `env:"OJS_WEBHOOKS_ENCRYPTION_KEY" placeholder:"KEY,…" help:"32 bytes in base64 that seal webhook secrets in the database; to change it: NEW,OLD. Empty: plain text."`
	RotationOverlap   span           `env:"OJS_WEBHOOKS_ROTATION_OVERLAP" default:"24h" placeholder:"DURATION" help:"How long the previous secret stays valid after a rotation; 0: not at all."`
	SignatureList     bool           `env:"OJS_WEBHOOKS_SIGNATURE_LIST" help:"X-OJS-Signature lists the signatures of all valid secrets."`
	RetrySchedule     []span         `env:"OJS_WEBHOOKS_RETRY_SCHEDULE" default:"1m,5m,30m,2h,8h,16h,24h" placeholder:"DURATION,…" help:"Pauses before the second, third, … attempt; after the last one a delivery is given up. A leading 0 stands for the first attempt."`
	RetryJitter       float64        `env:"OJS_WEBHOOKS_RETRY_JITTER" default:"0.1" placeholder:"SHARE" help:"The most that is added to a pause, as a share of it, up to 10."`
	GoneDisables      bool           `env:"OJS_WEBHOOKS_GONE_DISABLES" default:"true" negatable:"" help:"The answer 410 disables a subscription."`
	MaxRedirects      int            `env:"OJS_WEBHOOKS_MAX_REDIRECTS" default:"0" placeholder:"N" help:"Redirects 307 and 308 that are followed, 0 to 3."`
	DisableAfter      span           `env:"OJS_WEBHOOKS_DISABLE_AFTER" default:"120h" placeholder:"DURATION" help:"How long a subscription may fail before a delivery that is given up disables it; 0: never."`
	Workers           int            `env:"OJS_WEBHOOKS_WORKERS" default:"100" placeholder:"N" help:"Webhook requests that this node makes at a time."`
	MaxSubscriptions  int32          `env:"OJS_WEBHOOKS_MAX_SUBSCRIPTIONS" default:"100" placeholder:"N" help:"The most subscriptions."`
	DeliveryRetention span           `env:"OJS_WEBHOOKS_DELIVERY_RETENTION" default:"168h" placeholder:"DURATION" help:"How long finished deliveries stay in the log; negative: for ever."`
}

// sealKey is 32 bytes in base64. It never prints itself.
type sealKey []byte

// UnmarshalText is what kong calls.
func (k *sealKey) UnmarshalText(text []byte) error {
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if key, err := encoding.DecodeString(string(text)); err == nil && len(key) == 32 {
			*k = key
			return nil
		}
	}
	return errors.New("a webhook encryption key must be 32 bytes in base64, as `openssl rand -base64 32` prints them")
}

// String keeps the key out of messages.
func (k sealKey) String() string { return "…" }

func (s webhookSettings) config() app.Webhooks {
	w := app.Webhooks{
		Disabled: !s.Enabled, GenerateSecret: s.GenerateSecret,
		Rules:  egress.Rules{AllowHTTP: s.AllowHTTP, AllowNetworks: s.AllowNetworks, AllowHosts: s.AllowHosts, AllowedPorts: s.AllowedPorts},
		CAFile: s.CAFile, ProxyURL: s.ProxyURL, RotationOverlap: s.RotationOverlap.limit(), SignatureList: s.SignatureList,
		RetryJitter: s.RetryJitter, GoneIsFailure: !s.GoneDisables, MaxRedirects: s.MaxRedirects, DisableAfter: time.Duration(s.DisableAfter),
		Workers: s.Workers, MaxSubscriptions: s.MaxSubscriptions, DeliveryRetention: time.Duration(s.DeliveryRetention),
	}
	for _, key := range s.EncryptionKey {
		w.EncryptionKeys = append(w.EncryptionKeys, key)
	}
	if w.Workers == 0 {
		w.Workers = -1 // refused: a node without is OJS_WEBHOOKS_ENABLED=false
	}
	if w.MaxSubscriptions == 0 {
		w.MaxSubscriptions = -1
	}
	if w.DisableAfter == 0 {
		w.DisableAfter = -1
	}
	if w.RetryJitter == 0 {
		w.RetryJitter = -1
	}
	if w.DeliveryRetention == 0 {
		w.DeliveryRetention = 1
	}
	w.RetrySchedule = []time.Duration{}
	for i, pause := range s.RetrySchedule {
		if i > 0 || pause != 0 {
			w.RetrySchedule = append(w.RetrySchedule, time.Duration(pause))
		}
	}
	return w
}
