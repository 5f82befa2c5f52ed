package ojsadmin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Webhook is a subscription to events by HTTP; [ojs.WebhookHandler] receives its deliveries. Zero fields have the defaults of the
// server. Filters, limits and the form of deliveries: docs/reference/webhooks.md.
type Webhook struct {
	URL    string   `json:"url,omitempty"`
	Events []string `json:"events,omitempty"` // types, or prefixes as in job.*
	// Secret has 8 to 256 printable ASCII characters. It may be empty if the server generates secrets.
	Secret   string          `json:"secret,omitempty"`
	Filter   *WebhookFilter  `json:"filter,omitempty"`
	Metadata map[string]any  `json:"metadata,omitempty"`
	Active   *bool           `json:"active,omitempty"` // nil: a new subscription is active
	Ordering WebhookOrdering `json:"ordering,omitempty"`
}

// WebhookFilter narrows a subscription.
type WebhookFilter struct {
	Queues   []string `json:"queues,omitempty"`
	JobTypes []string `json:"job_types,omitempty"`
	Sources  []string `json:"sources,omitempty"`
}

// WebhookOrdering chooses whether deliveries wait for each other (docs/reference/webhooks.md, Concurrency and order).
type WebhookOrdering string

// The orders of deliveries.
const (
	OrderingNone    WebhookOrdering = "none"    // by default: a retry does not delay other deliveries
	OrderingSubject WebhookOrdering = "subject" // the events of one subject are delivered one after the other
)

// WebhookInfo is what the server shows of a subscription.
type WebhookInfo struct {
	ID             string          `json:"id"`
	URL            string          `json:"url"`
	Events         []string        `json:"events"`
	Filter         *WebhookFilter  `json:"filter"`
	Metadata       map[string]any  `json:"metadata"`
	Active         bool            `json:"active"`
	Ordering       WebhookOrdering `json:"ordering"`
	Secret         string          `json:"secret"` // in the answer to its creation and rotation only
	SuccessCount   int             `json:"success_count"`
	FailureCount   int             `json:"failure_count"`
	DisabledReason string          `json:"disabled_reason"`
	CreatedAt      time.Time       `json:"created_at"`
	LastDeliveryAt time.Time       `json:"last_delivery_at"`
}

// CreateWebhook makes a subscription. Store Secret from the answer: it is not shown again. After a lost answer the request is
// not repeated; list the subscriptions to find out.
func (c *Client) CreateWebhook(ctx context.Context, w Webhook) (*WebhookInfo, error) {
	return c.webhook(ctx, ojs.Call{Method: http.MethodPost, Path: "/webhooks", Body: w})
}

// GetWebhook reads a subscription.
func (c *Client) GetWebhook(ctx context.Context, id string) (*WebhookInfo, error) {
	return c.webhook(ctx, get(webhookPath(id, ""), nil))
}

// UpdateWebhook changes what is set in w. A new secret is a rotation, which is not repeated after a lost answer.
func (c *Client) UpdateWebhook(ctx context.Context, id string, w Webhook) (*WebhookInfo, error) {
	return c.webhook(ctx, ojs.Call{Method: http.MethodPatch, Path: webhookPath(id, ""), Body: w, Idempotent: w.Secret == ""})
}

// DeleteWebhook removes a subscription and cancels its deliveries.
func (c *Client) DeleteWebhook(ctx context.Context, id string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: webhookPath(id, "")}, nil)
}

// ListWebhooks lists subscriptions, newest first.
func (c *Client) ListWebhooks(ctx context.Context, page PageOptions) (*Page[WebhookInfo], error) {
	return list[WebhookInfo](ctx, c, get("/webhooks", page.query()), "subscriptions", "items")
}

// RotateWebhookSecret gives a subscription a new secret: the given one, or if it is empty one that the server makes. The previous
// one stays valid for a day.
func (c *Client) RotateWebhookSecret(ctx context.Context, id, secret string) (*WebhookInfo, error) {
	body := map[string]string{}
	if secret != "" {
		body["secret"] = secret
	}
	return c.webhook(ctx, ojs.Call{Method: http.MethodPost, Path: webhookPath(id, "/rotate-secret"), Body: body})
}

// WebhookTest is the outcome of a test delivery.
type WebhookTest struct {
	Success    bool   `json:"success"`
	StatusCode int    `json:"status_code"` // 0: no answer
	Error      string `json:"error"`
	DeliveryID string `json:"delivery_id"`
}

// TestWebhook sends a test event to a subscription and waits for the answer. It is sent at once and is in no log of events.
// Success false is no error of the call.
func (c *Client) TestWebhook(ctx context.Context, id string) (*WebhookTest, error) {
	return object[WebhookTest](ctx, c, ojs.Call{Method: http.MethodPost, Path: webhookPath(id, "/test")})
}

