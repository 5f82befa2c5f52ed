package e2e_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/webhook"
)

const hookSecret = "whsec_a-secret-of-the-tests-only"

// call is one request that an endpoint received.
type call struct {
	at     time.Time
	path   string
	header http.Header
	body   string
}

// requireSigned checks the signature of a request and returns its timestamp.
func (c call) requireSigned(t testing.TB, secret string) (timestamp int64) {
	t.Helper()
	timestamp, err := strconv.ParseInt(c.header.Get("X-OJS-Timestamp"), 10, 64)
	require.NoError(t, err)
	require.Equal(t, webhook.Sign(secret, timestamp, c.body), c.header.Get("X-OJS-Signature"))
	return timestamp
}

// endpoint is a TLS server that answers as configured and records its requests.
type endpoint struct {
	*httptest.Server
	ca string // file

	mu      sync.Mutex
	calls   []call
	answer  func(w http.ResponseWriter, c call)
	running int
	most    int // requests at a time
}

func newEndpoint(t testing.TB) *endpoint {
	t.Helper()
	e := &endpoint{ca: filepath.Join(t.TempDir(), "ca.pem")}
	e.Server = httptest.NewTLSServer(e)
	t.Cleanup(e.Close)
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
	require.NoError(t, os.WriteFile(e.ca, block, 0o600))
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c := call{time.Now(), r.URL.Path, r.Header.Clone(), string(body)}
	e.mu.Lock()
	e.calls = append(e.calls, c)
	e.running++
	e.most = max(e.most, e.running)
	answer := e.answer
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.running--
		e.mu.Unlock()
	}()
	if answer != nil {
		answer(w, c)
	}
}

// on has requests answered by f.
func (e *endpoint) on(f func(w http.ResponseWriter, c call)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = f
}

func (e *endpoint) status(code int) {
	e.on(func(w http.ResponseWriter, _ call) { w.WriteHeader(code) })
}

func (e *endpoint) received(path string) (calls []call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.calls {
		if path == "" || c.path == path {
			calls = append(calls, c)
		}
	}
	return calls
}

// atOnce is how many requests run now.
func (e *endpoint) atOnce() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

// await returns the calls of a path when there are n of them.
func (e *endpoint) await(t testing.TB, path string, n int) []call {
	t.Helper()
	eventually(t, func() bool { return len(e.received(path)) >= n })
	return e.received(path)
}

// quick lets a node send to the endpoint, and retry after milliseconds.
func (e *endpoint) quick(c *app.Config) {
	c.Webhooks.CAFile = e.ca
	c.Webhooks.AllowNetworks.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	c.Webhooks.RetrySchedule = []time.Duration{20 * time.Millisecond, 30 * time.Millisecond}
	c.Webhooks.RetryJitter = 0
}

// subscribe creates a subscription; more are members of its object.
func (a *node) subscribe(e *endpoint, path, events string, more ...string) string {
	a.t.Helper()
	body := fmt.Sprintf(`{"url":"%s%s","events":[%s],"secret":"%s"%s}`, e.URL, path, events, hookSecret, strings.Join(append([]string{""}, more...), ","))
	return a.post("/ojs/v1/webhooks", body).is(http.StatusCreated).at("id")
}

func (a *node) deliveries(query string) reply {
	a.t.Helper()
	return a.get("/ojs/v1/webhooks/deliveries?" + query).is(http.StatusOK)
}

// retryNow makes all deliveries due that wait for another attempt.
func (a *node) retryNow() {
	a.t.Helper()
	a.exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = now() WHERE status = 'failed'`)
	a.exec(`SELECT pg_notify('ojs_webhooks', 'made')`)
}

// awaitStatus waits until the only delivery of the subscription has the status, and returns it whole.
func (a *node) awaitStatus(subscription, status string) reply {
	a.t.Helper()
	eventually(a.t, func() bool {
		return strings.Join(a.deliveries("subscription_id="+subscription).list("deliveries", "status"), " ") == status
	})
	id := a.deliveries("subscription_id=" + subscription).at("deliveries.0.id")
	return a.get("/ojs/v1/webhooks/deliveries/" + id).is(http.StatusOK)
}
