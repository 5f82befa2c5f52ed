package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

const hookBody = `{"url":"https://example.com/hook","events":["job.failed","workflow.*"],"secret":"1234567890123456"}`

func TestWebhookSubscriptions(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("AreCreatedReadChangedAndDeleted", func(t *testing.T) {
		t.Parallel()
		for _, base := range []string{"/ojs/v1/webhooks", "/ojs/v1/webhooks/subscriptions"} {
			a := a.in(t)
			made := a.post(base, `{"url":"https://example.com/hook","events":["job.failed","workflow.*"],"secret":"1234567890123456","metadata":{"n":1.50},"filter":{"queues":["billing"]}}`).is(http.StatusCreated)
			id := made.at("id")
			require.Regexp(t, `^sub_[0-9a-f]{8}-[0-9a-f]{4}-7`, id)
			require.Equal(t, "/ojs/v1/webhooks/"+id, made.header.Get("Location"))
			require.Equal(t, "1234567890123456", made.at("secret"))
			for _, prefix := range []string{"", "subscription."} {
				require.Equal(t, id, made.at(prefix+"id"))
				require.Equal(t, []string{"job.failed", "workflow.*"}, made.texts(prefix+"events"))
				require.Equal(t, "true", made.at(prefix+"active"))
				require.Equal(t, "30000", made.at(prefix+"timeout_ms"))
				require.Equal(t, "10", made.at(prefix+"max_in_flight"))
				require.Equal(t, "none", made.at(prefix+"ordering"))
				require.Equal(t, "ojs", made.at(prefix+"payload_format"))
				require.Equal(t, `{"n":1.50}`, made.at(prefix+"metadata"))
				require.Equal(t, `{"queues":["billing"]}`, made.at(prefix+"filter"))
				require.Equal(t, "…3456", made.at(prefix+"secrets.0.hint"))
				require.Equal(t, "0", made.at(prefix+"success_count"))
			}
			got := a.get(base + "/" + id).is(200)
			require.False(t, got.has("secret"))
			require.False(t, got.has("subscription.secret"))
			require.NotContains(t, got.body, "1234567890123456")
			require.NotContains(t, a.get(base).is(200).body, "1234567890123456")

			changed := a.patch(base+"/"+id, `{"events":["job.dead","worker.registered","*"],"success_count":1,"timeout_ms":1000,"filter":null,"metadata":null}`).is(200)
			require.Equal(t, []string{"job.dead", "worker.registered", "*"}, changed.texts("subscription.events"))
			require.Equal(t, "1000", changed.at("timeout_ms"))
			require.False(t, changed.has("filter"))
			require.False(t, changed.has("metadata"))
			require.Equal(t, "https://example.com/hook", changed.at("url"))
			require.False(t, changed.has("secret"))
			changed = a.put(base+"/"+id, `{"timeout_ms":null,"active":false,"ordering":"subject"}`).is(200)
			require.Equal(t, "30000", changed.at("timeout_ms"))
			require.Equal(t, "false", changed.at("active"))
			require.Equal(t, "subject", changed.at("ordering"))
			require.Equal(t, "none", a.put(base+"/"+id, `{"ordering":null}`).is(200).at("ordering"))

			a.del(base + "/" + id).is(http.StatusNoContent)
			a.del(base+"/"+id).fails(404, "not_found", "not_found")
			a.get(base+"/"+id).fails(404, "not_found", "not_found")
			a.patch(base+"/"+id, `{}`).fails(404, "not_found", "not_found")
			for _, action := range []string{"test", "rotate-secret"} {
				a.post(base+"/"+id+"/"+action, "").fails(404, "not_found", "not_found")
			}
			a.post(base+"/"+id+"/replay", `{"since":"1h"}`).fails(404, "not_found", "not_found")
			a.del(base+"/"+id+"/secrets/previous").fails(404, "not_found", "not_found")
			a.get(base+"/"+id+"/deliveries").fails(404, "not_found", "not_found")
		}
	})

	t.Run("RefuseWhatIsMistyped", func(t *testing.T) {
		t.Parallel()
		const missing = `{"url":"https://example.com"`
		for field, bodies := range map[string][]string{
			"url":    {`{}`, `{"url":1}`, `{"url":null}`, `{"url":["https://example.com"]}`, `{"url":"https://example.com/\u0000"}`},
			"events": {`{"url":"https://example.com"}`, `{"events":"job.*"}`, `{"events":[1]}`, `{"events":["JOB.*"]}`, `{"events":["job:completed"]}`, `{"events":["*.failed"]}`, `{"events":[""]}`, `{"events":["job.failed","job.failed"]}`, `{"events":{}}`, `{"events":["a\u0000"]}`},
			"secret": {`{"url":"https://example.com","events":["*"]}`, `{"secret":1}`},
			"active": {`{"active":"yes"}`, `{"active":null}`}, "metadata": {`{"metadata":[]}`, `{"metadata":"x"}`},
			"timeout_ms": {`{"timeout_ms":"1s"}`, `{"timeout_ms":1000.5}`}, "max_in_flight": {`{"max_in_flight":true}`}, "ordering": {`{"ordering":1}`},
			"payload_format": {`{"payload_format":{}}`}, "standard_webhooks": {`{"standard_webhooks":0}`},
			"filter": {`{"filter":[]}`}, "filter.queues": {`{"filter":{"queues":"a"}}`, `{"filter":{"queues":[1]}}`}, "filter.queue": {`{"filter":{"queue":["a"]}}`},
			"filter.sources": {`{"filter":{"sources":["*a"]}}`},
			"body":           {``, `[]`, `{"a":`, `null`, "{\"url\":\"\xff\"}"},
		} {
			for _, body := range bodies {
				if strings.HasPrefix(body, `{"`) && strings.HasSuffix(body, "}") && !strings.HasPrefix(body, missing) {
					body = hookBody[:len(hookBody)-1] + "," + body[1:] // of equal names the last counts
				}
				a.in(t).post("/ojs/v1/webhooks", body).invalid(field)
			}
		}
	})

	t.Run("RefuseWhatIsNotAdmissible", func(t *testing.T) {
		t.Parallel()
		many := make([]string, 51)
		for i := range many {
			many[i] = fmt.Sprintf(`"job.a%d*"`, i)
		}
		for field, members := range map[string][]string{
			"url": {
				`"url":"http://example.com/"`, `"url":"https://localhost/"`, `"url":"https://10.0.0.1/"`, `"url":"https://169.254.169.254/"`, `"url":"https://[::1]/"`, `"url":"ftp://example.com"`,
				`"url":"https://u:p@example.com/"`, `"url":"https://example.com/#x"`, `"url":""`, `"url":"https://example.com/` + strings.Repeat("x", 2048) + `"`,
			},
			"events":        {`"events":[]`, `"events":["job.unknown"]`, `"events":["job.completed","nothing.*"]`, `"events":["webhook.test"]`, `"events":["job.state_changed"]`, `"events":[` + strings.Join(many, ",") + `]`},
			"secret":        {`"secret":"short"`, `"secret":"` + strings.Repeat("x", 257) + `"`, `"secret":"pässwörter"`, `"secret":"1234567\n90"`},
			"timeout_ms":    {`"timeout_ms":999`, `"timeout_ms":60001`, `"timeout_ms":1e30`},
			"max_in_flight": {`"max_in_flight":0`, `"max_in_flight":101`}, "ordering": {`"ordering":"fifo"`}, "payload_format": {`"payload_format":"xml"`},
			"metadata": {`"metadata":{"x":"` + strings.Repeat("x", 4096) + `"}`},
		} {
			for _, member := range members {
				body := `{"url":"https://example.com","secret":"1234567890123456","events":["*"],` + member + `}`
				r := a.in(t).post("/ojs/v1/webhooks", body).fails(422, "validation_error", "validation_error")
				require.NotContains(t, r.at("error.docs_url"), "RETRY_POLICY")
				require.Equal(t, field, r.at("error.details.field"), r.body)
				if field == "secret" {
					require.NotContains(t, r.body, "short\"")
				}
			}
		}
	})

	t.Run("AreNotChangedByARefusedPatch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.post("/ojs/v1/webhooks", hookBody).is(201).at("id")
		before := a.get("/ojs/v1/webhooks/" + id).is(200).body
		a.patch("/ojs/v1/webhooks/"+id, `{"url":"https://10.0.0.1/","active":false}`).is(422)
		a.patch("/ojs/v1/webhooks/"+id, `{"active":false,"events":[]}`).is(422)
		a.patch("/ojs/v1/webhooks/"+id, `{"active":false,"url":null}`).invalid("url")
		a.post("/ojs/v1/webhooks/"+id+"/rotate-secret", `{"secret":"short"}`).is(422)
		a.post("/ojs/v1/webhooks/"+id+"/rotate-secret", `{"overlap_seconds":-1}`).is(422)
		a.post("/ojs/v1/webhooks/"+id+"/rotate-secret", `{"overlap_seconds":"1h"}`).invalid("overlap_seconds")
		require.Equal(t, before, a.get("/ojs/v1/webhooks/"+id).is(200).body)
		a.post("/ojs/v1/webhooks", `{"url":"https://example.com","events":["job.unknown"],"secret":"12345678"}`).is(422)
	})

	t.Run("UnknownIdsAndParametersAreRefused", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, id := range []string{"x", "sub_x", "sub_" + newID(), newID(), "sub_%00", "deliveriesx"} {
			a.get("/ojs/v1/webhooks/"+id).fails(404, "not_found", "not_found")
			a.get("/ojs/v1/webhooks/deliveries/"+id).fails(404, "not_found", "not_found")
			a.post("/ojs/v1/webhooks/deliveries/"+id+"/retry", "").fails(404, "not_found", "not_found")
		}
		for path, parameter := range map[string]string{
			"?limit=0": "limit", "?offset=-1": "offset", "?cursor=x": "cursor", "?active=maybe": "active", "?url=%00": "url",
			"/deliveries?status=lost": "status", "/deliveries?subscription_id=x": "subscription_id", "/deliveries?event_id=x": "event_id",
			"/deliveries?since=yesterday": "since", "/deliveries?event_type=%00": "event_type", "/deliveries?cursor=sub_x": "cursor", "/deliveries?until=": "",
		} {
			r := a.get("/ojs/v1/webhooks" + path)
			if parameter == "" {
				r.is(200)
				continue
			}
			require.Equal(t, parameter, r.fails(400, "invalid_request", "invalid_request").at("error.details.parameter"))
		}
	})
}

