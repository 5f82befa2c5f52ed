package webhook_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// subscribed makes a subscription to everything.
func (b *bundle) claimed(want int) []webhook.Delivery {
	b.T.Helper()
	c, err := b.Webhooks.ClaimDeliveries(b.T.Context(), webhook.Share{Want: want, OwnerRoom: want})
	require.NoError(b.T, err)
	return c.Deliveries
}

func (b *bundle) recorded(d webhook.Delivery, status string, change ...func(*webhook.DeliveryOutcome)) webhook.Recorded {
	b.T.Helper()
	o := webhook.DeliveryOutcome{ID: d.ID, Webhook: d.WebhookID, Claims: d.Claims, Status: status, Code: 200, Secret: d.Secrets[0].ID}
	if status != "delivered" {
		o.Code = 500
	}
	for _, c := range change {
		c(&o)
	}
	r, err := b.Webhooks.RecordDelivery(b.T.Context(), o)
	require.NoError(b.T, err)
	return r
}

func (b *bundle) deliveryStatus(id [16]byte) (status string, attempts int32) {
	b.T.Helper()
	d, _, err := b.Webhooks.Delivery(b.T.Context(), id)
	require.NoError(b.T, err)
	return d.Status, d.AttemptCount
}

// expire lets all leases run out.
func (b *bundle) expire() {
	b.T.Helper()
	b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = clock_timestamp() - interval '1 ms' WHERE leased`)
}

func TestDeliveryLease(t *testing.T) {
	t.Parallel()

	t.Run("ALostOneIsSentAgainAndDoesNotCount", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Delivery(b.Subscribed(), 1, "s")
		first := b.claimed(10)
		require.Len(t, first, 1)
		require.Equal(t, "12345678", first[0].Secrets[0].Value)
		require.Empty(t, b.node().claimed(10), "it is leased")
		for lost := int32(1); lost <= 5; lost++ {
			b.expire()
			again := b.node().claimed(10)
			require.Len(t, again, 1)
			require.Equal(t, lost, again[0].Lost)
			require.Zero(t, again[0].AttemptCount)
			require.Greater(t, again[0].Claims, first[0].Claims)
		}
		status, attempts := b.deliveryStatus(id)
		require.Equal(t, "delivering", status)
		require.Zero(t, attempts)
	})

	t.Run("AFailureOfALostClaimDoesNotCountASuccessDoes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Delivery(b.Subscribed(), 1, "s")
		lost := b.claimed(1)[0]
		b.expire()
		reserved := b.node().claimed(1)[0]
		require.False(t, b.recorded(lost, "failed").Counted)
		require.True(t, b.recorded(lost, "delivered").Counted)
		require.False(t, b.recorded(reserved, "failed").Counted, "it is delivered")
		require.False(t, b.recorded(reserved, "delivered").Counted)
		status, attempts := b.deliveryStatus(id)
		require.Equal(t, "delivered", status)
		require.Equal(t, int32(1), attempts)
		w, err := b.Webhooks.Get(t.Context(), reserved.WebhookID)
		require.NoError(t, err)
		require.Equal(t, int64(1), w.SuccessCount)
	})

	t.Run("GivenBackItIsDueAtOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Delivery(b.Subscribed(), 1, "s")
		d := b.claimed(1)[0]
		require.NoError(t, b.Webhooks.ReleaseDelivery(t.Context(), d.ID, d.Claims))
		again := b.claimed(1)
		require.Len(t, again, 1)
		require.Zero(t, again[0].Lost)
		require.NoError(t, b.Webhooks.ReleaseDelivery(t.Context(), d.ID, d.Claims), "of an old claim it does nothing")
		require.Empty(t, b.claimed(1))
	})

	t.Run("GivenBackItShowsWhetherItHasFailed", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Delivery(b.Subscribed(), 1, "s")
		release := func() string {
			d := b.claimed(1)[0]
			require.NoError(t, b.Webhooks.ReleaseDelivery(t.Context(), d.ID, d.Claims))
			status, _ := b.deliveryStatus(id)
			return status
		}
		require.Equal(t, "pending", release())
		b.recorded(b.claimed(1)[0], "failed")
		require.Equal(t, "failed", release())
		_, _, err := b.Webhooks.RetryDelivery(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "pending", release(), "of its new schedule it has failed nothing")
	})

	t.Run("LastsAsLongAsTheRequestMayTake", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Delivery(b.Subscribed(func(w *webhook.Definition) { w.TimeoutMS = 60_000 }), 1, "s")
		b.claimed(1)
		require.Equal(t, 1, b.Number(`SELECT (next_attempt_at - now() BETWEEN interval '75 s' AND interval '95 s')::int FROM ojs.webhook_deliveries`))
	})
}

func TestDeliveryClaim(t *testing.T) {
	t.Parallel()

	t.Run("TakesTurnsBetweenSubscriptions", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		busy, quiet := b.Subscribed(), b.Subscribed()
		for i := range 8 {
			b.Delivery(busy, i+1, "s")
		}
		b.Delivery(quiet, 9, "s")
		got := b.claimed(3)
		require.Len(t, got, 3)
		byHook := map[[16]byte]int{}
		for _, d := range got {
			byHook[d.WebhookID]++
		}
		require.Equal(t, map[[16]byte]int{busy.ID: 2, quiet.ID: 1}, byHook)
	})

	// docs/reference/webhooks.md, Concurrency and order: the order is that of a subject within a subscription.
	t.Run("OfOneSubjectOfTwoSubscriptions", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		bySubject := func(w *webhook.Definition) { w.Ordering = "subject" }
		one, two := b.Subscribed(bySubject), b.Subscribed(bySubject)
		b.Delivery(one, 1, "a")
		b.Delivery(two, 2, "a")
		require.Len(t, b.claimed(10), 2)
	})

	// A node wakes for the next one that it may claim.
	t.Run("WakesForTheNextOneOfAnActiveSubscription", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w, off := b.Subscribed(), b.Subscribed()
		for in, hook := range map[string]*webhook.Webhook{"1 hour": w, "10 minutes": off} {
			b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = now() + $1::interval WHERE id = $2`, in, b.Delivery(hook, 1, "s"))
		}
		next := func() time.Duration {
			c, err := b.Webhooks.ClaimDeliveries(t.Context(), webhook.Share{Want: 1, OwnerRoom: 1})
			require.NoError(t, err)
			require.Empty(t, c.Deliveries)
			return c.Next
		}
		require.InDelta(t, 10*time.Minute, next(), float64(2*time.Minute))
		b.Exec(`UPDATE ojs.webhooks SET active = false WHERE id = $1`, off.ID)
		require.InDelta(t, time.Hour, next(), float64(2*time.Minute))
		b.Exec(`UPDATE ojs.webhooks SET active = false`)
		require.Negative(t, next())
	})

	t.Run("InTheOrderOfEvents", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		for i := range 5 {
			b.Delivery(w, i+1, "s")
		}
		b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = clock_timestamp()`)
		for i, d := range b.claimed(5) {
			require.Equal(t, int64(i+1), d.EventSeq)
		}
	})

	t.Run("NeverMoreThanTheSubscriptionAllowsFromAnyNode", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed(func(w *webhook.Definition) { w.MaxInFlight = 7 })
		for i := range 200 {
			b.Delivery(w, i+1, fmt.Sprint(i))
		}
		var mu sync.Mutex
		running, seen := 0, map[[16]byte]bool{}
		var nodes sync.WaitGroup
		for range 4 {
			node := b.node()
			nodes.Go(func() {
				for range 100 {
					c, err := node.Webhooks.ClaimDeliveries(t.Context(), webhook.Share{Want: 50, OwnerRoom: 50})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					running += len(c.Deliveries)
					if running > 7 {
						t.Errorf("%d at a time", running)
					}
					for _, d := range c.Deliveries {
						if seen[d.ID] {
							t.Error("claimed twice")
						}
						seen[d.ID] = true
					}
					mu.Unlock()
					for _, d := range c.Deliveries {
						mu.Lock()
						running-- // before it is recorded, so the count is never too high
						mu.Unlock()
						if _, err := node.Webhooks.RecordDelivery(t.Context(), webhook.DeliveryOutcome{ID: d.ID, Webhook: d.WebhookID, Claims: d.Claims, Status: "delivered", Code: 200}); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		nodes.Wait()
		require.Len(t, seen, 200)
	})

	t.Run("AFailingEndpointGetsOneAtATime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		for i := range 30 {
			b.Delivery(w, i+1, "s")
		}
		for _, d := range b.claimed(10) {
			b.recorded(d, "failed", func(o *webhook.DeliveryOutcome) { o.Delay = time.Hour })
		}
		got := b.claimed(10)
		require.Len(t, got, 1)
		require.Empty(t, b.claimed(10))
		b.recorded(got[0], "delivered")
		require.Len(t, b.claimed(10), 10)
	})

	t.Run("OfOneSubjectInOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed(func(w *webhook.Definition) { w.Ordering = "subject" })
		first, second, other := b.Delivery(w, 1, "a"), b.Delivery(w, 2, "a"), b.Delivery(w, 3, "b")
		got := b.claimed(10)
		require.Len(t, got, 2)
		require.Equal(t, first, got[0].ID)
		require.Equal(t, other, got[1].ID)
		b.recorded(got[0], "failed", func(o *webhook.DeliveryOutcome) { o.Delay = time.Hour })
		require.Empty(t, b.claimed(10), "it waits for the retry of the one before")
		b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = clock_timestamp() WHERE id = $1`, first)
		got = b.claimed(10)
		require.Len(t, got, 1)
		b.recorded(got[0], "dead")
		b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = clock_timestamp() WHERE id = $1`, second)
		got = b.claimed(10)
		require.Len(t, got, 1, "a dead one releases its successors")
		require.Equal(t, second, got[0].ID)
	})
}

func TestDeliveryRecord(t *testing.T) {
	t.Parallel()

	t.Run("DisablesAfterFailingForLong", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		for i := range 3 {
			b.Delivery(w, i+1, "s")
		}
		got := b.claimed(3)
		require.Empty(t, b.recorded(got[0], "dead").Disabled, "it has failed for a moment only")
		b.Exec(`UPDATE ojs.webhooks SET failing_since = now() - interval '121 hours'`)
		again := b.recorded(got[2], "failed", func(o *webhook.DeliveryOutcome) { o.Delay = time.Hour })
		require.Empty(t, again.Disabled, "no delivery was given up")
		require.Equal(t, "failing", b.recorded(got[1], "dead").Disabled)
		shown, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.False(t, shown.Active)
		require.Equal(t, "failing", shown.DisabledReason.String)
		require.True(t, shown.DisabledAt.Valid)
		require.Equal(t, int64(2), shown.FailureCount)
	})

	t.Run("ASuccessForgetsFailures", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		for i := range 3 {
			b.Delivery(w, i+1, "s")
		}
		got := b.claimed(3)
		b.recorded(got[0], "failed", func(o *webhook.DeliveryOutcome) { o.Delay = time.Hour })
		b.recorded(got[1], "delivered")
		shown, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.Zero(t, shown.ConsecutiveFailures)
		require.False(t, shown.FailingSince.Valid)
		require.Equal(t, got[1].Secrets[0].ID, shown.ProvenSecret.Bytes)
		require.Equal(t, "gone", b.recorded(got[2], "dead", func(o *webhook.DeliveryOutcome) { o.GoneURL, o.Code = "https://example.com", 410 }).Disabled)
	})

	t.Run("AFailureIsRetriedAfterItsDelay", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		id := b.Delivery(w, 1, "s")
		b.recorded(b.claimed(1)[0], "failed", func(o *webhook.DeliveryOutcome) {
			o.Code, o.Snippet, o.Error, o.Duration, o.Delay = 503, "busy", "timeout", 250*time.Millisecond, time.Hour
		})
		d, attempts, err := b.Webhooks.Delivery(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "failed", d.Status)
		require.False(t, d.CompletedAt.Valid)
		require.Equal(t, int32(503), d.LastStatusCode.Int32)
		require.Equal(t, "timeout", d.LastError.String)
		require.Len(t, attempts, 1)
		first := attempts[0]
		require.Equal(t, time.Hour+250*time.Millisecond, d.NextAttemptAt.Time.Sub(first.StartedAt.Time), "the delay counts from the end of the request")
		require.Equal(t, []any{int32(1), int64(250), int32(503), "timeout", "busy"}, []any{first.Attempt, first.DurationMs, first.StatusCode, first.Error.String, first.Snippet.String})
		require.Empty(t, b.claimed(1))

		b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = clock_timestamp()`)
		b.recorded(b.claimed(1)[0], "delivered", func(o *webhook.DeliveryOutcome) { o.Code = 201 })
		d, attempts, err = b.Webhooks.Delivery(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []int32{1, 2}, []int32{attempts[0].Attempt, attempts[1].Attempt})
		require.True(t, d.CompletedAt.Valid)
		require.False(t, d.NextAttemptAt.Valid)
		require.False(t, d.LastError.Valid)
		shown, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.Equal(t, int32(201), shown.LastDeliveryStatus.Int32)
		require.Equal(t, d.CompletedAt, shown.LastDeliveryAt)
		require.Equal(t, []int64{1, 0}, []int64{shown.SuccessCount, shown.FailureCount}, "a failure that is retried is none of the subscription")
	})

	t.Run("FailsSinceTheFirstFailure", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		b.Delivery(w, 1, "s")
		b.Delivery(w, 2, "s")
		got := b.claimed(2)
		b.recorded(got[0], "failed")
		before, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.True(t, before.FailingSince.Valid)
		require.Equal(t, int32(1), before.ConsecutiveFailures)
		b.recorded(got[1], "dead")
		after, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.Equal(t, before.FailingSince, after.FailingSince)
		require.Equal(t, int32(2), after.ConsecutiveFailures)
		require.Equal(t, int64(1), after.FailureCount)
	})

	t.Run("ASuccessInTheSameBatchKeepsItActive", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		b.Delivery(w, 1, "s")
		b.Delivery(w, 2, "s")
		b.Exec(`UPDATE ojs.webhooks SET failing_since = now() - interval '121 hours', consecutive_failures = 5`)
		got := b.claimed(2)
		require.NoError(t, b.Webhooks.RecordDeliveries(t.Context(), []webhook.DeliveryOutcome{
			{ID: got[0].ID, Webhook: w.ID, Claims: got[0].Claims, Status: "delivered", Code: 200},
			{ID: got[1].ID, Webhook: w.ID, Claims: got[1].Claims, Status: "dead", Code: 500},
		}))
		shown, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.True(t, shown.Active)
		require.False(t, shown.FailingSince.Valid)
		require.Zero(t, shown.ConsecutiveFailures)
		require.Equal(t, int32(500), shown.LastDeliveryStatus.Int32, "of the last of the batch")
		require.Equal(t, []int64{1, 1}, []int64{shown.SuccessCount, shown.FailureCount})
	})

	t.Run("GoneOfAFormerURLDisablesNothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		id := b.Delivery(w, 1, "s")
		d := b.claimed(1)[0]
		_, err := b.changed(w.ID, func(w *webhook.Definition) { w.URL = "https://new.example" })
		require.NoError(t, err)
		require.Empty(t, b.recorded(d, "dead", func(o *webhook.DeliveryOutcome) { o.GoneURL, o.Code = "https://example.com", 410 }).Disabled)
		status, _ := b.deliveryStatus(id)
		require.Equal(t, "dead", status)
		shown, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.True(t, shown.Active)
	})

	t.Run("ADisabledOneGetsWhatWasPublishedBefore", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		b.Delivery(w, 1001, "s")
		b.Delivery(w, 1002, "s")
		got := b.claimed(2)
		b.Enqueued(domaintest.NewJob("q"))
		b.publish()
		require.Equal(t, "gone", b.recorded(got[0], "dead", func(o *webhook.DeliveryOutcome) { o.GoneURL = "https://example.com" }).Disabled)
		disabled, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		b.Exec(`UPDATE ojs.webhooks SET failing_since = now() - interval '121 hours'`)
		require.Empty(t, b.recorded(got[1], "dead").Disabled, "it is disabled once")
		again, err := b.Webhooks.Get(t.Context(), w.ID)
		require.NoError(t, err)
		require.Equal(t, []any{disabled.DisabledAt, disabled.DisabledReason}, []any{again.DisabledAt, again.DisabledReason})
		b.Enqueued(domaintest.NewJob("q"))
		b.publish()
		created, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), created.Deliveries)
	})

	t.Run("NotForACancelledDelivery", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		b.Delivery(w, 1, "s")
		d := b.claimed(1)[0]
		require.NoError(t, b.Webhooks.Delete(t.Context(), w.ID))
		require.False(t, b.recorded(d, "delivered").Counted)
		status, _ := b.deliveryStatus(d.ID)
		require.Equal(t, "cancelled", status)
	})
}

