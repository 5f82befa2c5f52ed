package webhook_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
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
	d := webhook.NewDispatcher(riversharedtest.BaseServiceArchetype(t), node.Webhooks, sending(1), webhook.DispatcherDeps{RootCAs: roots})
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

// logTo writes warnings of a node as JSON, without their times.
func logTo(w *bytes.Buffer) func(*domaintest.Config) {
	return func(c *domaintest.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	}
}

// Outcomes that were recorded are counted; the log tells what was given up and what was disabled.
func TestOutcomesAreReported(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	b := setup(t, logTo(&log))
	hooks := map[string]*webhook.Webhook{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/deleted": // during the request, so the outcome is not recorded
			if err := b.Webhooks.Delete(context.Background(), hooks[r.URL.Path].ID); err != nil {
				t.Error(err)
			}
		case r.URL.Path == "/gone" && r.Header.Get("X-OJS-Attempt") == "1":
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == "/gone":
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	for _, path := range []string{"/gone", "/well", "/deleted"} {
		hooks[path] = b.Subscribed(func(w *webhook.Definition) { w.URL = server.URL + path })
	}
	id := b.Enqueued(domaintest.NewJob("q"))[0].ID
	b.publish()
	created, err := b.Webhooks.CreateDeliveries(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, created.Deliveries)

	var mu sync.Mutex
	var counted []string
	count := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		counted = append(counted, fmt.Sprintf(format, args...))
	}
	twice := sending(10)
	twice.Webhooks.RetrySchedule = []time.Duration{0}
	d := webhook.NewDispatcher(b.Archetype, b.Webhooks, twice, webhook.DispatcherDeps{
		RootCAs: roots,
		Observer: webhook.Observer{
			Attempt: func(eventType, id, status string, _ time.Duration) { count("%s %s %s", eventType, id, status) },
			Done:    func(eventType string, retries int) { count("%s done after %d retries", eventType, retries) },
		},
	})
	require.NoError(t, d.Start(t.Context()))
	require.Eventually(t, func() bool {
		return b.Number(`SELECT count(*) FROM ojs.webhook_deliveries WHERE completed_at IS NOT NULL`) == 3
	}, domaintest.WaitFor, 10*time.Millisecond)
	d.Stop()

	gone, well := webhook.ID(hooks["/gone"].ID), webhook.ID(hooks["/well"].ID)
	slices.Sort(counted)
	want := []string{
		"job.enqueued " + gone + " dead", "job.enqueued " + gone + " failed", "job.enqueued " + well + " success",
		"job.enqueued done after 0 retries", "job.enqueued done after 1 retries",
	}
	slices.Sort(want)
	require.Equal(t, want, counted)

	page, err := b.Webhooks.Deliveries(t.Context(), webhook.DeliveryList{Webhook: &hooks["/gone"].ID, Limit: 1})
	require.NoError(t, err)
	delivery := page.Deliveries[0]
	about := fmt.Sprintf(`"ojs":{"event_id":"%s","job_id":"%s"},"attributes":{"subscription_id":"%s","delivery_id":"%s","attempt":2,"status_code":410,"error":""}`,
		eventlog.NewPosition(delivery.EventTime.Time, delivery.EventSeq, delivery.EventSub), spec.FormatID(id), gone, webhook.DeliveryID(delivery.ID))
	require.Equal(t, `{"level":"WARN","msg":"webhook delivery given up","category":"webhook",`+about+"}\n"+
		`{"level":"WARN","msg":"webhook subscription disabled","category":"webhook",`+about+`,"reason":"gone"}`+"\n", log.String())
}

// A node that cannot open the secrets of a subscription tells it, but not with each claim.
func TestSealedSecretsAreReported(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var sent domaintest.Statements
	b := setup(t, func(c *domaintest.Config) {
		c.Webhooks.EncryptionKeys = []config.Key{config.Key(strings.Repeat("k", 32))}
	})
	w := b.Subscribed()
	id := b.Delivery(w, 1, "s")
	node := domaintest.On(t, domaintest.Traced(t, b.Pool, &sent), logTo(&log))
	d := webhook.NewDispatcher(node.Archetype, node.Webhooks, sending(1), webhook.DispatcherDeps{})
	require.NoError(t, d.Start(t.Context()))
	require.Eventually(t, func() bool {
		d.Wake()
		return sent.Sent("WebhookDeliveryLock") >= 3
	}, domaintest.WaitFor, time.Millisecond)
	d.Stop()
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `"category":"webhook","attributes":{"subscription_ids":["`+webhook.ID(w.ID)+`"]}`)
	status, _ := b.deliveryStatus(id)
	require.Equal(t, "pending", status)
}
