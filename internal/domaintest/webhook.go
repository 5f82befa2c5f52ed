package domaintest

import (
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/webhook"
)

// Subscribed creates a subscription to all events.
func (b *Bundle) Subscribed(change ...func(*webhook.Definition)) *webhook.Webhook {
	b.T.Helper()
	in := &webhook.Definition{
		URL: "https://example.com", Events: []string{"*"}, Active: true, TimeoutMS: 1000, MaxInFlight: 10, Ordering: "none", PayloadFormat: "ojs", Secret: "12345678",
	}
	for _, c := range change {
		c(in)
	}
	w, err := b.Webhooks.Create(b.T.Context(), in, webhook.Match{Types: []string{"%"}})
	require.NoError(b.T, err)
	return w
}

// Delivery puts a delivery that is due into the table, as the fan-out does, and returns its id.
func (b *Bundle) Delivery(w *webhook.Webhook, seq int, subject string) [16]byte {
	b.T.Helper()
	id := job.NewID()
	b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, ordered, body, next_attempt_at, created_at)
		VALUES ($1, $2, $3, 0, now(), 'job.enqueued', $4, $5, '{}', clock_timestamp(), clock_timestamp())`, id, w.ID, seq, subject, w.Ordering == "subject")
	return id
}