func TestDeliveryPrune(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.Subscribed()
	kept, old, waiting := b.Delivery(w, 1, "s"), b.Delivery(w, 2, "s"), b.Delivery(w, 3, "s")
	for _, d := range b.claimed(2) {
		b.recorded(d, "delivered")
	}
	b.Exec(`UPDATE ojs.webhook_deliveries SET completed_at = now() - interval '2 days' WHERE id = $1`, old)
	orphan, dueFirst := job.NewID(), job.NewID()
	b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, next_attempt_at, created_at)
		VALUES ($1, $1, 9, 0, now(), 'job.enqueued', 's', '{}', now(), now()), ($2, $2, 9, 0, now(), 'job.enqueued', 's', '{}', now() - interval '1 day', now())`, orphan, dueFirst)
	require.NoError(t, b.Webhooks.CancelOrphans(t.Context()))
	n, err := b.Webhooks.PruneDeliveries(t.Context(), 24*time.Hour)
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	_, _, err = b.Webhooks.Delivery(t.Context(), old)
	domaintest.RequireCode(t, err, ojs.ErrNotFound)
	for id, want := range map[[16]byte]string{kept: "delivered", waiting: "pending", orphan: "cancelled", dueFirst: "cancelled"} {
		status, _ := b.deliveryStatus(id)
		require.Equal(t, want, status)
	}
	var attempts int
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.webhook_attempts`).Scan(&attempts))
	require.Equal(t, 1, attempts)
}

