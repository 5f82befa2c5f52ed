package webhook_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// A retry by hand begins the schedule again.
func TestDeliveryRetry(t *testing.T) {
	t.Parallel()

	t.Run("IsDueAtOnceWithAWholeSchedule", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Delivery(b.Subscribed(), 1, "s")
		b.recorded(b.claimed(1)[0], "dead")
		require.Empty(t, b.claimed(1))
		d, attempts, err := b.Webhooks.RetryDelivery(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "pending", d.Status)
		require.False(t, d.CompletedAt.Valid)
		require.Len(t, attempts, 1)
		again := b.claimed(1)
		require.Len(t, again, 1)
		require.Equal(t, []int32{1, 1, 0}, []int32{again[0].AttemptCount, again[0].RoundStart, again[0].Lost})
		require.True(t, b.recorded(again[0], "delivered").Counted)
		status, count := b.deliveryStatus(id)
		require.Equal(t, "delivered", status)
		require.Equal(t, int32(2), count)
	})

	t.Run("LeavesARunningRequestItsLease", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Delivery(b.Subscribed(), 1, "s")
		b.recorded(b.claimed(1)[0], "failed")
		b.Exec(`UPDATE ojs.webhook_deliveries SET lost = 3, next_attempt_at = clock_timestamp()`)
		running := b.claimed(1)[0]
		d, _, err := b.Webhooks.RetryDelivery(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "delivering", d.Status)
		require.Equal(t, []int32{1, 0}, []int32{d.RoundStart, d.Lost})
		require.Empty(t, b.claimed(1), "it would be sent twice")
		require.True(t, b.recorded(running, "delivered").Counted)
	})

	t.Run("NotOfATestOrADeletedSubscription", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		id := b.Delivery(w, 1, "s")
		test := job.NewID()
		require.NoError(t, b.Webhooks.LogTest(t.Context(), webhook.TestDelivery{
			DeliveryOutcome: webhook.DeliveryOutcome{ID: test, Status: "dead", Code: 500}, Webhook: w.ID, At: time.Now(), Type: "webhook.test", Body: "{}",
		}))
		_, _, err := b.Webhooks.RetryDelivery(t.Context(), test)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		require.NoError(t, b.Webhooks.Delete(t.Context(), w.ID))
		_, _, err = b.Webhooks.RetryDelivery(t.Context(), id)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		_, _, err = b.Webhooks.RetryDelivery(t.Context(), job.NewID())
		domaintest.RequireCode(t, err, ojs.ErrNotFound)
		require.Empty(t, b.claimed(10))
	})
}

// pendingOf is the numbers of the events whose deliveries of a subscription are pending, in their order.
func (b *bundle) pendingOf(w *webhook.Webhook) []string {
	return b.Texts(`SELECT event_seq::text FROM ojs.webhook_deliveries WHERE webhook_id = $1 AND status = 'pending' ORDER BY event_seq`, w.ID)
}

