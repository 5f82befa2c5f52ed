package e2e_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/observe"
)

// TestLog covers docs/reference/observability.md, Logs.
func TestLog(t *testing.T) {
	t.Parallel()
	a, log := setupLogged(t, slog.LevelDebug)

	t.Run("RequestsByTheirOutcome", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, row := range []struct {
			method, path     string
			status           int
			message, severe  string
			route, errorType string
		}{
			{"GET", "/healthz?access_token=marker", 200, "request served", "DEBUG", "/healthz", ""},
			{"GET", "/ojs/v1/jobs/marker", 404, "request refused", "INFO", "/ojs/v1/jobs/:id", "not_found"},
			{"GET", "/marker", 404, "request refused", "INFO", "unknown", "not_found"},
			{"POST", "/ojs/v1/jobs", 400, "request refused", "INFO", "/ojs/v1/jobs", "invalid_payload"},
		} {
			id := queue()
			a.do(row.method, row.path, nil, "X-Request-Id: "+id, "traceparent: "+parent1).is(row.status)
			r := log.line(t, row.message, id)
			require.Equal(t, row.severe, r.at("severity"))
			require.Equal(t, "http", r.at("category"))
			require.Equal(t, id, r.at("request.id"))
			require.Equal(t, row.method, r.at("request.method"))
			require.Equal(t, row.route, r.at("request.route"))
			require.Equal(t, fmt.Sprint(row.status), r.at("request.status"))
			require.Regexp(t, `^\d+(\.\d+)?$`, r.at("request.duration_ms"))
			require.Regexp(t, `^127\.0\.0\.1:\d+$`, r.at("request.remote"))
			require.Equal(t, trace1, r.at("trace.trace_id"))
			require.Equal(t, row.errorType, r.at("error.type"))
			require.NotContains(t, r.body, "marker")
		}
	})

	t.Run("StreamsAtTheirEnd", func(t *testing.T) {
		t.Parallel()
		a, id := a.in(t), queue()
		res, err := a.client.Do(must(t, a, "/ojs/v1/events/stream", "X-Request-Id", id))
		require.NoError(t, err)
		require.Empty(t, log.lines(t, "request served", id))
		require.NoError(t, res.Body.Close())
		require.Equal(t, "/ojs/v1/events/stream", log.line(t, "request served", id).at("request.route"))
	})

	t.Run("JobsByTheirTransition", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		meta := `,"meta":{"correlation_id":"corr-1","traceparent":"` + parent1 + `"}`
		job := func(more string) (id, q string) {
			q = queue()
			return a.push(`"type":"mail.send","args":[],"queue":"%s"%s%s`, q, meta, more), q
		}
		reserved := func(more string) (id string) {
			id, q := job(more)
			require.Equal(t, id, a.fetch(q, `"worker_id":"w1"`).at("jobs.0.id"))
			return id
		}
		expect := func(id, message, severity, category, state string) reply {
			t.Helper()
			r := log.line(t, message, `"job_id":"`+id+`"`)
			require.Equal(t, severity, r.at("severity"), message)
			require.Equal(t, category, r.at("category"), message)
			require.Equal(t, state, r.at("ojs.state"), message)
			require.Equal(t, "mail.send", r.at("ojs.job_type"))
			require.True(t, r.has("ojs.queue"))
			require.True(t, r.has("ojs.attempt"))
			return r
		}

		id, _ := job("")
		r := expect(id, "job enqueued", "INFO", "lifecycle", "available")
		require.Equal(t, "corr-1", r.at("ojs.correlation_id"))
		require.Equal(t, trace1, r.at("trace.trace_id"))
		require.Equal(t, span1, r.at("trace.span_id"))
		a.del("/ojs/v1/jobs/" + id).is(200)
		expect(id, "job cancelled", "INFO", "lifecycle", "cancelled")
		id, _ = job(`,"scheduled_at":"PT0.1S"`)
		require.True(t, expect(id, "job scheduled", "INFO", "lifecycle", "scheduled").has("attributes.scheduled_at"))
		expect(id, "job enqueued", "INFO", "lifecycle", "available")
		id, _ = job(`,"pending":true`)
		expect(id, "job pending", "INFO", "lifecycle", "pending")

		id = reserved("")
		r = expect(id, "job fetched", "DEBUG", "lifecycle", "active")
		require.Regexp(t, `^\d+$`, r.at("attributes.queue_wait_ms"))
		require.Equal(t, "w1", r.at("ojs.worker_id"))
		a.report(id, `"progress":0.5`).is(200)
		log.line(t, "job progress", id)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w1","active_jobs":["`+id+`"]}`).is(200)
		log.line(t, "job heartbeat", id)
		a.ack(id).is(200)
		r = expect(id, "job completed", "INFO", "lifecycle", "completed")
		require.Regexp(t, `^\d+$`, r.at("attributes.duration_ms"))
		require.Equal(t, "1", r.at("ojs.attempt"))

		id = reserved(`,"retry":{"initial_interval":"PT1H"}`)
		a.nack(id, `"error":{"type":"SmtpError","message":"refused","backtrace":["`+repeated('x', 9000)+`"]}`).is(200)
		r = expect(id, "job failed, will retry", "WARN", "error", "retryable")
		require.Equal(t, "SmtpError", r.at("error.type"))
		require.Equal(t, "refused", r.at("error.message"))
		require.Len(t, r.at("error.backtrace"), 4096)
		require.Equal(t, a.job(id).at("job.next_attempt_at"), r.at("attributes.next_retry_at"))
		require.Equal(t, "w1", r.at("ojs.worker_id"))
		id = reserved("")
		a.nack(id, `"error":{"message":"x","retryable":false}`).is(200)
		expect(id, "job discarded", "ERROR", "error", "discarded")
		id = reserved("")
		a.nack(id, `"requeue":true`).is(200)
		expect(id, "job handed back", "INFO", "lifecycle", "available")
		id = reserved(`,"timeout_ms":50,"retry":{"initial_interval":"PT1H"}`)
		require.Equal(t, "timeout", expect(id, "job timed out, will retry", "ERROR", "error", "retryable").at("error.type"))
		id = reserved(`,"visibility_timeout_ms":50`)
		require.Equal(t, "visibility_timeout", expect(id, "job lost its worker", "ERROR", "error", "available").at("attributes.reason"))
	})

	t.Run("WorkersByTheirState", func(t *testing.T) {
		t.Parallel()
		a, log := setupLogged(t, slog.LevelDebug, deadAfter(2*time.Second)) // a busy machine sends two heartbeats meanwhile
		w := queue()
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"`+w+`"}`).is(200)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"`+w+`","state":"quiet"}`).is(200)
		for message, severity := range map[string]string{"worker started": "INFO", "worker quiet": "INFO", "worker lost": "ERROR"} {
			r := log.line(t, message, w)
			require.Equal(t, severity, r.at("severity"))
			require.Equal(t, "worker", r.at("category"))
			require.Equal(t, w, r.at("ojs.worker_id"))
		}
		eventually(t, func() bool { return len(log.lines(t, "worker heartbeat", w)) == 2 })
		w = queue()
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"`+w+`"}`).is(200)
		a.del("/ojs/v1/workers/" + w)
	})
}

func must(t *testing.T, a *node, path, header, value string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+path, nil)
	require.NoError(t, err)
	req.Header.Set(header, value)
	return req
}

// TestLogShowsNoSecrets sends a marker in every place that clients fill, in all calls, and looks for it in the log.
func TestLogShowsNoSecrets(t *testing.T) {
	t.Parallel()
	const marker, key = "5ecr3t", "k3y-of-the-api"
	a, log := setupLogged(t, slog.LevelDebug, func(c *app.Config) { c.Server.APIKeys, c.Realtime.AllowQueryToken = []string{key}, true })
	auth := "Authorization: Bearer " + key
	q := queue()
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/ojs/v1/jobs", `{"type":"t","args":["5ecr3t"],"queue":"` + q + `","meta":{"a":"5ecr3t","5ecr3t":1},"unknown":"5ecr3t"}`},
		{"POST", "/ojs/v1/jobs", `{"type":"5ecr3t T","args":["5ecr3t"]}`},
		{"POST", "/ojs/v1/jobs", `{"type":"t","args":"5ecr3t"}`},
		{"POST", "/ojs/v1/jobs", `{"type":"t","args":[],"retry":{"max_attempts":"5ecr3t"}}`},
		{"POST", "/ojs/v1/jobs", `{"5ecr3t`},
		{"POST", "/ojs/v1/jobs", `{"type":"t","args":[],"scheduled_at":"5ecr3t"}`},
		{"POST", "/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":["5ecr3t"]},{"type":"t","args":"5ecr3t"}],"idempotency_key":"5ecr3t"}`},
		{"POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"t","args":["5ecr3t"]}]}`},
		{"GET", "/ojs/v1/jobs/5ecr3t?token=5ecr3t", ""},
		{"GET", "/ojs/v1/jobs?meta.a=5ecr3t&cursor=5ecr3t", ""},
		{"GET", "/5ecr3t?access_token=5ecr3t", ""},
		{"GET", "/ojs/v1/events?after=5ecr3t", ""},
		{"POST", "/ojs/v1/cron", `{"name":"` + q + `","expression":"@daily","type":"t","args":["5ecr3t"],"meta":{"a":"5ecr3t"}}`},
		{"POST", "/ojs/v1/cron/" + q + "/trigger", ""},
		{"POST", "/ojs/v1/workers/ack", `{"job_id":"5ecr3t","result":"5ecr3t"}`},
		{"5ECR3T", "/ojs/v1/jobs", ""},
	} {
		a.do(call.method, call.path, strings.NewReader(call.body), auth)
	}
	for i, end := range []string{"ack", "ack", "nack", "nack"} {
		a.post("/ojs/v1/jobs", `{"type":"t","args":["5ecr3t"],"queue":"`+q+`"}`, auth).is(201)
		id := a.post("/ojs/v1/workers/fetch", `{"queues":["`+q+`"],"worker_id":"w1"}`, auth).is(200).at("jobs.0.id")
		more := `"result":{"a":"5ecr3t"}`
		if end == "nack" {
			more = fmt.Sprintf(`"error":{"message":"x","retryable":%t,"details":{"a":"5ecr3t"}}`, i%2 == 0)
		}
		a.put("/ojs/v1/jobs/"+id+"/progress", `{"progress":0.5,"message":"5ecr3t","data":{"a":"5ecr3t"}}`, auth).is(200)
		a.put("/ojs/v1/jobs/"+id+"/checkpoint", `{"state":{"a":"5ecr3t"}}`, auth)
		a.post("/ojs/v1/workers/"+end, `{"job_id":"`+id+`","worker_id":"w1",`+more+`}`, auth).is(200)
	}
	a.get("/ojs/v1/jobs", "Authorization: Bearer 5ecr3t").is(401)
	a.get("/ojs/v1/jobs?access_token=" + key).is(401)
	res, err := a.client.Do(must(t, a, "/ojs/v1/events/stream?access_token="+key, "X-Request-Id", "stream-1"))
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode)
	require.NoError(t, res.Body.Close())
	log.line(t, "request served", "stream-1")

	text := log.String()
	require.Contains(t, text, "job discarded")
	require.Contains(t, text, "_OTHER")
	require.NotContains(t, strings.ToLower(text), marker)
	require.NotContains(t, text, key)
}