// The last place is taken once.
func TestWebhookLimit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var created sync.WaitGroup
	for range 120 {
		created.Go(func() {
			_, _ = b.Webhooks.Create(t.Context(), &webhook.Definition{URL: "u", Events: []string{"*"}, Ordering: "none", PayloadFormat: "ojs", Secret: "12345678"}, webhook.Match{})
		})
	}
	created.Wait()
	_, total, err := b.Webhooks.List(t.Context(), webhook.Filter{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, int64(100), total)
}

// A page has the subscriptions that match, newest first, each with its secret.
func TestWebhookList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids [][16]byte // newest first
	for i := range 5 {
		w := b.Subscribed(func(w *webhook.Definition) {
			w.Active = i != 1
			if i > 2 {
				w.Tenant, w.URL = "acme", "https://acme.example"
			}
		})
		ids = append([][16]byte{w.ID}, ids...)
	}
	yes, no := true, false
	for name, test := range map[string]struct {
		filter webhook.Filter
		want   [][16]byte
		total  int64
	}{
		"All":       {webhook.Filter{Limit: 10}, ids, 5},
		"FirstPage": {webhook.Filter{Limit: 2}, ids[:2], 5},
		"Offset":    {webhook.Filter{Limit: 2, Offset: 1}, ids[1:3], 5},
		"Cursor":    {webhook.Filter{Limit: 2, Before: &ids[1]}, ids[2:4], 5},
		"BehindAll": {webhook.Filter{Limit: 2, Offset: 5}, nil, 5},
		"Active":    {webhook.Filter{Limit: 10, Active: &yes}, [][16]byte{ids[0], ids[1], ids[2], ids[4]}, 4},
		"Inactive":  {webhook.Filter{Limit: 10, Active: &no}, ids[3:4], 1},
		"URL":       {webhook.Filter{Limit: 10, URL: "https://acme.example"}, ids[:2], 2},
		"Tenant":    {webhook.Filter{Limit: 10, Tenant: "acme"}, ids[:2], 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, total, err := b.Webhooks.List(t.Context(), test.filter)
			require.NoError(t, err)
			require.Equal(t, test.total, total)
			var got [][16]byte
			for _, w := range list {
				got = append(got, w.ID)
				require.Len(t, w.Secrets, 1)
			}
			require.Equal(t, test.want, got)
		})
	}
}

