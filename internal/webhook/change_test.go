package webhook_test

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/webhook"
)

// marked is how many subscriptions have deliveries that have to follow a change.
const marked = `SELECT count(*) FROM ojs.webhooks WHERE reorder_pending OR resume_pending`

// TestUnfinishedChange: a node is cut off from the database after it has stored a change, before the deliveries have followed.
func TestUnfinishedChange(t *testing.T) {
	t.Parallel()
	activate := func(w *webhook.Definition) { w.Active = true }
	order := func(w *webhook.Definition) { w.Ordering = "subject" }
	cutOff := func(t *testing.T, at string, inactive bool, change func(*webhook.Definition)) (*lossyBundle, *webhook.Webhook) {
		t.Helper()
		b := setupLossy(t, func(c *domaintest.Config) { c.Database.StatementTimeout = 2 * time.Second })
		w := b.sane.Subscribed(func(w *webhook.Definition) { w.Active = !inactive })
		for seq := range 3 {
			b.sane.Delivery(w, seq+1, "s")
		}
		if inactive {
			b.sane.Exec(`UPDATE ojs.webhook_deliveries SET status = 'failed', next_attempt_at = now() + interval '1 day'`)
		}
		b.network.BreakForGood(domaintest.LoseRequest, at)
		changed, err := b.changed(w.ID, change)
		require.NoError(t, err, "the change is stored")
		require.Equal(t, 1, b.network.Broken())
		require.Equal(t, 1, b.sane.Number(marked))
		return b, changed
	}

	t.Run("AnotherNodeResumes", func(t *testing.T) {
		t.Parallel()
		b, w := cutOff(t, "name: WebhookDeliveryResume ", true, activate)
		require.True(t, w.Active)
		require.Empty(t, b.sane.claimed(10))
		n, err := b.sane.Webhooks.FinishChanges(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Len(t, b.sane.claimed(10), 3)
		n, err = b.sane.Webhooks.FinishChanges(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	})

	t.Run("AnotherNodeReorders", func(t *testing.T) {
		t.Parallel()
		b, _ := cutOff(t, "name: WebhookDeliveryReorder ", false, order)
		_, err := b.sane.Webhooks.FinishChanges(t.Context())
		require.NoError(t, err)
		require.Len(t, b.sane.claimed(10), 1)
		require.Zero(t, b.sane.Number(marked))
	})

	t.Run("TheSameRequestFinishes", func(t *testing.T) {
		t.Parallel()
		b, w := cutOff(t, "name: WebhookDeliveryResume ", true, activate)
		_, err := b.sane.changed(w.ID, activate)
		require.NoError(t, err)
		require.Len(t, b.sane.claimed(10), 3)
		require.Zero(t, b.sane.Number(marked))
	})

	t.Run("TheLatestOrderingCounts", func(t *testing.T) {
		t.Parallel()
		b, w := cutOff(t, "name: WebhookDeliveryReorder ", false, order)
		_, err := b.sane.changed(w.ID, func(w *webhook.Definition) { w.Ordering = "none" })
		require.NoError(t, err)
		require.Len(t, b.sane.claimed(10), 3)
		require.Zero(t, b.sane.Number(marked))
	})

	t.Run("ADeactivatedOneIsNotResumed", func(t *testing.T) {
		t.Parallel()
		b, w := cutOff(t, "name: WebhookDeliveryResume ", true, activate)
		_, err := b.sane.changed(w.ID, func(w *webhook.Definition) { w.Active = false })
		require.NoError(t, err)
		require.Zero(t, b.sane.Number(marked))
		require.Equal(t, 3, b.sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE next_attempt_at > now()`))
	})

	t.Run("ADeletionIsFinished", func(t *testing.T) {
		t.Parallel()
		b := setupLossy(t, func(c *domaintest.Config) { c.Database.StatementTimeout = 2 * time.Second })
		w := b.sane.Subscribed()
		b.sane.Delivery(w, 1, "s")
		b.network.BreakForGood(domaintest.LoseRequest, "name: WebhookDeliveryCancel ")
		require.NoError(t, b.Webhooks.Delete(t.Context(), w.ID), "it is deleted")
		require.Equal(t, 1, b.network.Broken())
		require.NoError(t, b.sane.Webhooks.CancelOrphans(t.Context()))
		require.Equal(t, 1, b.sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE status = 'cancelled'`))
	})

	t.Run("ADispatcherFinishes", func(t *testing.T) {
		t.Parallel()
		endpoint := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		t.Cleanup(endpoint.Close)
		roots := x509.NewCertPool()
		roots.AddCert(endpoint.Certificate())
		b, _ := cutOff(t, "name: WebhookDeliveryResume ", true, func(w *webhook.Definition) { w.Active, w.URL = true, endpoint.URL })
		d := webhook.NewDispatcher(b.sane.Archetype, b.sane.Webhooks, sending(10), webhook.DispatcherDeps{RootCAs: roots})
		require.NoError(t, d.Start(t.Context()))
		defer d.Stop()
		require.Eventually(t, func() bool {
			return b.sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE status = 'delivered'`) == 3
		}, domaintest.WaitFor, 10*time.Millisecond)
	})
}

// TestFinishChangesOnSeveralNodes: nodes that finish the same changes at once, while these go on changing, leave what the last
// change says.
func TestFinishChangesOnSeveralNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.Subscribed()
	const backlog = 12_000
	b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, status, next_attempt_at, created_at)
		SELECT ojs.new_id(now()), $1, i, 0, now(), 'job.enqueued', (i % 4000)::text, '{}', 'failed', now() + interval '1 day', now() FROM generate_series(1, $2::integer) i`, w.ID, backlog)
	var nodes sync.WaitGroup
	for range 2 {
		node := b.node()
		nodes.Go(func() {
			for range 10 {
				if _, err := node.Webhooks.FinishChanges(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, change := range []func(*webhook.Definition){
		func(w *webhook.Definition) { w.Active = false },
		func(w *webhook.Definition) { w.Ordering = "subject" },
		func(w *webhook.Definition) { w.Ordering = "none" },
		func(w *webhook.Definition) { w.Active, w.Ordering = true, "subject" },
	} {
		_, err := b.changed(w.ID, change)
		require.NoError(t, err)
	}
	nodes.Wait()
	require.Zero(t, b.Number(marked))
	require.Equal(t, 4000, b.sendable(), "the first of each subject")
	require.Equal(t, backlog, b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE ordered`))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE next_attempt_at > now()`))
}