func TestReplayFailed(t *testing.T) {
	t.Parallel()

	t.Run("WhatWasGivenUpInTheSpan", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w, other := b.Subscribed(), b.Subscribed()
		noon := time.Now().Add(-time.Hour).Truncate(time.Second)
		for seq, d := range []struct {
			of     *webhook.Webhook
			status string
			at     time.Duration // of its event, from noon
		}{
			1: {w, "dead", -time.Millisecond},
			2: {w, "dead", 0},
			3: {w, "cancelled", time.Minute},
			4: {w, "delivered", time.Minute},
			5: {w, "failed", time.Minute},
			6: {other, "dead", time.Minute},
			7: {w, "dead", 2*time.Minute - time.Millisecond},
			8: {w, "dead", 2 * time.Minute},
		} {
			if d.of == nil {
				continue
			}
			id := b.Delivery(d.of, seq, "s")
			b.Exec(`UPDATE ojs.webhook_deliveries SET status = $2, event_time = $3, attempt_count = 7, lost = 2, next_attempt_at = CASE WHEN $2 = 'failed' THEN now() + interval '1 h' END,
				completed_at = CASE WHEN $2 <> 'failed' THEN now() END WHERE id = $1`, id, d.status, noon.Add(d.at))
		}
		b.Exec(`UPDATE ojs.webhook_deliveries SET event_seq = 0 WHERE event_seq = 7`) // a test
		last := b.Delivery(w, 9, "s")
		b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'dead', next_attempt_at = NULL, event_time = $2, completed_at = now() WHERE id = $1`, last, noon.Add(2*time.Minute-time.Millisecond))
		n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{Since: job.When{Set: true, At: noon}, Until: job.When{Set: true, At: noon.Add(2 * time.Minute)}})
		require.NoError(t, err)
		require.Equal(t, int64(3), n)
		require.Equal(t, []string{"2", "3", "9"}, b.pendingOf(w))
		require.Empty(t, b.pendingOf(other))
		got := b.claimed(10)
		require.Len(t, got, 3)
		require.Equal(t, []int32{7, 7, 0}, []int32{got[0].AttemptCount, got[0].RoundStart, got[0].Lost})

		n, err = b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{Since: job.When{Set: true, At: noon}})
		require.NoError(t, err)
		require.Equal(t, int64(1), n, "without an end")
	})

	// More than a page, and the endpoint fails at once: what fails during the replay is not replayed by it.
	t.Run("OncePerReplay", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, status, completed_at, created_at)
			SELECT ojs.new_id(now()), $1, i, 0, now(), 'job.enqueued', i::text, '{}', 'dead', now(), now() FROM generate_series(1, 1500) i`, w.ID)
		b.Exec(`CREATE FUNCTION ojs.fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			NEW.status := 'dead'; NEW.completed_at := clock_timestamp(); NEW.next_attempt_at := NULL; RETURN NEW; END $$`)
		b.Exec(`CREATE TRIGGER fails BEFORE UPDATE ON ojs.webhook_deliveries FOR EACH ROW EXECUTE FUNCTION ojs.fails()`)
		n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{Since: job.When{Set: true, At: time.Now().Add(-time.Hour)}})
		require.NoError(t, err)
		require.Equal(t, int64(1500), n)
	})

	t.Run("OfOneSubjectInOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed(func(w *webhook.Definition) { w.Ordering = "subject" })
		for seq := 1; seq <= 3; seq++ {
			b.Delivery(w, seq, "a")
		}
		b.Delivery(w, 4, "b")
		b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'dead', next_attempt_at = NULL, completed_at = now()`)
		n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{Since: job.When{Set: true, At: time.Now().Add(-time.Hour)}})
		require.NoError(t, err)
		require.Equal(t, int64(4), n)
		require.Equal(t, 2, b.sendable(), "the first of each subject")
		var order []int64
		for range 3 {
			for _, d := range b.claimed(10) {
				order = append(order, d.EventSeq)
				b.recorded(d, "delivered")
			}
		}
		require.Equal(t, []int64{1, 4, 2, 3}, order)
	})
}

func TestReplayAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.Subscribed()
	for range 4 {
		b.Enqueued(domaintest.NewJob("q"))
	}
	b.Exec(`UPDATE ojs.events SET time = '2026-01-01Z'::timestamptz + (row_number - 1) * interval '1 hour'
		FROM (SELECT seq, sub, row_number() OVER (ORDER BY seq, sub) FROM ojs.events) n WHERE (events.seq, events.sub) = (n.seq, n.sub)`)
	b.publish()
	created, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(4), created.Deliveries)
	deliveries := b.claimed(4)
	require.Len(t, deliveries, 4)
	b.recorded(deliveries[0], "delivered")
	b.recorded(deliveries[1], "delivered")
	b.recorded(deliveries[3], "dead")
	b.Exec(`DELETE FROM ojs.webhook_deliveries WHERE id = $1`, deliveries[3].ID)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(hours int) job.When { return job.When{Set: true, At: start.Add(time.Duration(hours) * time.Hour)} }

	// The second was delivered, the third is being delivered, the fourth is not there.
	n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{All: true, Since: at(1), Until: at(4)})
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
	got := b.claimed(10)
	require.Len(t, got, 2)
	require.Equal(t, deliveries[1].ID, got[0].ID, "under its old id")
	require.Equal(t, []int32{1, 1, 0}, []int32{got[0].AttemptCount, got[0].RoundStart, got[0].Lost})
	require.Equal(t, deliveries[3].EventSeq, got[1].EventSeq)
	require.Equal(t, deliveries[3].Body, got[1].Body)
	require.Equal(t, deliveries[3].Subject, got[1].Subject)
	require.Equal(t, deliveries[3].EventType, got[1].EventType)
	require.True(t, b.recorded(deliveries[2], "delivered").Counted, "its request goes on")

	n, err = b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{All: true, Since: at(0), Until: at(1)})
	require.NoError(t, err)
	require.Equal(t, int64(1), n, "until excludes its time")
}

// A replay goes from page to page of the log, and misses none of it.
func TestReplayAllInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.Subscribed()
	for range 3 {
		b.Exec(`INSERT INTO ojs.events (type, source, time, subject) SELECT 'job.enqueued', 'api', now(), gen_random_uuid()::text FROM generate_series(1, 800)`)
	}
	b.publish()
	for range 2 {
		n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{All: true, Since: job.When{Set: true, At: time.Now().Add(-time.Hour)}})
		require.NoError(t, err)
		require.Equal(t, int64(2400), n)
		require.Equal(t, 2400, b.Number(`SELECT count(DISTINCT subject) FROM ojs.webhook_deliveries WHERE status = 'pending'`))
		b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'delivered', next_attempt_at = NULL, completed_at = now()`)
	}
}