// With one worker for all subscriptions, none waits until the others have nothing more.
func TestDeliveryClaimIsFair(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hooks := []*webhook.Webhook{b.Subscribed(), b.Subscribed(), b.Subscribed()}
	for i := range 30 {
		for n, w := range hooks {
			b.Delivery(w, 1+i*len(hooks)+n, "s")
		}
	}
	taken := map[[16]byte]int{}
	for range 45 {
		d := b.claimed(1)
		require.Len(t, d, 1)
		taken[d[0].WebhookID]++
		b.recorded(d[0], "delivered")
	}
	for _, w := range hooks {
		require.GreaterOrEqual(t, taken[w.ID], 4, "of 45, about 15 each")
	}
}

// Deleting or reviving a subscription with a large backlog takes several small transactions.
func TestWebhookBacklogInPieces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.Subscribed()
	const backlog = 12_000
	b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, status, next_attempt_at, created_at)
		SELECT ojs.new_id(now()), $1, i, 0, now(), 'job.enqueued', i::text, '{}', 'failed', now() + interval '1 day', now() FROM generate_series(1, $2::integer) i`, w.ID, backlog)
	set := func(active bool) {
		_, err := b.Webhooks.Change(t.Context(), w.ID, func(current webhook.Definition) (*webhook.Definition, webhook.Match, error) {
			current.Active = active
			return &current, webhook.Match{Types: []string{"%"}}, nil
		})
		require.NoError(t, err)
	}
	set(false)
	require.Empty(t, b.claimed(10))
	const transactions = `SELECT count(DISTINCT xmin::text) FROM ojs.webhook_deliveries`
	set(true)
	require.Equal(t, 3, b.Number(transactions))
	require.Len(t, b.claimed(10), 10)
	require.NoError(t, b.Webhooks.Delete(t.Context(), w.ID))
	require.Equal(t, 3, b.Number(transactions))
	page, err := b.Webhooks.Deliveries(t.Context(), webhook.DeliveryList{Status: "cancelled", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, int64(10_000), page.Total, "counted up to 10 000")
	webhooks, pending, err := b.Webhooks.Backlog(t.Context())
	require.NoError(t, err)
	require.Zero(t, webhooks+pending)
}

// sendable are the unfinished deliveries that wait for no other.
func (b *bundle) sendable() (n int) {
	b.T.Helper()
	require.NoError(b.T, b.Pool.QueryRow(b.T.Context(), `SELECT count(*) FROM ojs.webhook_deliveries WHERE completed_at IS NULL AND next_attempt_at IS NOT NULL`).Scan(&n))
	return n
}

func TestDeliveryOrder(t *testing.T) {
	t.Parallel()
	ordered := func(w *webhook.Definition) { w.Ordering = "subject" }
	waiting := func(b *bundle, w *webhook.Webhook, seq int) [16]byte {
		id := b.Delivery(w, seq, "s")
		b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = NULL WHERE id = $1`, id)
		return id
	}

	// Two of one subject run after a retry by hand or a change of ordering, and end in the same statement.
	t.Run("TwoThatEndTogetherWakeTheThird", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed()
		b.Delivery(w, 1, "s")
		b.Delivery(w, 2, "s")
		third := waiting(b, w, 3)
		got := b.claimed(10)
		require.Len(t, got, 2)
		outcomes := make([]webhook.DeliveryOutcome, len(got))
		for i, d := range got {
			outcomes[i] = webhook.DeliveryOutcome{ID: d.ID, Webhook: d.WebhookID, Claims: d.Claims, Status: "delivered", Code: 200}
		}
		require.NoError(t, b.Webhooks.RecordDeliveries(t.Context(), outcomes))
		got = b.claimed(10)
		require.Len(t, got, 1)
		require.Equal(t, third, got[0].ID)
	})

	t.Run("AnExistingDeliveryIsNoPredecessor", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed(ordered)
		job := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		b.publish()
		var seq int64
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT min(seq) FROM ojs.events WHERE job_id = $1`, job.ID).Scan(&seq))
		done := b.Delivery(w, int(seq), spec.FormatID(job.ID)) // by a replay
		b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'delivered', next_attempt_at = NULL, completed_at = now() WHERE id = $1`, done)
		created, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), created.Deliveries)
		require.Equal(t, 1, b.sendable())
	})

	t.Run("TheFirstOfASubjectIsDue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed(ordered)
		jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		b.Fetched(2, "q")
		b.publish()
		created, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(4), created.Deliveries)
		got := b.claimed(10)
		require.Len(t, got, 2)
		subjects := map[string]bool{}
		for _, d := range got {
			require.Equal(t, "job.enqueued", d.EventType)
			subjects[d.Subject] = true
			b.recorded(d, "delivered")
		}
		require.Equal(t, map[string]bool{spec.FormatID(jobs[0].ID): true, spec.FormatID(jobs[1].ID): true}, subjects)
		got = b.claimed(10)
		require.Len(t, got, 2)
		require.Equal(t, []string{"job.started", "job.started"}, []string{got[0].EventType, got[1].EventType})
		require.Equal(t, w.ID, got[0].WebhookID)
	})

	// The subject of an event is a job or something else; events of different ones do not wait for each other.
	t.Run("SubjectsThatAreNoJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Subscribed(ordered)
		for _, state := range []string{"running", "quiet"} {
			for _, id := range []string{"w1", "w2"} {
				_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: id, State: state})
				require.NoError(t, err)
			}
		}
		b.publish()
		_, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		for left := b.Number(`SELECT count(*) FROM ojs.webhook_deliveries`); left > 0; left -= 2 {
			got := b.claimed(10)
			require.Len(t, got, 2)
			require.ElementsMatch(t, []string{"w1", "w2"}, []string{got[0].Subject, got[1].Subject})
			b.recorded(got[0], "delivered")
			b.recorded(got[1], "delivered")
		}
	})

	// An outcome is recorded under the lock of the subscription. A delivery that is created meanwhile behind the one that ends would
	// never become due, and a claim would count a lease that is about to end.
	t.Run("OutcomesClaimsAndCreationFollowOneAnother", func(t *testing.T) {
		t.Parallel()
		for ordering, waits := range map[string]map[string]bool{
			"subject": {"create": true, "claim": true, "record": true}, "none": {"create": false, "claim": true, "record": true},
		} {
			b := setup(t)
			w := b.Subscribed(func(w *webhook.Definition) { w.Ordering = ordering })
			b.Delivery(w, 1001, "s")
			d := b.claimed(1)[0]
			b.Delivery(w, 1002, "t")
			b.Enqueued(domaintest.NewJob("q"))
			b.publish()
			for name, call := range map[string]func(ctx context.Context) error{
				"create": func(ctx context.Context) (err error) { _, err = b.Webhooks.CreateDeliveries(ctx); return err },
				"claim": func(ctx context.Context) (err error) {
					_, err = b.Webhooks.ClaimDeliveries(ctx, webhook.Share{Want: 1, OwnerRoom: 1})
					return err
				},
				"record": func(ctx context.Context) (err error) {
					_, err = b.Webhooks.RecordDelivery(ctx, webhook.DeliveryOutcome{ID: d.ID, Webhook: d.WebhookID, Claims: d.Claims, Status: "delivered", Code: 200})
					return err
				},
			} {
				tx, err := b.Pool.Begin(t.Context())
				require.NoError(t, err)
				t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // or the pool would wait for it when the test fails
				_, err = tx.Exec(t.Context(), `SELECT FROM ojs.webhooks WHERE id = $1 FOR NO KEY UPDATE`, w.ID)
				require.NoError(t, err)
				done := make(chan error, 1)
				go func() { done <- call(context.Background()) }()
				require.Eventually(t, func() bool {
					return len(done) > 0 || b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
				}, domaintest.WaitFor, time.Millisecond)
				require.Equal(t, waits[name], len(done) == 0, "%s %s", ordering, name)
				require.NoError(t, tx.Commit(t.Context()))
				require.NoError(t, domaintest.Await(t, done))
			}
		}
	})

	// A pass has created a delivery behind the one that ends, and has not committed: the end must see it, or it would wait for ever.
	t.Run("OneThatIsCreatedMeanwhileBecomesDue", func(t *testing.T) {
		t.Parallel()
		creating := setupLossy(t)
		b := creating.sane
		b.Subscribed(ordered)
		b.Enqueued(domaintest.NewJob("q"))
		b.publish()
		_, err := creating.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		first := b.claimed(10)
		require.Len(t, first, 1)
		b.Fetched(1, "q")
		b.publish()
		held := creating.network.Hold("name: WebhookDeliveryCreate ")
		created, ended := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := creating.Webhooks.CreateDeliveries(context.Background())
			created <- err
		}()
		<-held.Arrived
		go func() {
			o := webhook.DeliveryOutcome{ID: first[0].ID, Webhook: first[0].WebhookID, Claims: first[0].Claims, Status: "delivered", Code: 200}
			_, err := b.Webhooks.RecordDelivery(context.Background(), o)
			ended <- err
		}()
		require.Eventually(t, func() bool {
			return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}, domaintest.WaitFor, time.Millisecond)
		held.Release()
		require.NoError(t, domaintest.Await(t, created))
		require.NoError(t, domaintest.Await(t, ended))
		second := b.claimed(10)
		require.Len(t, second, 1)
		require.Equal(t, "job.started", second[0].EventType)
	})

	t.Run("OneNodeCreates", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Subscribed()
		b.Enqueued(domaintest.NewJob("q"))
		b.publish()
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })                // or the pool would wait for it when the test fails
		_, err = tx.Exec(t.Context(), `SELECT FROM ojs.webhook_cursor FOR UPDATE`) // another node
		require.NoError(t, err)
		created, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err, "it does not wait")
		require.True(t, created.Busy)
		require.NoError(t, tx.Commit(t.Context()))
		created, err = b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), created.Deliveries)
	})

	t.Run("TheFirstOfASubjectIsReleasedIfNoOtherNodeDid", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.Subscribed(ordered)
		first := waiting(b, w, 1)
		waiting(b, w, 2)
		n, err := b.Webhooks.RestartStuckDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), n)
		got := b.claimed(10)
		require.Len(t, got, 1)
		require.Equal(t, first, got[0].ID)
	})
}

