package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/webhook"
)

func TestWebhookDelivery(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick)

	t.Run("CarriesThePlainEnvelopeWithItsHeaders", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		sub := a.subscribe(e, "/plain", `"job.enqueued"`, `"filter":{"queues":["`+q+`"]}`)
		other := a.subscribe(e, "/other", `"job.*"`, `"filter":{"queues":["`+q+`-not"]}`)
		id := a.push(`"type":"mail.send","args":["a<b>&\u00e9"],"queue":"%s"`, q)
		c := e.await(t, "/plain", 1)[0]

		event := reply{t: t, body: c.body}
		polled := a.get("/ojs/v1/events?types=job.enqueued&job_id=" + id).is(200)
		require.Equal(t, polled.at("events.0.id"), event.at("id"))
		require.Equal(t, polled.at("events.0.data"), event.at("data"))
		require.Equal(t, id, event.at("subject"))
		require.False(t, event.has("event"), "the flat members are for other transports")
		require.True(t, strings.HasPrefix(c.body, `{"specversion":"1.0","id":"evt_`), c.body)

		d := a.awaitStatus(sub, "delivered")
		require.Equal(t, c.body, d.at("request_body"))
		require.Equal(t, event.at("id"), d.at("event_id"))
		require.Equal(t, id, d.at("subject"))
		require.Equal(t, "1", d.at("attempt_count"))
		require.Equal(t, "200", d.at("attempts.0.status_code"))
		require.Equal(t, "null", d.at("attempts.0.error"))
		require.NotEmpty(t, d.at("completed_at"))

		require.Equal(t, "application/json", c.header.Get("Content-Type"))
		require.Equal(t, "OJS-Webhook/1.0 (ojsd/1.2.3)", c.header.Get("User-Agent"))
		require.Equal(t, "job.enqueued", c.header.Get("X-OJS-Event-Type"))
		require.Equal(t, event.at("id"), c.header.Get("X-OJS-Event-ID"))
		require.Equal(t, sub, c.header.Get("X-OJS-Subscription-ID"))
		require.Equal(t, d.at("id"), c.header.Get("X-OJS-Delivery-ID"))
		require.Equal(t, "1", c.header.Get("X-OJS-Attempt"))
		timestamp, err := strconv.ParseInt(c.header.Get("X-OJS-Timestamp"), 10, 64)
		require.NoError(t, err)
		require.InDelta(t, time.Now().Unix(), timestamp, 30)
		require.Equal(t, webhook.Sign(hookSecret, timestamp, c.body), c.header.Get("X-OJS-Signature"))
		require.Equal(t, c.header.Get("X-OJS-Signature"), c.header.Get("X-OJS-Signatures"))
		require.Empty(t, c.header.Get("webhook-id"))

		shown := a.get("/ojs/v1/webhooks/" + sub).is(200)
		require.Equal(t, "1", shown.at("success_count"))
		require.Equal(t, "200", shown.at("last_delivery_status"))
		require.Empty(t, e.received("/other"))
		require.Equal(t, 0, a.deliveries("subscription_id="+other).count("deliveries"))
	})

	t.Run("StandardHeadersAndCloudEventsOnRequest", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		a.subscribe(e, "/cloud", `"job.enqueued"`, `"filter":{"queues":["`+q+`"]},"standard_webhooks":true,"payload_format":"cloudevents"`)
		a.push(`"type":"mail.send","args":[],"queue":"%s"`, q)
		c := e.await(t, "/cloud", 1)[0]
		event := reply{t: t, body: c.body}
		require.Equal(t, "org.openjobspec.job.enqueued", event.at("type"))
		require.Equal(t, "application/json", event.at("datacontenttype"))
		require.Equal(t, "mail.send", event.at("data.job_type"))
		require.Equal(t, "application/cloudevents+json", c.header.Get("Content-Type"))
		require.Equal(t, "job.enqueued", c.header.Get("X-OJS-Event-Type"))
		timestamp, err := strconv.ParseInt(c.header.Get("webhook-timestamp"), 10, 64)
		require.NoError(t, err)
		require.Equal(t, c.header.Get("X-OJS-Delivery-ID"), c.header.Get("webhook-id"))
		require.Equal(t, webhook.SignStandard(hookSecret, c.header.Get("webhook-id"), timestamp, c.body), c.header.Get("webhook-signature"))
	})

	t.Run("GivesUpAfterTheScheduleAndCanBeRetriedByHand", func(t *testing.T) {
		t.Parallel()
		e := newEndpoint(t)
		e.on(func(w http.ResponseWriter, _ call) { http.Error(w, "not today", http.StatusInternalServerError) })
		a := setup(t, e.quick)
		sub := a.subscribe(e, "/dead", `"job.enqueued"`)
		a.push(`"type":"t","args":[]`)
		d := a.awaitStatus(sub, "dead")
		calls := e.await(t, "/dead", 3)
		require.Len(t, calls, 3)
		require.Equal(t, "3", d.at("attempt_count"))
		require.Equal(t, []string{"1", "2", "3"}, d.list("attempts", "attempt"))
		require.Equal(t, []string{"500", "500", "500"}, d.list("attempts", "status_code"))
		require.Equal(t, "not today\n", d.at("attempts.0.response_snippet"))
		require.Equal(t, "500", d.at("last_status_code"))
		require.False(t, d.has("next_attempt_at"))
		for i, c := range calls {
			require.Equal(t, calls[0].body, c.body, "byte-identical on every attempt")
			require.Equal(t, d.at("id"), c.header.Get("X-OJS-Delivery-ID"))
			require.Equal(t, strconv.Itoa(i+1), c.header.Get("X-OJS-Attempt"))
		}
		require.GreaterOrEqual(t, calls[1].at.Sub(calls[0].at), 20*time.Millisecond)
		require.GreaterOrEqual(t, calls[2].at.Sub(calls[1].at), 30*time.Millisecond)
		shown := a.get("/ojs/v1/webhooks/" + sub).is(200)
		require.Equal(t, "1", shown.at("failure_count"))
		require.Equal(t, "0", shown.at("success_count"))
		require.NotEmpty(t, shown.at("failing_since"))
		require.Equal(t, "true", shown.at("active"))

		a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "").is(http.StatusAccepted)
		again := e.await(t, "/dead", 6)
		require.Equal(t, "4", again[3].header.Get("X-OJS-Attempt"))
		a.awaitStatus(sub, "dead")
		e.status(http.StatusNoContent)
		a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "{}").is(http.StatusAccepted)
		a.awaitStatus(sub, "delivered")
		require.False(t, a.get("/ojs/v1/webhooks/"+sub).is(200).has("failing_since"))
	})

	t.Run("ObeysRetryAfter", func(t *testing.T) {
		t.Parallel()
		e := newEndpoint(t)
		e.on(func(w http.ResponseWriter, _ call) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		})
		a := setup(t, e.quick)
		sub := a.subscribe(e, "/later", `"job.enqueued"`)
		a.push(`"type":"t","args":[]`)
		d := a.awaitStatus(sub, "failed")
		next, err := time.Parse(time.RFC3339, d.at("next_attempt_at"))
		require.NoError(t, err)
		require.InDelta(t, time.Hour, time.Until(next), float64(time.Minute))
		require.Equal(t, "429", d.at("last_status_code"))
	})

	t.Run("GoneDisablesAndHoldsWhatComes", func(t *testing.T) {
		t.Parallel()
		e := newEndpoint(t)
		e.status(http.StatusGone)
		a := setup(t, e.quick)
		sub := a.subscribe(e, "/gone", `"job.enqueued"`)
		a.push(`"type":"t","args":[]`)
		d := a.awaitStatus(sub, "dead")
		require.Equal(t, "1", d.at("attempt_count"))
		shown := a.get("/ojs/v1/webhooks/" + sub).is(200)
		require.Equal(t, "false", shown.at("active"))
		require.Equal(t, "gone", shown.at("disabled_reason"))
		require.NotEmpty(t, shown.at("disabled_at"))
		a.push(`"type":"t","args":[]`)
		a.get("/ojs/v1/events").is(200) // waits until it is published
		require.Equal(t, 1, a.deliveries("subscription_id="+sub).count("deliveries"), "an inactive subscription gets no deliveries")

		e.status(http.StatusOK)
		shown = a.do(http.MethodPatch, "/ojs/v1/webhooks/"+sub, strings.NewReader(`{"active":true}`)).is(200)
		require.False(t, shown.has("disabled_reason"))
		require.False(t, shown.has("failing_since"))
		a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "").is(http.StatusAccepted)
		a.awaitStatus(sub, "delivered")
	})
}