// Rows that were committed late share a number of the log. A page may end between them.
func TestReplayAllOfLateEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Subscribed()
	w := b.Subscribed()
	const late = 2100
	b.publishLate(late, late)
	n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{All: true, Since: job.When{Set: true, At: time.Now().Add(-time.Hour)}})
	require.NoError(t, err)
	require.Equal(t, int64(late), n)
	require.Equal(t, late, b.Number(`SELECT count(DISTINCT subject) FROM ojs.webhook_deliveries WHERE status = 'pending'`))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE webhook_id <> $1`, w.ID))

	b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'delivered', next_attempt_at = NULL, completed_at = now()`)
	b.Exec(`UPDATE ojs.events SET time = time - interval '2 hours' WHERE sub > 5`)
	n, err = b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{All: true, Since: job.When{Set: true, At: time.Now().Add(-time.Hour)}})
	require.NoError(t, err)
	require.EqualValues(t, 5, n, "the others are outside of the span")
}

// A delivery that a replay makes is what the first one was, but for its id and its times.
func TestReplayAllMakesTheSameDeliveries(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	var hooks []*webhook.Webhook
	for _, format := range []string{"ojs", "cloudevents"} {
		for _, ordering := range []string{"none", "subject"} {
			hooks = append(hooks, b.Subscribed(func(d *webhook.Definition) { d.PayloadFormat, d.Ordering = format, ordering }))
		}
	}
	b.Enqueued(domaintest.NewJob("q"), domaintest.With(func(j *job.Job) {
		j.TraceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	}))
	b.Exec(`INSERT INTO ojs.events (type, source, time, queue, subject) VALUES ('job.enqueued', 'api', now(), 'q', 'a subject')`)
	b.Exec(`INSERT INTO ojs.events (type, source, time, queue) VALUES ('job.enqueued', 'api', now(), 'q')`)
	b.publish()
	_, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	const deliveries = `SELECT (to_jsonb(d) - ARRAY['id', 'created_at', 'next_attempt_at', 'body'])::text || replace(d.body, d.id::text, '')
		FROM ojs.webhook_deliveries d ORDER BY webhook_id, event_seq, event_sub`
	first := b.Texts(deliveries)
	require.Len(t, first, 4*4)
	b.Exec(`DELETE FROM ojs.webhook_deliveries`)
	for _, w := range hooks {
		n, err := b.Webhooks.Replay(t.Context(), w.ID, webhook.Replay{All: true, Since: job.When{Set: true, At: time.Now().Add(-time.Hour)}})
		require.NoError(t, err)
		require.EqualValues(t, 4, n)
	}
	require.Equal(t, first, b.Texts(deliveries))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE next_attempt_at > clock_timestamp() OR created_at > clock_timestamp() OR created_at < clock_timestamp() - interval '10 minutes'`))
}
