package webhook_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
)

// A subscription of a tenant gets the events of its jobs, now and by a replay; one of an operator gets those of all.
func TestDeliveriesOfTenants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of := func(tenant string) func(*webhook.Definition) {
		return func(d *webhook.Definition) { d.Tenant = tenant }
	}
	acme, other, all := b.Subscribed(of("acme")), b.Subscribed(of("other")), b.Subscribed()
	lane := func(lane string) *job.Job { return domaintest.With(func(j *job.Job) { j.Lane = lane }) }
	stored := b.Enqueued(lane("acme"), lane("ac"), lane(""), lane("acme.eu"))
	b.publish()
	created, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(5), created.Deliveries)
	subjects := func(w *webhook.Webhook) []string {
		return b.Texts(`SELECT subject FROM ojs.webhook_deliveries WHERE webhook_id = $1`, w.ID)
	}
	require.Equal(t, []string{spec.FormatID(stored[0].ID)}, subjects(acme))
	require.Empty(t, subjects(other))
	require.Len(t, subjects(all), 4)

	b.Exec(`DELETE FROM ojs.webhook_deliveries`)
	replay := webhook.Replay{All: true, Since: job.When{Set: true, At: stored[0].CreatedAt.Time.AddDate(0, 0, -1)}}
	n, err := b.Webhooks.Replay(t.Context(), acme.ID, replay)
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	require.Equal(t, []string{spec.FormatID(stored[0].ID)}, subjects(acme))

	page, err := b.Webhooks.Deliveries(t.Context(), webhook.DeliveryList{Tenant: "acme", Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Deliveries, 1)
	page, err = b.Webhooks.Deliveries(t.Context(), webhook.DeliveryList{Tenant: "other", Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Deliveries)
	require.Zero(t, page.Total)
}

// Slow endpoints of one tenant, however many subscriptions it has, leave room for those of others.
func TestClaimsOfTenants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of := func(tenant string) *webhook.Webhook {
		return b.Subscribed(func(d *webhook.Definition) { d.Tenant, d.MaxInFlight = tenant, 100 })
	}
	for range 3 {
		of("acme")
	}
	of("other")
	mine := spec.FormatID(of("").ID)
	var jobs []*job.Job
	for range 10 {
		for _, tenant := range []string{"acme", "other"} {
			jobs = append(jobs, domaintest.With(func(j *job.Job) { j.Lane = tenant }))
		}
	}
	b.Enqueued(jobs...)
	b.publish()
	_, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	claim := func(share webhook.Share) map[string]int {
		claimed, err := b.Webhooks.ClaimDeliveries(t.Context(), share)
		require.NoError(t, err)
		owners := map[string]int{}
		for _, d := range claimed.Deliveries {
			owners[d.Owner]++
		}
		return owners
	}
	require.Equal(t, map[string]int{"acme": 2, "other": 2, mine: 2}, claim(webhook.Share{Want: 6, OwnerRoom: 5}), "in turns")
	require.Equal(t, map[string]int{"acme": 1, "other": 3, mine: 5},
		claim(webhook.Share{Want: 100, OwnerRoom: 5, Owners: []string{"acme", "other"}, Running: []int64{4, 2}}))
	require.Equal(t, map[string]int{mine: 5}, claim(webhook.Share{Want: 100, OwnerRoom: 5, Owners: []string{"acme", "other"}, Running: []int64{5, 7}}))
	require.Equal(t, map[string]int{"acme": 27, "other": 5, mine: 8}, claim(webhook.Share{Want: 100, OwnerRoom: 100}))
}