func TestLogSettings(t *testing.T) {
	t.Parallel()
	work := func(t *testing.T, a *node) (id string) {
		q := queue()
		id = a.push(`"type":"t","args":[{"n":1.50}],"queue":"%s","meta":{"tenant":"x","Password":"5ecr3t","deep":[{"api_TOKEN":"5ecr3t","b":{"client_s\u0065cret":1,"ok":[]}}],"authorization":{}}`, q)
		require.Equal(t, 1, a.fetch(q).count("jobs"))
		a.ack(id, `"result":{"r":[2.0]}`).is(200)
		return id
	}

	t.Run("TheFirstLineSaysHowTheServerIsSet", func(t *testing.T) {
		t.Parallel()
		for keys, authentication := range map[string]string{"": "false", "secret": "true"} {
			_, log := setupLogged(t, slog.LevelInfo, func(c *app.Config) {
				if c.Tests.EnableReset = keys == ""; keys != "" {
					c.Server.APIKeys = []string{keys}
				}
			})
			line := log.line(t, "server started")
			require.Equal(t, authentication, line.at("attributes.authentication"))
			require.Equal(t, strconv.FormatBool(keys == ""), line.at("attributes.test_reset"))
			require.NotEmpty(t, line.at("attributes.listen"))
		}
	})

	t.Run("EveryLineIsOneObject", func(t *testing.T) {
		t.Parallel()
		a, log := setupLogged(t, observe.LevelTrace)
		work(t, a)
		require.NoError(t, a.app.Stop())
		for line := range strings.SplitSeq(strings.TrimSpace(log.String()), "\n") {
			var object map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &object), line)
			for _, field := range []string{"timestamp", "severity", "severity_number", "message", "component", "category"} {
				require.Contains(t, object, field, line)
				delete(object, field)
			}
			for _, field := range []string{"ojs", "trace", "error", "request", "attributes"} {
				delete(object, field)
			}
			require.Empty(t, object, line)
		}
		for _, message := range []string{"server started", "server stopped"} {
			require.Equal(t, "lifecycle", log.line(t, message).at("category"))
		}
	})
}