func TestWebhookHeldWhileInactive(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusServiceUnavailable)
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{300 * time.Millisecond, time.Hour} })
	sub := a.subscribe(e, "/held", `"job.enqueued"`)
	a.push(`"type":"t","args":[]`)
	a.awaitStatus(sub, "failed")
	a.do(http.MethodPatch, "/ojs/v1/webhooks/"+sub, strings.NewReader(`{"active":false}`)).is(200)
	calls := len(e.received("/held"))
	time.Sleep(500 * time.Millisecond) // nothing announces that nothing happens
	require.Len(t, e.received("/held"), calls)
	e.status(http.StatusOK)
	a.do(http.MethodPatch, "/ojs/v1/webhooks/"+sub, strings.NewReader(`{"active":true}`)).is(200)
	a.awaitStatus(sub, "delivered")
}

// A receiver that knows one secret at a time is never without events during a rotation.
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

	patched := a.do(http.MethodPatch, "/ojs/v1/webhooks/"+sub, strings.NewReader(`{"secret":"another-secret-of-the-tests"}`)).is(200)
	require.Equal(t, "another-secret-of-the-tests", patched.at("new_secret"))
	require.Equal(t, 2, patched.count("secrets"))
	third := a.post("/ojs/v1/webhooks/"+sub+"/rotate-secret", `{"secret":"the-third-secret-of-all","overlap_seconds":0}`).is(200)
	require.Equal(t, 1, third.count("secrets"), "no overlap: cut at once")
	require.Equal(t, "null", third.at("previous_secret_expires_at"))
}

