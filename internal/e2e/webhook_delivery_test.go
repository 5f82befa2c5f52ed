package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
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
		begun := time.Now().Add(-time.Second).Unix() // the node knows the time to half of a round trip
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
		timestamp := c.requireSigned(t, hookSecret)
		require.GreaterOrEqual(t, timestamp, begun)
		require.LessOrEqual(t, timestamp, time.Now().Unix())
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
		// The clock of the database, which is that of the schedule: requests may arrive late.
		require.Equal(t, "true", a.one(`SELECT bool_and(next - at >= (10 * (attempt + 1)) * interval '1 ms')::text FROM (
			SELECT attempt, started_at AS at, lead(started_at) OVER (ORDER BY attempt) AS next FROM ojs.webhook_attempts) x WHERE next IS NOT NULL`))
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

	t.Run("GoneDisablesTheSubscription", func(t *testing.T) {
		t.Parallel()
		e := newEndpoint(t)
		e.on(func(w http.ResponseWriter, c call) {
			if c.path == "/gone" {
				w.WriteHeader(http.StatusGone)
			}
		})
		a := setup(t, e.quick)
		sub := a.subscribe(e, "/gone", `"job.enqueued"`)
		a.push(`"type":"t","args":[]`)
		d := a.awaitStatus(sub, "dead")
		require.Equal(t, "1", d.at("attempt_count"))
		shown := a.get("/ojs/v1/webhooks/" + sub).is(200)
		require.Equal(t, "false", shown.at("active"))
		require.Equal(t, "gone", shown.at("disabled_reason"))
		require.NotEmpty(t, shown.at("disabled_at"))
		a.subscribe(e, "/open", `"job.enqueued"`)
		a.push(`"type":"t","args":[]`)
		e.await(t, "/open", 1)
		require.Equal(t, 1, a.deliveries("subscription_id="+sub).count("deliveries"), "an inactive subscription gets no deliveries")

		e.status(http.StatusOK)
		shown = a.patch("/ojs/v1/webhooks/"+sub, `{"active":true}`).is(200)
		require.False(t, shown.has("disabled_reason"))
		require.False(t, shown.has("failing_since"))
		a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "").is(http.StatusAccepted)
		a.awaitStatus(sub, "delivered")
	})
}

func TestWebhookPausedWhileInactive(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusServiceUnavailable)
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{time.Hour, time.Hour} })
	sub, other := a.subscribe(e, "/held", `"job.enqueued"`), a.subscribe(e, "/other", `"job.enqueued"`)
	a.push(`"type":"t","args":[]`)
	a.awaitStatus(sub, "failed")
	a.awaitStatus(other, "failed")
	a.patch("/ojs/v1/webhooks/"+sub, `{"active":false}`).is(200)
	a.retryNow()
	e.await(t, "/other", 2) // due at the same time
	require.Len(t, e.received("/held"), 1)
	e.status(http.StatusOK)
	a.patch("/ojs/v1/webhooks/"+sub, `{"active":true}`).is(200)
	a.awaitStatus(sub, "delivered")
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
	c.requireSigned(t, hookSecret)

	log := a.get("/ojs/v1/webhooks/" + sub + "/deliveries").is(200)
	require.Equal(t, []string{"delivered", "dead"}, log.list("deliveries", "status"))
	require.Equal(t, res.at("delivery_id"), log.at("deliveries.0.id"))
	require.Equal(t, event.at("id"), log.at("deliveries.0.event_id"))
	a.post("/ojs/v1/webhooks/deliveries/"+log.at("deliveries.1.id")+"/retry", "").fails(409, "conflict", "invalid_state_transition")

	e.Close()
	res = a.post("/ojs/v1/webhooks/"+sub+"/test", "").is(200)
	require.Equal(t, "connect", res.at("error"))
	require.Equal(t, "0", res.at("status_code"))
	require.Equal(t, "connect", a.get("/ojs/v1/webhooks/"+sub+"/deliveries").is(200).at("deliveries.0.last_error"))
	require.Equal(t, 0, a.get("/ojs/v1/events").is(200).count("events"), "tests are not events")
}

// TestWebhookPatchKeepsTheFilter: a PATCH changes only what it names.
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

// TestWebhookChangedUnderWay: a pending delivery keeps its format, and a 410 of a former URL does not disable the subscription.
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
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{time.Hour} })
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
	a.retryNow()
	calls := e.await(t, "/form", 2)
	require.Equal(t, "application/json", calls[1].header.Get("Content-Type"))
	require.Equal(t, calls[0].body, calls[1].body)
}