// publish does what a relay does, for tests that need no more of it.
func (b *bundle) publish() {
	b.T.Helper()
	dbtest.WritesTables(b.T)
	b.Exec(`UPDATE ojs.event_relay SET watermark = (SELECT max(seq) FROM ojs.events)`)
}

// publishLate publishes events that share a number of the log, as rows do that were committed late. They come in the reverse order
// of their insertion, and take turns with the subjects.
func (b *bundle) publishLate(events, subjects int) {
	b.T.Helper()
	b.Exec(`INSERT INTO ojs.events (type, source, time, subject) SELECT 'job.enqueued', 'api', now(), 's' || n % $2::integer FROM generate_series(1, $1::integer) n`, events, subjects)
	b.publish()
	b.Exec(`UPDATE ojs.events e SET seq = (SELECT max(seq) FROM ojs.events), sub = n.place
		FROM (SELECT seq, sub, row_number() OVER (ORDER BY seq DESC, sub DESC) AS place FROM ojs.events) n WHERE (e.seq, e.sub) = (n.seq, n.sub)`)
}

// What was published while a subscription was active is delivered to it, whatever becomes of it before deliveries are created.
func TestDeliveriesOfTheDeactivated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.Subscribed()
	set := func(active bool) {
		_, err := b.Webhooks.Change(t.Context(), w.ID, func(current webhook.Definition) (*webhook.Definition, webhook.Match, error) {
			current.Active = active
			return &current, webhook.Match{Types: []string{"%"}}, nil
		})
		require.NoError(t, err)
	}
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
	b.publish()
	set(false)
	b.Enqueued(domaintest.NewJob("q"))
	b.publish()
	created, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), created.Deliveries, "paused, and no more than that")
	require.Empty(t, b.claimed(10))
	created, err = b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Equal(t, webhook.Created{}, created)
	set(true)
	require.Len(t, b.claimed(10), 2)

	b.Enqueued(domaintest.NewJob("q"))
	b.publish()
	set(false)
	set(true) // before anything is created of it
	created, err = b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, created.Deliveries, int64(1))
	set(false) // at the very place that the pass has reached
	created, err = b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Equal(t, webhook.Created{}, created, "nothing is left for it")
}

