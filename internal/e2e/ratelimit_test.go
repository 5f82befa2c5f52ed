package e2e_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestRateLimits covers docs/reference/limits.md over HTTP.
func TestRateLimits(t *testing.T) {
	t.Parallel()
	a := setup(t)
	enqueue := func(a *node, q, limit string) reply {
		return a.post("/ojs/v1/jobs", `{"type":"t","args":[],"options":{"queue":"`+q+`","rate_limit":`+limit+`}}`)
	}
	fetch := func(a *node, q string) reply {
		return a.post("/ojs/v1/workers/fetch", `{"queues":["`+q+`"],"count":10}`).is(200)
	}
	const one = "/ojs/v1/rate-limits/"

	t.Run("ByKey", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, key := queue(), "key-"+newID()
		limit := `{"key":"` + key + `","concurrency":1,"rate":{"limit":30,"period":"PT10M"}}`
		r := enqueue(a, q, limit).is(201)
		require.Equal(t, "available", r.at("job.state"))
		require.Equal(t, key, r.at("job.rate_limit.key"))
		require.Equal(t, []string{"30", "30"}, []string{r.header.Get("X-RateLimit-Limit"), r.header.Get("X-RateLimit-Remaining")})
		require.NotEmpty(t, r.header.Get("X-RateLimit-Reset"))
		enqueue(a, q, limit).is(201)
		fetched := fetch(a, q)
		require.Len(t, fetched.list("jobs", "id"), 1)
		require.Equal(t, "29", enqueue(a, q, limit).is(201).header.Get("X-RateLimit-Remaining"))

		p := a.get("/ojs/v1/rate-limits/" + key).is(200)
		require.Equal(t, []string{key, "1", "1", "0"}, []string{p.at("key"), p.at("concurrency.limit"), p.at("concurrency.active"), p.at("concurrency.available")})
		require.Equal(t, []string{"30", "PT10M", "1"}, []string{p.at("rate.limit"), p.at("rate.period"), p.at("rate.current_count")})
		require.Equal(t, []string{"2", "2", "30", "PT10M", "1", "0"}, []string{p.at("waiting_count"), p.at("waiting"), p.at("limit"), p.at("period"), p.at("active"), p.at("available")})
		require.False(t, p.has("throttle"))
		require.False(t, p.has("override"))

		o := a.put("/ojs/v1/rate-limits/"+key+"/override", `{"concurrency":3,"limit":15,"period":"PT10S","expires_at":"2099-03-01T18:00:00Z"}`).is(200)
		require.Equal(t, []string{"3", "15", "PT10S", "2099-03-01T18:00:00.000Z"}, []string{o.at("override.concurrency"), o.at("override.limit"), o.at("override.period"), o.at("override.expires_at")})
		require.Equal(t, "3", o.at("concurrency.limit"))
		require.Len(t, fetch(a, q).list("jobs", "id"), 2, "an override holds at once")
		d := a.del("/ojs/v1/rate-limits/" + key + "/override").is(200)
		require.False(t, d.has("override"))
		require.Equal(t, "1", d.at("concurrency.limit"))
	})

	t.Run("OfAQueue", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.get(one+"queue:"+q).fails(404, "not_found", "not_found")
		r := a.put("/ojs/v1/admin/queues/"+q+"/rate-limit", `{"concurrency":8,"rate":{"limit":1,"period":"PT5M"}}`).is(200)
		require.JSONEq(t, fmt.Sprintf(`{"queue":%q,"rate_limit":{"concurrency":8,"rate":{"limit":1,"period":"PT5M"}}}`, q), r.body)
		for range 2 {
			r = a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+q+`"}`).is(201)
			require.Equal(t, "1", r.header.Get("X-RateLimit-Limit"))
		}
		require.Len(t, fetch(a, q).list("jobs", "id"), 1)
		require.Empty(t, fetch(a, q).list("jobs", "id"))
		p := a.get("/ojs/v1/rate-limits/queue:" + q).is(200)
		require.Equal(t, []string{"1", "1", "1"}, []string{p.at("active"), p.at("waiting"), p.at("rate.current_count")})
		require.Contains(t, a.get("/ojs/v1/rate-limits?per_page=100").is(200).list("items", "key"), "queue:"+q)
	})

	t.Run("Refuses", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		for _, limit := range []string{`5`, `{}`, `{"concurrency":1}`, `{"key":"a/b"}`, `{"key":"a\u0000"}`, `{"key":"k","concurrency":1e400}`, `{"key":"k","rate":{"limit":0,"period":"PT1S"}}`, `{"key":"queue:x"}`} {
			enqueue(a, q, limit).fails(400, "invalid_payload", "invalid_payload")
		}
		for _, path := range []string{"unknown-" + newID(), "%00", "a%2Fb", "queue:none"} {
			a.get(one+path).fails(404, "not_found", "not_found")
			a.del(one+path+"/override").fails(404, "not_found", "not_found")
		}
		for _, body := range []string{`{}`, `{"concurrency":-1}`, `{"limit":5}`, `{"concurrency":1,"expires_at":"soon"}`} {
			a.put(one+"k/override", body).fails(400, "invalid_payload", "invalid_payload")
			a.put(one+"k", body).fails(400, "invalid_payload", "invalid_payload")
		}
		a.put("/ojs/v1/admin/queues/"+q+"/rate-limit", `{"key":"k","limit":1,"period":"1s"}`).fails(400, "invalid_payload", "invalid_payload")
		a.put("/ojs/v1/admin/queues/No/rate-limit", `{"limit":1,"period":"1s"}`).is(400)
		for _, key := range []string{"%00", "a%20b", "a%2Fb%2Fc", repeated('k', 400)} {
			require.Equal(t, "key", a.put(one+key, `{"concurrency":1}`).fails(400, "invalid_request", "invalid_request").at("error.details.parameter"))
		}
		a.put(one+"queue:none", `{"concurrency":1}`).is(404)
		id := a.push(`"type":"t","args":[],"queue":"%s","rate_limit":{"key":"none-%s","concurrency":0}`, q, q)
		require.Equal(t, "limited", a.get("/ojs/v1/jobs/"+id+"/explain").is(200).at("reasons.0.code"))
		a.put(one+"new-"+newID(), `{"concurrency":0}`).is(200)
	})
}

