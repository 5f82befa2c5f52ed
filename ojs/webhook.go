package ojs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Webhook is a subscription to events by HTTP. Zero fields have the defaults of the server. Filters, limits and the form of
// deliveries: docs/reference/webhooks.md.
type Webhook struct {
	URL    string   `json:"url,omitempty"`
	Events []string `json:"events,omitempty"` // types, or prefixes as in job.*
	// Secret has 8 to 256 printable ASCII characters. It may be empty if the server generates secrets.
	Secret   string         `json:"secret,omitempty"`
	Filter   *WebhookFilter `json:"filter,omitempty"`
	Metadata map[string]any `json:"metadata,omitempty"`
	// Without Active a new subscription is active. Ordering subject delivers the events of one subject one after the other.
	Active   *bool  `json:"active,omitempty"`
	Ordering string `json:"ordering,omitempty"` // none or subject
}

// WebhookFilter narrows a subscription.
type WebhookFilter struct {
	Queues   []string `json:"queues,omitempty"`
	JobTypes []string `json:"job_types,omitempty"`
	Sources  []string `json:"sources,omitempty"`
}

// WebhookInfo is what the server says of a subscription.
type WebhookInfo struct {
	ID             string         `json:"id"`
	URL            string         `json:"url"`
	Events         []string       `json:"events"`
	Filter         *WebhookFilter `json:"filter"`
	Metadata       map[string]any `json:"metadata"`
	Active         bool           `json:"active"`
	Secret         string         `json:"secret"` // in the answer to its creation and rotation only
	SuccessCount   int            `json:"success_count"`
	FailureCount   int            `json:"failure_count"`
	DisabledReason string         `json:"disabled_reason"`
	CreatedAt      time.Time      `json:"created_at"`
	LastDeliveryAt time.Time      `json:"last_delivery_at"`
}

// WebhookTest is the outcome of a test delivery.
type WebhookTest struct {
	Success    bool   `json:"success"`
	StatusCode int    `json:"status_code"` // 0: no answer
	Error      string `json:"error"`
	DeliveryID string `json:"delivery_id"`
}

// CreateWebhook makes a subscription. Store Secret from the answer: it is not shown again. After a lost answer the request is
// not repeated; list the subscriptions to find out.
func (c *Client) CreateWebhook(ctx context.Context, w Webhook) (*WebhookInfo, error) {
	return c.webhookCall(ctx, post("/webhooks", w))
}

// GetWebhook reads a subscription.
func (c *Client) GetWebhook(ctx context.Context, id string) (*WebhookInfo, error) {
	return c.webhookCall(ctx, get(webhookPath(id, ""), nil))
}

// UpdateWebhook changes what is set in w.
func (c *Client) UpdateWebhook(ctx context.Context, id string, w Webhook) (*WebhookInfo, error) {
	return c.webhookCall(ctx, call{method: http.MethodPatch, path: webhookPath(id, ""), body: w, repeatable: w.Secret == ""})
}

// DeleteWebhook removes a subscription and cancels its deliveries.
func (c *Client) DeleteWebhook(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: webhookPath(id, "")}, nil)
}

// ListWebhooks lists subscriptions, newest first.
func (c *Client) ListWebhooks(ctx context.Context, page PageOptions) (*Page[WebhookInfo], error) {
	query := url.Values{}
	page.set(query)
	return list[WebhookInfo](ctx, c, "/webhooks", query, "subscriptions", "items")
}

// TestWebhook sends a test event to a subscription and waits for the answer. It is sent at once and is in no log of events.
// Success false is no error of the call.
func (c *Client) TestWebhook(ctx context.Context, id string) (*WebhookTest, error) {
	t := &WebhookTest{}
	return t, c.do(ctx, post(webhookPath(id, "/test"), nil), t)
}

// RotateWebhookSecret gives a subscription a new secret: the given one, or if it is empty one that the server makes. The previous one
// stays valid for a day.
func (c *Client) RotateWebhookSecret(ctx context.Context, id, secret string) (*WebhookInfo, error) {
	body := map[string]string{}
	if secret != "" {
		body["secret"] = secret
	}
	return c.webhookCall(ctx, post(webhookPath(id, "/rotate-secret"), body))
}

func webhookPath(id, rest string) string { return "/webhooks/" + url.PathEscape(id) + rest }

func (c *Client) webhookCall(ctx context.Context, r call) (*WebhookInfo, error) {
	var answer struct {
		Subscription *WebhookInfo `json:"subscription"`
		WebhookInfo
	}
	if err := c.do(ctx, r, &answer); err != nil {
		return nil, err
	}
	if answer.Subscription == nil {
		return &answer.WebhookInfo, nil
	}
	if answer.Secret != "" {
		answer.Subscription.Secret = answer.Secret
	}
	return answer.Subscription, nil
}

// Reasons for which a delivery is refused.
var (
	ErrWebhookSignature = errors.New("ojs: the signature of the webhook is not valid")
	ErrWebhookAge       = errors.New("ojs: the webhook is older than it may be, or the clocks differ")
)

const (
	webhookMaxAge  = 5 * time.Minute
	webhookMaxBody = 1 << 20
)

// VerifyWebhook checks the signature and the age of a delivery. One of the secrets has to fit; two are needed only by receivers that take
// deliveries from before a rotation. body must be the bytes as they came, before any decoding. A delivery may differ by five
// minutes from now; the signature is checked first, so that the age is that of a genuine delivery.
func VerifyWebhook(header http.Header, body []byte, now time.Time, secrets ...string) error {
	timestamp := header.Get("X-OJS-Timestamp")
	given := append(strings.Split(header.Get("X-OJS-Signatures"), ","), header.Get("X-OJS-Signature"))
	if !slices.ContainsFunc(secrets, func(secret string) bool { return signedBy(secret, timestamp, body, given) }) {
		return ErrWebhookSignature
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if age := now.Sub(time.Unix(seconds, 0)); err != nil || age > webhookMaxAge || age < -webhookMaxAge {
		return ErrWebhookAge
	}
	return nil
}

// All signatures are compared, in constant time each: how long it takes does not tell which one fits.
func signedBy(secret, timestamp string, body []byte, given []string) bool {
	if secret == "" {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(timestamp + "."))
	_, _ = mac.Write(body)
	want := []byte("sha256=" + hex.EncodeToString(mac.Sum(nil)))
	found := false
	for _, g := range given {
		found = hmac.Equal(want, []byte(strings.TrimSpace(g))) || found
	}
	return found
}

// WebhookHandler receives deliveries: it checks them by [VerifyWebhook] and hands each event to receive. An error makes the server
// deliver again later. A delivery may come twice: drop events by their id. previous are secrets that are valid besides secret, for
// receivers that learn of a rotation late or early. A body above 1 MiB is refused with 400, a wrong signature or age with 401.
// receive runs within the request: if it takes longer than the server waits for an answer, the event is delivered again.
func WebhookHandler(secret string, receive func(context.Context, *Event) error, previous ...string) http.Handler {
	secrets := append([]string{secret}, previous...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, webhookMaxBody))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		if err := VerifyWebhook(r.Header, body, time.Now(), secrets...); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		e := &Event{}
		if err := json.Unmarshal(body, e); err != nil {
			http.Error(w, "the body is no event", http.StatusBadRequest)
			return
		}
		e.Type = strings.TrimPrefix(e.Type, "org.openjobspec.") // of the form of CloudEvents
		if err := receive(r.Context(), e); err != nil {
			http.Error(w, "the event was not processed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