// One endpoint that hangs and one that is dead do not hold up a third.
func TestWebhookSlowEndpoints(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	release := make(chan struct{})
	e.on(func(w http.ResponseWriter, c call) {
		switch c.path {
		case "/hangs":
			<-release
		case "/fails":
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	defer close(release)
	a := setup(t, e.quick)
	hangs := a.subscribe(e, "/hangs", `"job.enqueued"`, `"max_in_flight":3`)
	a.subscribe(e, "/fails", `"job.enqueued"`)
	a.subscribe(e, "/works", `"job.enqueued"`)
	const jobs = 60
	for range jobs {
		a.push(`"type":"t","args":[]`)
	}
	e.await(t, "/works", jobs)
	eventually(t, func() bool { return len(e.received("/hangs")) == 3 })
	require.Equal(t, 3, a.deliveries("status=delivering&subscription_id="+hangs).count("deliveries"))
}

// With ordering "subject" an event waits for those before it; others go on.
func TestWebhookOrdering(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	refused := map[string]int{}
	var mu sync.Mutex
	e.on(func(w http.ResponseWriter, c call) {
		mu.Lock()
		defer mu.Unlock()
		id := c.header.Get("X-OJS-Delivery-ID")
		if refused[id]++; refused[id] <= 2 && id[len(id)-1] < '8' { // half of them succeed with the third attempt
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/ordered", `"job.*"`, `"ordering":"subject"`)
	q := queue()
	const jobs = 20
	for range jobs {
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
	}
	for range jobs {
		a.ack(a.fetch(q).at("jobs.0.id")).is(200)
	}
	eventually(t, func() bool {
		return a.deliveries("subscription_id="+sub+"&status=delivered&per_page=1").at("pagination.total") == strconv.Itoa(3*jobs)
	})
	accepted := map[string][]string{} // types by subject, in the order of success
	tries := map[string]int{}
	for _, c := range e.received("/ordered") {
		id := c.header.Get("X-OJS-Delivery-ID")
		if tries[id]++; tries[id] == refused[id] {
			event := reply{t: t, body: c.body}
			accepted[event.at("subject")] = append(accepted[event.at("subject")], event.at("type"))
		}
	}
	require.Len(t, accepted, jobs)
	for subject, types := range accepted {
		require.Equal(t, []string{"job.enqueued", "job.started", "job.completed"}, types, subject)
	}
}

// Several nodes share the deliveries: none twice, and never more at a time than the subscription allows.
func TestWebhookNodes(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(http.ResponseWriter, call) { time.Sleep(2 * time.Millisecond) })
	url := dbtest.URL(t)
	one := setup(t, e.quick, func(c *app.Config) { c.DatabaseURL = url })
	two := setup(t, e.quick, func(c *app.Config) { c.DatabaseURL = url })
	sub := one.subscribe(e, "/nodes", `"job.enqueued"`, `"max_in_flight":4`)
	const jobs = 300
	var work sync.WaitGroup
	for _, a := range []*api{one, two} {
		work.Go(func() {
			for range jobs / 2 {
				a.push(`"type":"t","args":[]`)
			}
		})
	}
	work.Wait()
	e.await(t, "/nodes", jobs)
	eventually(t, func() bool {
		return one.deliveries("subscription_id="+sub+"&status=delivered&per_page=1").at("pagination.total") == strconv.Itoa(jobs)
	})
	seen := map[string]bool{}
	for _, c := range e.received("/nodes") {
		require.False(t, seen[c.header.Get("X-OJS-Event-ID")])
		seen[c.header.Get("X-OJS-Event-ID")] = true
	}
	require.LessOrEqual(t, e.most, 4)
	require.Equal(t, strconv.Itoa(jobs), one.get("/ojs/v1/webhooks/"+sub).at("success_count"))
}

func TestWebhookTest(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(w http.ResponseWriter, _ call) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Repeat("x", 5000))
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/test", `"*"`, `"active":false`)
	res := a.post("/ojs/v1/webhooks/"+sub+"/test", "").is(200)
	require.Equal(t, "false", res.at("success"))
	require.Equal(t, "418", res.at("status_code"))
	require.Equal(t, "418", res.at("status"))
	require.Len(t, res.at("response_body"), 1024)
	e.status(200)
	res = a.post("/ojs/v1/webhooks/subscriptions/"+sub+"/test", "{}").is(200)
	require.Equal(t, "true", res.at("success"))
	c := e.await(t, "/test", 2)[1]
	event := reply{t: t, body: c.body}
	require.Equal(t, "webhook.test", event.at("type"))
	require.Equal(t, sub, event.at("subject"))
	require.Equal(t, sub, event.at("data.subscription_id"))
	require.Equal(t, "ojs://ojs/api", event.at("source"))
	timestamp, err := strconv.ParseInt(c.header.Get("X-OJS-Timestamp"), 10, 64)
	require.NoError(t, err)
	require.Equal(t, webhook.Sign(hookSecret, timestamp, c.body), c.header.Get("X-OJS-Signature"))

	log := a.get("/ojs/v1/webhooks/" + sub + "/deliveries").is(200)
	require.Equal(t, []string{"delivered", "dead"}, log.list("deliveries", "status"))
	require.Equal(t, res.at("delivery_id"), log.at("deliveries.0.id"))
	require.Equal(t, event.at("id"), log.at("deliveries.0.event_id"))
	a.post("/ojs/v1/webhooks/deliveries/"+log.at("deliveries.1.id")+"/retry", "").fails(409, "conflict", "invalid_state_transition")

	e.Close()
	res = a.post("/ojs/v1/webhooks/"+sub+"/test", "").is(200)
	require.Equal(t, "connect", res.at("error"))
	require.Equal(t, "0", res.at("status_code"))
	require.Equal(t, 0, a.get("/ojs/v1/events").is(200).count("events"), "tests are not events")
}

// Secrets are sealed at rest, opened by the key they were sealed with, and sealed anew when the key changes.
func TestWebhookEncryption(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	url := dbtest.URL(t)
	first, second := []byte(strings.Repeat("1", 32)), []byte(strings.Repeat("2", 32))
	with := func(keys ...[]byte) func(*app.Config) {
		return func(c *app.Config) { c.DatabaseURL, c.Webhooks.EncryptionKeys = url, keys }
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
	require.NoError(t, plain.server.Stop())

	sealed := setup(t, e.quick, with(first))
	secret, key = stored()
	require.NotContains(t, string(secret), hookSecret)
	require.NotEmpty(t, key)
	sealed.push(`"type":"t","args":[]`)
	c := e.await(t, "/sealed", 1)[0]
	timestamp, err := strconv.ParseInt(c.header.Get("X-OJS-Timestamp"), 10, 64)
	require.NoError(t, err)
	require.Equal(t, webhook.Sign(hookSecret, timestamp, c.body), c.header.Get("X-OJS-Signature"))
	require.NoError(t, sealed.server.Stop())

	changed := setup(t, e.quick, with(second, first))
	_, other := stored()
	require.NotEqual(t, key, other)
	require.NoError(t, changed.server.Stop())

	config := settings(url)
	config.Webhooks.EncryptionKeys = [][]byte{first}
	_, err = app.Start(t.Context(), config)
	require.ErrorContains(t, err, "OJS_WEBHOOKS_ENCRYPTION_KEY")
	_, err = app.Start(t.Context(), settings(url))
	require.ErrorContains(t, err, "not configured")
	require.NotEmpty(t, sub)
}

func TestWebhookReplay(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick)
	for range 5 {
		a.push(`"type":"t","args":[]`)
	}
	a.get("/ojs/v1/events").is(200)
	sub := a.subscribe(e, "/replay", `"job.enqueued"`)
	require.Equal(t, "0", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h"}`).is(http.StatusAccepted).at("enqueued"))
	require.Equal(t, "5", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"all"}`).is(http.StatusAccepted).at("enqueued"))
	first := e.await(t, "/replay", 5)
	eventually(t, func() bool { return a.get("/ojs/v1/webhooks/"+sub).at("success_count") == "5" })
	require.Equal(t, "5", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"all"}`).is(http.StatusAccepted).at("enqueued"))
	all := e.await(t, "/replay", 10)
	ids := map[string]int{}
	for _, c := range all {
		ids[c.header.Get("X-OJS-Delivery-ID")]++
	}
	require.Len(t, ids, len(first), "the same delivery ids")
	var paged []string
	for page, cursor := 0, ""; page < 3; page++ {
		log := a.deliveries("limit=2&subscription_id=" + sub + "&cursor=" + cursor)
		require.Equal(t, "5", log.at("pagination.total"))
		require.Equal(t, fmt.Sprint(page < 2), log.at("pagination.has_more"))
		paged, cursor = append(paged, log.list("deliveries", "id")...), log.at("pagination.next_cursor")
	}
	require.Equal(t, a.deliveries("subscription_id="+sub).list("deliveries", "id"), paged)
	require.Equal(t, 1, a.deliveries("event_id="+(reply{t: t, body: first[0].body}).at("id")).count("deliveries"))
	require.Equal(t, 0, a.deliveries("event_id=evt_019c0a11-2f40-7000-8000-000000000000").count("deliveries"))
	a.post("/ojs/v1/webhooks/"+sub+"/replay", `{}`).invalid("since")
	a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"some"}`).invalid("only")
	require.Equal(t, "0", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z","only":"all"}`).is(202).at("enqueued"))
}

