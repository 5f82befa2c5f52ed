package ojs

import (
	"context"
	"encoding/json"
	"net/url"
	"time"
)

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
	query := url.Values{}
	setText(query, "subscription_id", filter.SubscriptionID)
	setText(query, "status", filter.Status)
	setText(query, "event_type", filter.EventType)
	setText(query, "event_id", filter.EventID)
	setTime(query, "since", filter.Since)
	setTime(query, "until", filter.Until)
	filter.set(query)
	return list[Delivery](ctx, c, "/webhooks/deliveries", query, "deliveries", "items")
}

// GetDelivery reads a delivery with its attempts. Servers wrap the object or show it at the top level; both are read.
func (c *Client) GetDelivery(ctx context.Context, id string) (*Delivery, error) {
	var answer struct {
		Wrapped *Delivery `json:"delivery"`
		Delivery
	}
	err := c.do(ctx, get("/webhooks/deliveries/"+url.PathEscape(id), nil), &answer)
	if answer.Wrapped != nil {
		return answer.Wrapped, err
	}
	return &answer.Delivery, err
}

// RetryDelivery makes a delivery due now, whatever became of it.
func (c *Client) RetryDelivery(ctx context.Context, id string) error {
	return c.do(ctx, post("/webhooks/deliveries/"+url.PathEscape(id)+"/retry", nil), nil)
}

// ReplayWebhook delivers events of a time again: those whose deliveries have failed for good, or with all every one. It says how many.
// After a lost answer it is not repeated.
func (c *Client) ReplayWebhook(ctx context.Context, id string, since, until time.Time, all bool) (enqueued int, err error) {
	body := optionSet{}
	body.time("since", since)
	body.time("until", until)
	if all {
		body["only"] = "all"
	}
	var answer struct {
		Enqueued int `json:"enqueued"`
	}
	err = c.do(ctx, post(webhookPath(id, "/replay"), body), &answer)
	return answer.Enqueued, err
}
