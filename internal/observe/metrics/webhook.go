package metrics

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// Outcomes of an attempt to deliver. They are values of the label status (docs/reference/observability.md, Webhook series).
const (
	WebhookSuccess = "success"
	WebhookFailed  = "failed" // will be retried
	WebhookDead    = "dead"   // will not be retried
)

var retryBounds = []int64{0, 1, 2, 3, 4, 5, 6, 7}

type attemptKey struct{ eventType, status string }

type deliveryKey struct{ eventType, subscription string }

type deliveryCounters struct {
	took histogram // ms
	dead atomic.Int64
}

// The limits are shared by all series of deliveries: a type that has its own value in one has it in all.
func (m *Metrics) newWebhooks() {
	types, subscriptions := newLimiter(m.config.MaxLabelValues), newLimiter(m.config.MaxLabelValues)
	m.attempts = newVec[attemptKey, atomic.Int64](func(k attemptKey) attemptKey { return attemptKey{types.label(k.eventType), k.status} },
		func(k attemptKey) attribute.Set {
			return attribute.NewSet(attribute.String("event_type", k.eventType), attribute.String("status", k.status))
		})
	m.deliveries = newVec[deliveryKey, deliveryCounters](func(k deliveryKey) deliveryKey {
		return deliveryKey{types.label(k.eventType), subscriptions.label(k.subscription)}
	}, func(k deliveryKey) attribute.Set {
		return attribute.NewSet(attribute.String("event_type", k.eventType), attribute.String("subscription_id", k.subscription))
	})
	m.delivered = newVec[string, histogram](types.label, func(eventType string) attribute.Set { return label("event_type", eventType) })
}

// WebhookAttempt counts one attempt to deliver an event; status is WebhookSuccess, WebhookFailed or WebhookDead.
func (m *Metrics) WebhookAttempt(eventType, subscriptionID, status string, took time.Duration) {
	m.attempts.at(attemptKey{eventType, status}).Add(1)
	d := m.deliveries.at(deliveryKey{eventType, subscriptionID})
	d.took.observe(ranBounds, took.Milliseconds())
	if status == WebhookDead {
		d.dead.Add(1)
	}
}

// WebhookDone counts a finished delivery, with the attempts after its first. A delivery that was given up is finished too.
func (m *Metrics) WebhookDone(eventType string, retries int) {
	m.delivered.at(eventType).observe(retryBounds, int64(retries))
}

func (m *Metrics) webhookFamilies() []family {
	attempts := counter("ojs.webhook.delivery_count", "{attempt}", "Attempts to deliver an event to a webhook; dead: the last one, which failed.")
	took := histogramOf("ojs.webhook.delivery_duration_ms", "ms", "How long attempts to deliver took.", ranBounds, 1)
	dead := counter("ojs.webhook.dead_delivery_count", "{delivery}", "Deliveries that were given up.")
	retries := histogramOf("ojs.webhook.delivery_retry_count", "{attempt}", "Attempts after the first of deliveries that are finished.", retryBounds, 1)
	m.attempts.each(func(_ attemptKey, labels attribute.Set, n *atomic.Int64) { attempts.add(labels, n.Load()) })
	m.deliveries.each(func(_ deliveryKey, labels attribute.Set, d *deliveryCounters) {
		took.add(labels, &d.took, ranBounds)
		dead.add(labels, d.dead.Load())
	})
	m.delivered.each(func(_ string, labels attribute.Set, h *histogram) { retries.add(labels, h, retryBounds) })
	return []family{attempts, took, dead, retries}
}