// The endpoint gets the trace of the event, and the attempt is a span in it.
func TestWebhookTrace(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setupTraced(t, e.quick)
	sub := a.subscribe(e, "/traced", `"job.enqueued"`)
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	a.push(`"type":"t","args":[],"meta":{"traceparent":"00-%s-b7ad6b7169203331-01"}`, traceID)
	c := e.await(t, "/traced", 1)[0]
	span := a.span("ojs.webhook.deliver", "ojs.webhook.subscription_id", sub)
	require.Equal(t, traceID, span.SpanContext.TraceID().String())
	require.Equal(t, "00-"+traceID+"-"+span.SpanContext.SpanID().String()+"-01", c.header.Get("traceparent"))
	require.Equal(t, "200", attr(span, "http.response.status_code"))

	a.push(`"type":"t","args":[],"meta":{"trace_id":"not-of-this-form"}`)
	require.Empty(t, e.await(t, "/traced", 2)[1].header.Get("traceparent"))
	untraced := setup(t, e.quick)
	untraced.subscribe(e, "/untraced", `"job.enqueued"`)
	untraced.push(`"type":"t","args":[],"meta":{"traceparent":"00-%s-b7ad6b7169203331-01"}`, traceID)
	require.Empty(t, e.await(t, "/untraced", 1)[0].header.Get("traceparent"))
}