func TestLimitMetrics(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Metrics.GaugeInterval = time.Millisecond })
	for range 3 {
		a.push(`"type":"t","args":[],"queue":"keyed","rate_limit":{"key":"k","concurrency":1}`)
	}
	require.Len(t, a.fetch("keyed", `"count":10`).list("jobs", "id"), 1)
	require.Empty(t, a.fetch("keyed", `"count":10`).list("jobs", "id"))
	for range 2 {
		a.push(`"type":"t","args":[],"queue":"limited","rate_limit":{"limit":1,"period":"PT1H"}`)
	}
	require.Len(t, a.fetch("limited", `"count":10`).list("jobs", "id"), 1)
	a.bound("bounded", `{"max_depth":4}`)
	a.push(`"type":"t","args":[],"queue":"bounded"`)
	a.push(`"type":"t","args":[],"queue":"bounded","scheduled_at":"2099-01-01T00:00:00Z"`)
	for name, want := range map[string]map[string]float64{
		"ojs_rate_limit_active":     {"key=k": 1, "key=queue:limited": 1},
		"ojs_rate_limit_waiting":    {"key=k": 2, "key=queue:limited": 1},
		"ojs_queue_max_size":        {"queue=bounded": 4},
		"ojs_backpressure_pressure": {"queue=bounded": 0.5},
	} {
		var got map[string]float64
		eventually(t, func() bool { got = a.scrape().values(name); return maps.Equal(want, got) })
		require.Equal(t, want, got, name)
	}
	exceeded := a.scrape().values("ojs_rate_limit_exceeded_total")
	require.GreaterOrEqual(t, exceeded["key=k"], 2.0)
	require.Equal(t, 1.0, exceeded["key=queue:limited"])
}