// ReplayWebhook delivers events of a time again: those whose deliveries have failed for good, or with all every one. It returns
// their number. After a lost answer it is not repeated.
func (c *Client) ReplayWebhook(ctx context.Context, id string, since, until time.Time, all bool) (enqueued int, err error) {
	body := struct {
		Since time.Time `json:"since,omitzero"`
		Until time.Time `json:"until,omitzero"`
		Only  string    `json:"only,omitempty"`
	}{Since: since, Until: until}
	if all {
		body.Only = "all"
	}
	var answer struct {
		Enqueued int `json:"enqueued"`
	}
	err = c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: webhookPath(id, "/replay"), Body: body}, &answer)
	if err != nil {
		return 0, err
	}
	return answer.Enqueued, nil
}

// webhook reads a subscription at the top level of the answer or in its member subscription, beside which the secret may stand.
func (c *Client) webhook(ctx context.Context, call ojs.Call) (*WebhookInfo, error) {
	var answer struct {
		Wrapped *WebhookInfo `json:"subscription"`
		WebhookInfo
	}
	if err := c.client.Do(ctx, call, &answer); err != nil {
		return nil, err
	}
	if answer.Wrapped == nil {
		return &answer.WebhookInfo, nil
	}
	if answer.Secret != "" {
		answer.Wrapped.Secret = answer.Secret
	}
	return answer.Wrapped, nil
}

func webhookPath(id, rest string) string { return "/webhooks/" + url.PathEscape(id) + rest }

// Delivery is one event on its way to one subscription.
type Delivery struct {
	ID             string `json:"id"`
	SubscriptionID string `json:"subscription_id"`
	EventID        string `json:"event_id"`
	EventType      string `json:"event_type"`
	Subject        string `json:"subject"`
	// Of these, delivered, dead and cancelled are final; failed waits for its next attempt.
	Status         string    `json:"status"` // pending, delivering, delivered, failed, dead, cancelled
	AttemptCount   int       `json:"attempt_count"`
	LastStatusCode int       `json:"last_status_code"` // 0: no response
	LastError      string    `json:"last_error"`
	NextAttemptAt  time.Time `json:"next_attempt_at"`
	CreatedAt      time.Time `json:"created_at"`
	CompletedAt    time.Time `json:"completed_at"`

	RequestBody json.RawMessage   `json:"request_body"` // this and Attempts: of GetDelivery only
	Attempts    []DeliveryAttempt `json:"attempts"`
}

// DeliveryAttempt is one request to the endpoint.
type DeliveryAttempt struct {
	Attempt         int       `json:"attempt"`
	StartedAt       time.Time `json:"started_at"`
	DurationMS      int64     `json:"duration_ms"`
	StatusCode      int       `json:"status_code"`
	Error           string    `json:"error"`
	ResponseSnippet string    `json:"response_snippet"`
}

// DeliveryFilter chooses deliveries. All conditions that are set must hold.
type DeliveryFilter struct {
	SubscriptionID string
	Status         string
	EventType      string
	EventID        string
	Since, Until   time.Time
	PageOptions
}

// ListDeliveries lists the deliveries of webhooks, the newest first. They are kept for a time that the server sets.
func (c *Client) ListDeliveries(ctx context.Context, filter DeliveryFilter) (*Page[Delivery], error) {
	query := filter.PageOptions.query()
	setText(query, "subscription_id", filter.SubscriptionID)
	setText(query, "status", filter.Status)
	setText(query, "event_type", filter.EventType)
	setText(query, "event_id", filter.EventID)
	setTime(query, "since", filter.Since)
	setTime(query, "until", filter.Until)
	return list[Delivery](ctx, c, get("/webhooks/deliveries", query), "deliveries", "items")
}

// GetDelivery reads a delivery with its attempts.
func (c *Client) GetDelivery(ctx context.Context, id string) (*Delivery, error) {
	var answer struct {
		Wrapped *Delivery `json:"delivery"`
		Delivery
	}
	if err := c.client.Do(ctx, get(deliveryPath(id), nil), &answer); err != nil {
		return nil, err
	}
	if answer.Wrapped != nil { // servers wrap the object or show it at the top level
		return answer.Wrapped, nil
	}
	return &answer.Delivery, nil
}

// RetryDelivery makes a delivery due now, whatever its status is.
func (c *Client) RetryDelivery(ctx context.Context, id string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: deliveryPath(id) + "/retry"}, nil)
}

func deliveryPath(id string) string { return "/webhooks/deliveries/" + url.PathEscape(id) }
