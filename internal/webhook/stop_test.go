package webhook_test

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

// TestStopDuringAClaim: a dispatcher that stops after the commit of a claim, before it knows, makes the deliveries all the same.
// Otherwise they would wait for the end of their lease.
func TestStopDuringAClaim(t *testing.T) {
	t.Parallel()
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(endpoint.Close)
	roots := x509.NewCertPool()
	roots.AddCert(endpoint.Certificate())
	pool := dbtest.New(t)
	sane := &bundle{domaintest.On(t, pool)}
	lossy, network := domaintest.NewLossy(t, pool)
	b := &bundle{domaintest.On(t, lossy)}
	id := sane.delivery(sane.subscribed(func(in *webhook.Definition) { in.URL = endpoint.URL }), 1, "s")
	d := webhook.NewDispatcher(b.Archetype, b.Webhooks, webhook.Config{
		Rules: egress.Rules{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, RootCAs: roots, Workers: 10,
	})

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	held := network.Hold("commit")
	require.NoError(t, d.Start(ctx))
	<-held.Arrived
	require.Equal(t, 1, sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE leased`))
	stop()
	select {
	case <-held.Abandoned:
	case <-time.After(200 * time.Millisecond): // enough for a statement that ends with the node
	}
	held.Release()
	d.Stop()
	status, _ := sane.deliveryStatus(id)
	require.Equal(t, "delivered", status)
	require.Zero(t, sane.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE leased`))
}