// A pass creates a part of many deliveries, and the next one goes on behind it.
func TestDeliveriesInPasses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Subscribed()
	for range 3 {
		b.Exec(`INSERT INTO ojs.events (type, source, time, subject) SELECT 'job.enqueued', 'api', now(), gen_random_uuid()::text FROM generate_series(1, 1000)`)
	}
	b.publish()
	for _, want := range []webhook.Created{{Active: 1, Deliveries: 2000, More: true}, {Active: 1, Deliveries: 1000}} {
		created, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, created)
	}
	require.Equal(t, 3000, b.Number(`SELECT count(DISTINCT subject) FROM ojs.webhook_deliveries`))
}

// Rows that were committed late share a number of the log. A pass may end between them.
func TestDeliveriesOfLateEvents(t *testing.T) {
	t.Parallel()

	t.Run("InPasses", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Subscribed()
		const late = 2100
		b.publishLate(late, late)
		for _, want := range []webhook.Created{{Active: 1, Deliveries: 2000, More: true}, {Active: 1, Deliveries: 100}, {Active: 1}} {
			created, err := b.Webhooks.CreateDeliveries(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, created)
		}
		require.Equal(t, late, b.Number(`SELECT count(DISTINCT subject) FROM ojs.webhook_deliveries`))
	})

	t.Run("OfOneSubjectInOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Subscribed(func(w *webhook.Definition) { w.Ordering = "subject" })
		b.publishLate(3, 1)
		_, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		for place := int32(1); place <= 3; place++ {
			got := b.claimed(10)
			require.Len(t, got, 1)
			require.Equal(t, place, got[0].EventSub)
			b.recorded(got[0], "delivered")
		}
	})
}