func TestWebhookList(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Webhooks.MaxSubscriptions = 5 })
	require.Equal(t, "[]", a.get("/ojs/v1/webhooks").is(200).at("subscriptions"))
	var ids []string
	for i := range 5 {
		active := fmt.Sprint(i%2 == 0)
		ids = append([]string{a.post("/ojs/v1/webhooks", strings.Replace(hookBody, `{`, `{"active":`+active+`,`, 1)).is(201).at("id")}, ids...)
	}
	r := a.post("/ojs/v1/webhooks", hookBody).fails(422, "validation_error", "validation_error")
	require.Equal(t, "5", r.at("error.details.max_subscriptions"))

	all := a.get("/ojs/v1/webhooks/subscriptions").is(200)
	require.Equal(t, ids, all.list("subscriptions", "id"))
	require.Equal(t, all.at("subscriptions"), all.at("items"))
	require.Equal(t, "5", all.at("total"))
	require.Equal(t, "5", all.at("pagination.total"))
	require.Equal(t, "false", all.at("pagination.has_more"))

	page := a.get("/ojs/v1/webhooks?limit=2").is(200)
	require.Equal(t, ids[:2], page.list("items", "id"))
	require.Equal(t, "true", page.at("pagination.has_more"))
	page = a.get("/ojs/v1/webhooks?limit=2&cursor=" + page.at("pagination.next_cursor")).is(200)
	require.Equal(t, ids[2:4], page.list("items", "id"))
	page = a.get("/ojs/v1/webhooks?limit=2&cursor=" + page.at("pagination.next_cursor")).is(200)
	require.Equal(t, ids[4:], page.list("items", "id"))
	require.Equal(t, "false", page.at("pagination.has_more"))
	require.Equal(t, ids[2:4], a.get("/ojs/v1/webhooks?page=2&per_page=2").is(200).list("items", "id"))
	require.Equal(t, []string{}, a.get("/ojs/v1/webhooks?page=9").is(200).list("items", "id"))
	require.Equal(t, []string{ids[1], ids[3]}, a.get("/ojs/v1/webhooks?active=false").is(200).list("items", "id"))
	require.Len(t, a.get("/ojs/v1/webhooks?url=https://example.com/hook").is(200).list("items", "id"), 5)
	require.Empty(t, a.get("/ojs/v1/webhooks?url=https://example.com/").is(200).list("items", "id"))
}

