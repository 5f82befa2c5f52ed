package webhook_test

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

// failures counts statements that fail.
type failures struct{ atomic.Int32 }

func (*failures) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (f *failures) TraceQueryEnd(_ context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if q.Err != nil {
		f.Add(1)
	}
}

// A delivery whose outcome is not recorded is sent again, so a failure of the database is no reason to give up.
func TestOutcomeIsRecordedAfterAnError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var requests atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	var failed failures
	node := domaintest.On(t, domaintest.Traced(t, b.Pool, &failed))
	d := webhook.NewDispatcher(riversharedtest.BaseServiceArchetype(t), node.Webhooks, webhook.Config{
		Rules: egress.Rules{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, RootCAs: roots, Workers: 1,
	})
	id := b.Delivery(b.Subscribed(func(w *webhook.Definition) { w.URL = server.URL }), 1, "s")
	b.Exec(`ALTER TABLE ojs.webhook_attempts RENAME TO elsewhere`) // only the statement that records an outcome names it
	require.NoError(t, d.Start(t.Context()))
	defer d.Stop()
	require.Eventually(t, func() bool { return requests.Load() == 1 }, domaintest.WaitFor, time.Millisecond)
	require.Eventually(t, func() bool { return failed.Load() > 0 }, domaintest.WaitFor, time.Millisecond)
	b.Exec(`ALTER TABLE ojs.elsewhere RENAME TO webhook_attempts`)
	require.Eventually(t, func() bool {
		status, attempts := b.deliveryStatus(id)
		return status == "delivered" && attempts == 1
	}, domaintest.WaitFor, 10*time.Millisecond)
	require.EqualValues(t, 1, requests.Load())
}