// A subscription that is made during a pass gets what is published after it: the pass leaves that to the next one.
func TestDeliveriesOfASubscriptionMadeMeanwhile(t *testing.T) {
	t.Parallel()
	for _, ordering := range []string{"none", "subject"} {
		t.Run(ordering, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Subscribed(func(w *webhook.Definition) { w.Ordering = ordering })
			b.Enqueued(domaintest.NewJob("q"))
			b.publish()
			var newer *webhook.Webhook
			node := domaintest.On(t, domaintest.Before(t, b.Pool, "WebhookDeliveryCreate", func() {
				newer = b.Subscribed()
				b.Enqueued(domaintest.NewJob("q"))
				b.publish()
			}))
			for _, want := range []int64{1, 2} {
				created, err := node.Webhooks.CreateDeliveries(t.Context())
				require.NoError(t, err)
				require.Equal(t, want, created.Deliveries)
			}
			require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE webhook_id = $1`, newer.ID))
		})
	}
}

// A subscription gets what is published after it was made, also if an older one keeps the pass further back in the log.
func TestDeliveriesOfEarlierEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	older := b.Subscribed()
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
	b.publish()
	newer := b.Subscribed()
	b.Enqueued(domaintest.NewJob("q"))
	b.publish()
	_, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	created := func(w *webhook.Webhook) int {
		return b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE webhook_id = $1`, w.ID)
	}
	require.Equal(t, 3, created(older))
	require.Equal(t, 1, created(newer))
}