func TestWebhookMetrics(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(w http.ResponseWriter, c call) {
		if c.header.Get("X-OJS-Attempt") == "1" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/counted", `"job.enqueued"`)
	a.push(`"type":"t","args":[]`)
	a.awaitStatus(sub, "delivered")
	e.status(http.StatusInternalServerError)
	a.push(`"type":"t","args":[]`)
	eventually(t, func() bool { return a.deliveries("status=dead").count("deliveries") == 1 })
	var text string
	eventually(t, func() bool {
		text = a.get("/metrics").is(200).body
		return strings.Contains(text, `ojs_webhook_dead_delivery_count_total{event_type="job.enqueued",subscription_id="`+sub+`"} 1`)
	})
	for _, line := range []string{
		`ojs_webhook_delivery_count_total{event_type="job.enqueued",status="success"} 1`,
		`ojs_webhook_delivery_count_total{event_type="job.enqueued",status="failed"} 3`,
		`ojs_webhook_delivery_count_total{event_type="job.enqueued",status="dead"} 1`,
		`ojs_webhook_delivery_retry_count_count{event_type="job.enqueued"} 2`,
		`ojs_webhook_delivery_retry_count_sum{event_type="job.enqueued"} 3`,
		`ojs_webhook_delivery_duration_ms_count{event_type="job.enqueued",subscription_id="` + sub + `"} 5`,
		`ojs_webhook_subscription_count 1`,
		`ojs_webhook_pending 0`,
	} {
		require.Contains(t, text, line+"\n")
	}
}

// A burst of events for many subscriptions does not hold up their publication.
func TestWebhookBurst(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.Workers = 1 })
	const hooks, jobs = 40, 1000
	for range hooks {
		a.subscribe(e, "/burst", `"*"`)
	}
	stream := a.open("/ojs/v1/events/stream?types=job.enqueued")
	batch := `{"jobs":[` + strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[]},`, jobs), ",") + `]}`
	a.post("/ojs/v1/jobs/batch", batch).is(http.StatusCreated)
	start := time.Now()
	for range jobs {
		stream.next()
	}
	require.Less(t, time.Since(start), 5*time.Second, "deliveries are made behind the log, not in front of it")
	var made int
	conn, err := pgx.Connect(t.Context(), a.database)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	for begin := time.Now(); made < hooks*jobs; time.Sleep(50 * time.Millisecond) {
		require.Less(t, time.Since(begin), time.Minute)
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM ojs.webhook_deliveries`).Scan(&made))
	}
	require.Equal(t, hooks*jobs, made)
}

