package e2e_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/webhook"
)

// TestWebhookRotation: a receiver that knows one secret at a time misses no event during a rotation.
func TestWebhookRotation(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	known := hookSecret
	var mu sync.Mutex
	e.on(func(w http.ResponseWriter, c call) {
		mu.Lock()
		defer mu.Unlock()
		timestamp, _ := strconv.ParseInt(c.header.Get("X-OJS-Timestamp"), 10, 64)
		if c.header.Get("X-OJS-Signature") != webhook.Sign(known, timestamp, c.body) {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/rotate", `"job.enqueued"`)
	made := 0
	deliver := func(attempts string) {
		t.Helper()
		a.push(`"type":"t","args":[]`)
		made++
		eventually(t, func() bool {
			log := a.deliveries("subscription_id=" + sub)
			return log.count("deliveries") == made && log.at("deliveries.0.status") == "delivered"
		})
		require.Equal(t, attempts, a.deliveries("subscription_id="+sub).at("deliveries.0.attempt_count"))
	}
	deliver("1")

	rotated := a.post("/ojs/v1/webhooks/"+sub+"/rotate-secret", "").is(200)
	newSecret := rotated.at("new_secret")
	require.Equal(t, newSecret, rotated.at("secret"))
	require.Equal(t, newSecret, rotated.at("subscription.secret"))
	require.True(t, strings.HasPrefix(newSecret, "whsec_"))
	require.NotEmpty(t, rotated.at("previous_secret_expires_at"))
	require.Equal(t, 2, rotated.count("secrets"))
	require.Equal(t, "…"+newSecret[len(newSecret)-4:], rotated.at("secrets.0.hint"))
	deliver("1") // still the older one
	calls := e.received("/rotate")
	timestamp, err := strconv.ParseInt(calls[1].header.Get("X-OJS-Timestamp"), 10, 64)
	require.NoError(t, err)
	require.Equal(t, webhook.Sign(newSecret, timestamp, calls[1].body)+","+webhook.Sign(hookSecret, timestamp, calls[1].body), calls[1].header.Get("X-OJS-Signatures"))

	mu.Lock()
	known = newSecret
	mu.Unlock()
	deliver("2") // the first attempt learns that the receiver has changed
	deliver("1")

	require.Equal(t, 1, a.del("/ojs/v1/webhooks/"+sub+"/secrets/previous").is(200).count("subscription.secrets"))
	require.Equal(t, 1, a.get("/ojs/v1/webhooks/"+sub).is(200).count("secrets"))
	deliver("1")
	last := e.received("/rotate")
	require.NotContains(t, last[len(last)-1].header.Get("X-OJS-Signatures"), ",")

	patched := a.patch("/ojs/v1/webhooks/"+sub, `{"secret":"another-secret-of-the-tests"}`).is(200)
	require.Equal(t, "another-secret-of-the-tests", patched.at("new_secret"))
	require.Equal(t, 2, patched.count("secrets"))
	third := a.post("/ojs/v1/webhooks/"+sub+"/rotate-secret", `{"secret":"the-third-secret-of-all","overlap_seconds":0}`).is(200)
	require.Equal(t, 1, third.count("secrets"), "no overlap: cut at once")
	require.Equal(t, "null", third.at("previous_secret_expires_at"))
}

// TestWebhookEncryption: secrets are encrypted in the database, and encrypted again when the key changes.
func TestWebhookEncryption(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	url := dbtest.URL(t)
	first, second := config.Key(strings.Repeat("1", 32)), config.Key(strings.Repeat("2", 32))
	with := func(keys ...config.Key) func(*app.Config) {
		return func(c *app.Config) { c.Database.URL, c.Webhooks.EncryptionKeys = url, keys }
	}
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	stored := func() (secret []byte, key string) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT secret, key_id FROM ojs.webhook_secrets`).Scan(&secret, &key))
		return secret, key
	}

	plain := setup(t, e.quick, with())
	sub := plain.subscribe(e, "/sealed", `"job.enqueued"`)
	secret, key := stored()
	require.Equal(t, hookSecret, string(secret))
	require.Empty(t, key)
	require.NoError(t, plain.app.Stop())

	sealed := setup(t, e.quick, with(first))
	secret, key = stored()
	require.NotContains(t, string(secret), hookSecret)
	require.NotEmpty(t, key)
	sealed.push(`"type":"t","args":[]`)
	c := e.await(t, "/sealed", 1)[0]
	c.requireSigned(t, hookSecret)
	require.NoError(t, sealed.app.Stop())

	changed := setup(t, e.quick, with(second, first))
	_, other := stored()
	require.NotEqual(t, key, other)
	require.NoError(t, changed.app.Stop())

	old := settings(url)
	old.Webhooks.EncryptionKeys = []config.Key{first}
	_, err = app.Start(t.Context(), old)
	require.ErrorContains(t, err, "OJS_WEBHOOKS_ENCRYPTION_KEY")
	_, err = app.Start(t.Context(), settings(url))
	require.ErrorContains(t, err, "not configured")
	require.NotEmpty(t, sub)
}

// TestWebhookSealedElsewhere: a node without the key leaves subscriptions with encrypted secrets to others and serves the rest.
func TestWebhookSealedElsewhere(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	plain := setup(t, e.quick)
	first := plain.subscribe(e, "/sealed-later", `"job.enqueued"`)
	sealing := plain.another(e.quick, func(c *app.Config) {
		c.Webhooks.EncryptionKeys = []config.Key{config.Key(strings.Repeat("k", 32))}
	})
	require.NoError(t, sealing.app.Stop())
	plain.subscribe(e, "/plain", `"job.enqueued"`)
	plain.push(`"type":"t","args":[]`)
	e.await(t, "/plain", 1)
	require.Empty(t, e.received("/sealed-later"))
	plain.post("/ojs/v1/webhooks/"+first+"/test", "").fails(503, "backend_error", "backend_unavailable")
}
