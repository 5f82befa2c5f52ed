package webhook_test

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/webhook"
)

// cutOff is a dispatcher whose connection to the database a test can break, and a delivery that is due.
type cutOff struct {
	*webhook.Dispatcher
	network  *domaintest.Lossy
	sane     *bundle
	delivery [16]byte
}

func setupCutOff(t *testing.T) *cutOff {
	t.Helper()
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(endpoint.Close)
	roots := x509.NewCertPool()
	roots.AddCert(endpoint.Certificate())
	pool := dbtest.New(t)
	sane := &bundle{domaintest.On(t, pool)}
	lossy, network := domaintest.NewLossy(t, pool)
	b := domaintest.On(t, lossy)
	return &cutOff{
		Dispatcher: webhook.NewDispatcher(b.Archetype, b.Webhooks, sending(10), webhook.DispatcherDeps{RootCAs: roots}),
		network:    network, sane: sane,
		delivery: sane.Delivery(sane.Subscribed(func(in *webhook.Definition) { in.URL = endpoint.URL }), 1, "s"),
	}
}

// TestTimeoutOfASubscription: it is that of each request.
func TestTimeoutOfASubscription(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(endpoint.Close)
	t.Cleanup(func() { close(release) })
	roots := x509.NewCertPool()
	roots.AddCert(endpoint.Certificate())
	b := setup(t)
	d := webhook.NewDispatcher(b.Archetype, b.Webhooks, sending(1), webhook.DispatcherDeps{RootCAs: roots})
	id := b.Delivery(b.Subscribed(func(in *webhook.Definition) { in.URL, in.TimeoutMS = endpoint.URL, 50 }), 1, "s")
	require.NoError(t, d.Start(t.Context()))
	defer d.Stop()
	var attempts []webhook.AttemptRecord
	require.Eventually(t, func() (ended bool) {
		_, made, err := b.Webhooks.Delivery(t.Context(), id)
		require.NoError(t, err)
		attempts = made
		return len(made) > 0
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, "timeout", attempts[0].Error.String)
}

// TestRestsAreShort: after a pass that took little the next delivery is sent soon.
func TestRestsAreShort(t *testing.T) {
	t.Parallel()
	d := setupCutOff(t)
	require.NoError(t, d.Start(t.Context()))
	defer d.Stop()
	w := d.sane.One(`SELECT webhook_id::text FROM ojs.webhook_deliveries`)
	start := time.Now()
	for n := range 3 {
		if n > 0 {
			d.sane.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, ordered, body, next_attempt_at, created_at)
				VALUES (gen_random_uuid(), $1::text::uuid, $2, 0, now(), 'job.enqueued', 's', false, '{}', clock_timestamp(), clock_timestamp())`, w, n+1)
			d.Wake()
		}
		require.Eventually(t, func() bool {
			return d.sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE status = 'delivered'`) == n+1
		}, domaintest.WaitFor, time.Millisecond)
	}
	require.Less(t, time.Since(start), 9*time.Second, "two rests of the longest kind")
}

// TestStopDuringAClaim: a dispatcher that stops after the commit of a claim, before it knows, makes the deliveries all the same.
// Otherwise they would wait for the end of their lease.
func TestStopDuringAClaim(t *testing.T) {
	t.Parallel()
	d := setupCutOff(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	held := d.network.Hold("commit")
	require.NoError(t, d.Start(ctx))
	<-held.Arrived
	require.Equal(t, 1, d.sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE leased`))
	stop()
	select {
	case <-held.Abandoned:
	case <-time.After(200 * time.Millisecond): // enough for a statement that ends with the node
	}
	held.Release()
	d.Stop()
	status, _ := d.sane.deliveryStatus(d.delivery)
	require.Equal(t, "delivered", status)
	require.Zero(t, d.sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE leased`))
}

// TestLostClaim: a claim whose commit was not answered does not keep its deliveries until their lease ends, after 31 s here.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]domaintest.Loss{"Committed": domaintest.LoseAnswer, "NotCommitted": domaintest.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setupCutOff(t)
			d.network.Break(loss, "commit")
			require.NoError(t, d.Start(t.Context()))
			defer d.Stop()
			require.Eventually(t, func() bool {
				status, _ := d.sane.deliveryStatus(d.delivery)
				return status == "delivered"
			}, 20*time.Second, 10*time.Millisecond)
			require.Equal(t, 1, d.network.Broken())
			_, attempts := d.sane.deliveryStatus(d.delivery)
			require.EqualValues(t, 1, attempts)
		})
	}
}

// TestClaimsRest: after a slow claim a dispatcher claims nothing for as long as that took, although it is woken.
func TestClaimsRest(t *testing.T) {
	t.Parallel()
	const slow = 300 * time.Millisecond
	d := setupCutOff(t)
	first := d.network.Hold("name: WebhookDeliveryLock ")
	require.NoError(t, d.Start(t.Context()))
	defer d.Stop()
	<-first.Arrived
	time.Sleep(slow)
	second := d.network.Hold("name: WebhookDeliveryLock ")
	d.Wake()
	released := time.Now()
	first.Release()
	<-second.Arrived
	require.GreaterOrEqual(t, time.Since(released), slow)
	second.Release()
}