// What a PATCH does not name stays as it is, patterns with special characters included.
func TestWebhookPatchKeepsTheFilter(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick)
	q := "q-" + newID()
	sub := a.subscribe(e, "/filtered", `"job.enqueued"`, `"filter":{"sources":["ojs://ojs/api*"],"queues":["`+q+`",""],"job_types":[""]}`)
	for n := range 4 {
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
		e.await(t, "/filtered", n+1)
		a.patch("/ojs/v1/webhooks/"+sub, fmt.Sprintf(`{"metadata":{"n":%d}}`, n)).is(200)
		a.put("/ojs/v1/webhooks/"+sub, `{"active":false}`).is(200)
		require.Equal(t, `{"sources":["ojs://ojs/api*"],"queues":["`+q+`",""],"job_types":[""]}`, a.put("/ojs/v1/webhooks/"+sub, `{"active":true}`).is(200).at("filter"))
	}
}

// Whatever ends the head of a subject lets the next one go at once.
func TestWebhookOrderingAfterRetryByHand(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(w http.ResponseWriter, _ call) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/head", `"job.*"`, `"ordering":"subject"`)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	d := a.awaitStatus(sub, "failed")
	a.fetch(q)
	a.ack(id).is(200)
	eventually(t, func() bool { return a.deliveries("status=pending").count("deliveries") == 2 })
	e.status(200)
	a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "").is(http.StatusAccepted)
	calls := e.await(t, "/head", 4)
	require.Equal(t, []string{"job.enqueued", "job.started", "job.completed"},
		[]string{calls[1].header.Get("X-OJS-Event-Type"), calls[2].header.Get("X-OJS-Event-Type"), calls[3].header.Get("X-OJS-Event-Type")})
}

// A change of ordering holds for what waits already.
func TestWebhookOrderingChanges(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusInternalServerError)
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{time.Hour} })
	sub := a.subscribe(e, "/changes", `"job.*"`)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.awaitStatus(sub, "failed")
	a.patch("/ojs/v1/webhooks/"+sub, `{"ordering":"subject"}`).is(200)
	a.fetch(q)
	eventually(t, func() bool { return a.deliveries("").count("deliveries") == 2 })
	a.push(`"type":"other","args":[]`)
	e.await(t, "/changes", 2) // a later event of another subject has been sent, job.started has not
	require.Len(t, e.received("/changes"), 2)
	require.Equal(t, "pending", a.deliveries("event_type=job.started").at("deliveries.0.status"))
	a.patch("/ojs/v1/webhooks/"+sub, `{"ordering":"none"}`).is(200)
	e.await(t, "/changes", 3)
	require.NotEmpty(t, id)
}