func TestWebhookSwitches(t *testing.T) {
	t.Parallel()

	t.Run("Disabled", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Webhooks.Enabled = false })
		a.post("/ojs/v1/webhooks", hookBody).fails(422, "unsupported", "unsupported")
		a.get("/ojs/v1/webhooks/deliveries").fails(422, "unsupported", "unsupported")
		manifest := a.get("/ojs/manifest").is(200)
		require.Equal(t, "false", manifest.at("capabilities.webhooks"))
		require.NotContains(t, manifest.texts("events.transports"), "webhook")
		require.NotContains(t, manifest.texts("extensions"), "urn:ojs:ext:webhooks")
		require.False(t, manifest.has("endpoints.webhooks"))
		health := a.get("/ojs/v1/health").is(200)
		require.Equal(t, "off", health.at("components.webhooks"))
		eventually(t, func() bool { return a.get("/ojs/v1/health").is(200).at("status") == "ok" }) // once LISTEN is up
	})

	t.Run("HTTPIsAdmittedIfConfigured", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Webhooks.AllowHTTP = true })
		a.post("/ojs/v1/webhooks", strings.Replace(hookBody, "https:", "http:", 1)).is(201)
		require.Equal(t, "true", a.get("/ojs/manifest").at("capabilities.webhooks"))
		require.Equal(t, "/ojs/v1/webhooks", a.get("/ojs/manifest").at("endpoints.webhooks"))
		require.Equal(t, "ok", a.get("/ojs/v1/health").at("components.webhooks"))
	})
}

// TestWebhookDeleteCancels: deleting a subscription cancels its deliveries.
func TestWebhookDeleteCancels(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusInternalServerError)
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{time.Hour} })
	sub := a.subscribe(e, "/x", `"job.enqueued"`)
	a.push(`"type":"t","args":[]`)
	d := a.awaitStatus(sub, "failed")
	a.del("/ojs/v1/webhooks/" + sub).is(http.StatusNoContent)
	require.Equal(t, "cancelled", a.get("/ojs/v1/webhooks/deliveries/"+d.at("id")).is(200).at("status"))
	a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "").fails(409, "conflict", "invalid_state_transition")
}