// An event is delivered once, also when its delivery has been deleted because of its age.
func TestDeliveriesOfThePrunedLog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Subscribed()
	for _, want := range []int64{1, 1} {
		b.Enqueued(domaintest.NewJob("q"))
		b.publish()
		created, err := b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, created.Deliveries)
		b.Exec(`DELETE FROM ojs.webhook_deliveries`)
		created, err = b.Webhooks.CreateDeliveries(t.Context())
		require.NoError(t, err)
		require.Zero(t, created.Deliveries)
	}
}

// A lost piece of the log is not lost silently.
func TestDeliveriesOfThePruned(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Subscribed()
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
	b.publish()
	b.Exec(`UPDATE ojs.event_relay SET pruned = watermark`)
	created, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Positive(t, created.Skipped)
}

// Events that readers cannot see any more because of max_count still get their deliveries.
func TestDeliveriesBelowTheFloor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Subscribed()
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
	b.publish()
	b.Exec(`UPDATE ojs.event_relay SET kept = 3, max_count = 1`)
	b.Exec(`SELECT ojs.event_floor_raise(100)`)
	require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.event_published`))
	created, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(3), created.Deliveries)
	require.Zero(t, created.Skipped)
}

// TestDeliveryLogLooksAtSome: a list whose filter has no index of its own looks at some deliveries, and goes on from there.
func TestDeliveryLogLooksAtSome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, other := b.Subscribed(), b.Subscribed()
	const of = 50
	for i, w := range []*webhook.Webhook{one, other} {
		b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, status, completed_at, created_at)
			SELECT ojs.new_id(now() + i * interval '1 minute'), $1, i, 0, now(), CASE WHEN i = 1 THEN 'job.failed' ELSE 'job.enqueued' END, i::text, '{}',
				CASE WHEN i = 2 THEN 'dead' ELSE 'delivered' END, now(), now() + i * interval '1 minute' FROM generate_series(1, $2::integer) i`, w.ID, of)
		b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'dead' WHERE event_seq = 3 AND webhook_id = $1 AND $2`, w.ID, i == 1)
	}
	for limit, more := range map[int]bool{2*of - 1: true, 2 * of: false} {
		page, err := b.Webhooks.Deliveries(t.Context(), webhook.DeliveryList{Limit: limit})
		require.NoError(t, err)
		require.Len(t, page.Deliveries, limit)
		require.Equal(t, more, page.Next != nil, "a page that has the last of them is the last")
	}
	b.Webhooks.LookAt(20)
	for name, test := range map[string]struct {
		list        webhook.DeliveryList
		found, most int // matches, and pages that they may take
	}{
		"Type":            {webhook.DeliveryList{Type: "job.failed"}, 2, 6},
		"TypeOfWebhook":   {webhook.DeliveryList{Webhook: &one.ID, Type: "job.failed"}, 1, 3},
		"Time":            {webhook.DeliveryList{Until: time.Now().Add(90 * time.Second)}, 2, 6},
		"Status":          {webhook.DeliveryList{Status: "dead"}, 3, 1},
		"StatusOfWebhook": {webhook.DeliveryList{Webhook: &one.ID, Status: "dead"}, 1, 1},
		"Delivered":       {webhook.DeliveryList{Webhook: &one.ID, Status: "delivered"}, of - 1, 8},
		"All":             {webhook.DeliveryList{}, 2 * of, 13},
	} {
		t.Run(name, func(t *testing.T) {
			found, pages, l := map[[16]byte]bool{}, 0, test.list
			for l.Limit = 8; pages == 0 || l.Before != nil; pages++ {
				page, err := b.Webhooks.Deliveries(t.Context(), l)
				require.NoError(t, err)
				require.LessOrEqual(t, page.Total, int64(20))
				for _, d := range page.Deliveries {
					found[d.ID] = true
				}
				l.Before = page.Next
			}
			require.Len(t, found, test.found)
			require.LessOrEqual(t, pages, test.most+1)
			require.Greater(t, pages, test.most/3)
		})
	}
}