// A pending delivery keeps the form it was made in; a 410 of a former URL says nothing about the present one.
func TestWebhookChangedUnderWay(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	asked, go410 := make(chan struct{}), make(chan struct{})
	e.on(func(w http.ResponseWriter, c call) {
		switch {
		case c.path == "/old" && c.header.Get("X-OJS-Attempt") == "1":
			close(asked)
			<-go410
			w.WriteHeader(http.StatusGone)
		case c.path == "/form" && c.header.Get("X-OJS-Attempt") == "1":
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{time.Second} })
	old := a.subscribe(e, "/old", `"job.enqueued"`)
	form := a.subscribe(e, "/form", `"job.enqueued"`)
	a.push(`"type":"t","args":[]`)
	<-asked
	a.patch("/ojs/v1/webhooks/"+old, `{"url":"`+e.URL+`/new"}`).is(200)
	close(go410)
	a.awaitStatus(old, "dead")
	require.Equal(t, "true", a.get("/ojs/v1/webhooks/"+old).is(200).at("active"))

	a.awaitStatus(form, "failed")
	a.patch("/ojs/v1/webhooks/"+form, `{"payload_format":"cloudevents"}`).is(200)
	calls := e.await(t, "/form", 2)
	require.Equal(t, "application/json", calls[1].header.Get("Content-Type"))
	require.Equal(t, calls[0].body, calls[1].body)
}

// Deleting while deliveries run is no deadlock and no error.
func TestWebhookDeleteUnderLoad(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick)
	stop := make(chan struct{})
	var pushing sync.WaitGroup
	for range 2 {
		pushing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					a.push(`"type":"t","args":[]`)
				}
			}
		})
	}
	for range 15 {
		subs := make([]string, 4)
		for i := range subs {
			subs[i] = a.subscribe(e, "/deleted", `"*"`)
		}
		time.Sleep(20 * time.Millisecond) // some deliveries
		var deleting sync.WaitGroup
		for _, sub := range subs {
			deleting.Go(func() {
				if r := a.del("/ojs/v1/webhooks/" + sub); r.status != http.StatusNoContent {
					t.Errorf("%d %s", r.status, r.body)
				}
			})
		}
		deleting.Wait()
	}
	close(stop)
	pushing.Wait()
	eventually(t, func() bool {
		n := 0
		for _, status := range []string{"pending", "delivering", "failed"} {
			n += a.deliveries("status=" + status).count("deliveries")
		}
		return n == 0
	})
}

// A node without the key leaves sealed subscriptions to others and goes on with the rest.
func TestWebhookSealedElsewhere(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	url := dbtest.URL(t)
	plain := setup(t, e.quick, func(c *app.Config) { c.DatabaseURL = url })
	first := plain.subscribe(e, "/sealed-later", `"job.enqueued"`)
	sealing := setup(t, e.quick, func(c *app.Config) {
		c.DatabaseURL, c.Webhooks.EncryptionKeys = url, [][]byte{[]byte(strings.Repeat("k", 32))}
	})
	require.NoError(t, sealing.server.Stop())
	plain.subscribe(e, "/plain", `"job.enqueued"`)
	plain.push(`"type":"t","args":[]`)
	e.await(t, "/plain", 1)
	require.Empty(t, e.received("/sealed-later"))
	plain.post("/ojs/v1/webhooks/"+first+"/test", "").fails(503, "backend_error", "backend_unavailable")
}

// Two replays at a time make each delivery once.
func TestWebhookReplayTwice(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusInternalServerError)
	a := setup(t, e.quick)
	for range 50 {
		a.push(`"type":"t","args":[]`)
	}
	a.get("/ojs/v1/events").is(200)
	sub := a.subscribe(e, "/x", `"job.enqueued"`)
	var replaying sync.WaitGroup
	for range 4 {
		replaying.Go(func() { a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"all"}`).is(202) })
	}
	replaying.Wait()
	require.Equal(t, "50", a.deliveries("subscription_id="+sub).at("pagination.total"))
}
