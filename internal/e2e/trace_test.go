package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

const (
	trace1, span1 = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	trace2, span2 = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	parent1       = "00-" + trace1 + "-" + span1 + "-01"
	parent2       = "00-" + trace2 + "-" + span2 + "-01"
)

// invalidParents are not valid as traceparent.
var invalidParents = []string{
	"x", "00-" + trace1 + "-" + span1, "00-" + trace1 + "-" + span1 + "-01-x", "ff-" + trace1 + "-" + span1 + "-01", "00-00000000000000000000000000000000-" + span1 + "-01",
	"00-" + trace1 + "-0000000000000000-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + span1 + "-01", parent1 + " ", "00_" + parent1[3:],
}

// TestTrace covers docs/reference/observability.md, Tracing.
func TestTrace(t *testing.T) {
	t.Parallel()
	a := setupTraced(t)

	t.Run("JoinsRequestEnqueueAndExecute", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		r := a.post("/ojs/v1/jobs", fmt.Sprintf(`{"type":"mail.send","args":[],"queue":"%s","meta":{"a":1},"options":{"priority":7}}`, q),
			"traceparent: "+parent1, "tracestate: congo=t61rcWkgMzE", "tracestate: rojo=1", "X-Request-Id: "+q).is(201)
		id := r.at("job.id")
		request := a.span("POST /ojs/v1/jobs", "ojs.request.id", q)
		require.Equal(t, trace.SpanKindServer, request.SpanKind)
		require.Equal(t, trace1+"-"+span1, parentOf(request))
		require.Equal(t, codes.Ok, request.Status.Code)
		require.Equal(t, "201", attr(request, "http.response.status_code"))

		enqueue := a.span("ojs.enqueue mail.send", "ojs.job.id", id)
		require.Equal(t, trace.SpanKindProducer, enqueue.SpanKind)
		require.Equal(t, idOf(request.SpanContext), parentOf(enqueue))
		require.Empty(t, enqueue.Links)
		require.Equal(t, codes.Ok, enqueue.Status.Code)
		for key, want := range map[string]string{
			"messaging.system": "ojs", "messaging.operation.type": "publish", "messaging.destination.name": q, "messaging.message.id": id,
			"ojs.job.type": "mail.send", "ojs.job.queue": q, "ojs.job.state": "available", "ojs.job.attempt": "0", "ojs.job.priority": "7", "ojs.backend.type": "postgres",
		} {
			require.Equal(t, want, attr(enqueue, key), key)
		}

		parent := "00-" + idOf(enqueue.SpanContext) + "-01"
		require.Equal(t, `{"a":1,"traceparent":"`+parent+`","tracestate":"congo=t61rcWkgMzE,rojo=1"}`, r.at("job.meta"))
		require.Equal(t, r.at("job.meta"), a.fetch(q, `"worker_id":"w 1"`).at("jobs.0.meta"))
		a.ack(id, `"worker_id":"w 1"`).is(200)
		execute := a.span("ojs.execute mail.send", "ojs.job.id", id)
		require.Equal(t, trace.SpanKindConsumer, execute.SpanKind)
		require.Equal(t, idOf(enqueue.SpanContext), parentOf(execute))
		require.Equal(t, codes.Ok, execute.Status.Code)
		for key, want := range map[string]string{
			"messaging.system": "ojs", "messaging.operation.type": "process", "messaging.destination.name": q, "messaging.message.id": id, "ojs.job.type": "mail.send",
			"ojs.job.queue": q, "ojs.job.state": "completed", "ojs.job.attempt": "1", "ojs.job.priority": "7", "ojs.worker.id": "w 1", "ojs.backend.type": "postgres",
		} {
			require.Equal(t, want, attr(execute, key), key)
		}
		job := a.job(id)
		require.Equal(t, job.at("job.started_at"), execute.StartTime.UTC().Truncate(time.Millisecond).Format("2006-01-02T15:04:05.000Z"))
		require.Equal(t, job.at("job.completed_at"), execute.EndTime.UTC().Truncate(time.Millisecond).Format("2006-01-02T15:04:05.000Z"))
	})

	t.Run("FollowsWorkflow", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		r := a.post("/ojs/v1/workflows", fmt.Sprintf(`{"type":"chain","name":"%s","meta":{"traceparent":"%s"},"options":{"queue":"%s"},
			"steps":[{"type":"one","args":[]},{"type":"two","args":[],"id":"last"}]}`, q, parent2, q)).is(201)
		id := r.at("id")
		first := a.fetch(q)
		require.Equal(t, parent2, first.at("jobs.0.meta.traceparent"))
		a.ack(first.at("jobs.0.id")).is(200)
		execute := a.span("ojs.execute one", "ojs.job.id", first.at("jobs.0.id"))
		require.Equal(t, trace2+"-"+span2, parentOf(execute))
		require.Equal(t, id, attr(execute, "ojs.workflow.id"))
		require.Equal(t, "0", attr(execute, "ojs.workflow.step"))

		second := a.fetch(q)
		require.JSONEq(t, `{"traceparent":"00-`+idOf(execute.SpanContext)+`-01","ojs.workflow.trace_origin":"`+parent2+`"}`, second.at("jobs.0.meta"))
		a.nack(second.at("jobs.0.id"), `"error":{"code":"broken","message":"It broke.","retryable":false}`).is(200)
		last := a.span("ojs.execute two", "ojs.job.id", second.at("jobs.0.id"))
		require.Equal(t, idOf(execute.SpanContext), parentOf(last))
		require.Equal(t, "last", attr(last, "ojs.workflow.step"))

		run := a.span("ojs.workflow "+q, "ojs.workflow.id", id)
		require.Equal(t, trace.SpanKindInternal, run.SpanKind)
		require.Equal(t, trace2+"-"+span2, parentOf(run))
		require.Equal(t, "chain", attr(run, "ojs.workflow.type"))
		require.Equal(t, codes.Error, run.Status.Code)
		require.Equal(t, "It broke.", attr(run, "error.message"))
		require.False(t, run.StartTime.After(execute.StartTime))
	})

	t.Run("ParentsAndLinksOfEnqueue", func(t *testing.T) {
		t.Parallel()
		for name, row := range map[string]struct {
			header, meta, parent, link string // parent "": the request's span
		}{
			"Neither":         {parent: ""},
			"OnlyHeader":      {header: parent1},
			"OnlyMeta":        {meta: parent2, parent: trace2 + "-" + span2},
			"BothAlike":       {header: parent1, meta: parent1},
			"BothDiffer":      {header: parent1, meta: parent2, link: trace2 + "-" + span2},
			"InvalidMeta":     {header: parent1, meta: "nonsense"},
			"InvalidHeader":   {header: "nonsense", meta: parent2, parent: trace2 + "-" + span2},
			"NothingIsValid":  {header: "nonsense", meta: "nonsense"},
			"OtherFlagsAlike": {header: parent1, meta: parent1[:53] + "00"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				a, request := a.in(t), queue()
				headers := []string{"X-Request-Id: " + request}
				if row.header != "" {
					headers = append(headers, "traceparent: "+row.header)
				}
				meta := "{}"
				if row.meta != "" {
					meta = `{"traceparent":"` + row.meta + `"}`
				}
				r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"meta":`+meta+`}`, headers...).is(201)
				enqueue := a.span("ojs.enqueue t", "ojs.job.id", r.at("job.id"))
				want := row.parent
				if want == "" {
					want = idOf(a.span("POST /ojs/v1/jobs", "ojs.request.id", request).SpanContext)
				}
				require.Equal(t, want, parentOf(enqueue))
				if row.link == "" {
					require.Empty(t, enqueue.Links)
				} else {
					require.Len(t, enqueue.Links, 1)
					require.Equal(t, row.link, idOf(enqueue.Links[0].SpanContext))
				}
				if row.meta != "" {
					require.Equal(t, meta, r.at("job.meta"), "never altered")
				} else {
					require.Equal(t, "00-"+idOf(enqueue.SpanContext)+"-01", r.at("job.meta.traceparent"))
				}
			})
		}
	})

	t.Run("ExecuteContinuesTheTraceOfItsRequest", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		id := a.post("/ojs/v1/jobs", `{"type":"alone","args":[],"queue":"`+q+`"}`, "X-Request-Id: "+q).is(201).at("job.id")
		a.fetch(q)
		a.ack(id).is(200)
		request, enqueue := a.span("POST /ojs/v1/jobs", "ojs.request.id", q), a.span("ojs.enqueue alone", "ojs.job.id", id)
		require.Equal(t, idOf(enqueue.SpanContext), parentOf(a.span("ojs.execute alone", "ojs.job.id", id)))
		require.Equal(t, request.SpanContext.TraceID(), enqueue.SpanContext.TraceID())
	})

	t.Run("EveryEndOfAnAttempt", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for name, row := range map[string]struct {
			end     func(a *node, id string)
			state   string
			failure string // error.type; "": none
		}{
			"Retryable": {func(a *node, id string) { a.nack(id, `"error":{"type":"SmtpError","message":"refused"}`).is(200) }, "retryable", "SmtpError"},
			"Discarded": {func(a *node, id string) {
				a.nack(id, `"error":{"code":"bad","message":"refused","retryable":false}`).is(200)
			}, "discarded", "bad"},
			"HandedBack": {func(a *node, id string) { a.nack(id, `"requeue":true`).is(200) }, "available", ""},
			"Cancelled":  {func(a *node, id string) { a.del("/ojs/v1/jobs/" + id).is(200) }, "cancelled", ""},
			"TimedOut":   {func(*node, string) {}, "retryable", "timeout"},
			"Lost":       {func(*node, string) {}, "available", "visibility_timeout"},
		} {
			q, extra := queue(), ""
			switch name {
			case "TimedOut":
				extra = `,"timeout_ms":100`
			case "Lost":
				extra = `,"visibility_timeout_ms":100`
			}
			id := a.push(`"type":"end.%s","args":[],"queue":"%s","meta":{"traceparent":"%s"},"retry":{"initial_interval":"PT1H"}%s`, strings.ToLower(name), q, parent2, extra)
			require.Equal(t, 1, a.fetch(q, `"worker_id":"w1"`).count("jobs"))
			row.end(a.node, id)
			s := a.span("ojs.execute end."+strings.ToLower(name), "ojs.job.id", id)
			require.Equal(t, trace2+"-"+span2, parentOf(s), name)
			require.Equal(t, row.state, attr(s, "ojs.job.state"), name)
			require.Equal(t, "1", attr(s, "ojs.job.attempt"), name)
			require.Equal(t, "w1", attr(s, "ojs.worker.id"), name)
			require.False(t, s.EndTime.Before(s.StartTime), name)
			require.WithinDuration(t, time.Now(), s.StartTime, time.Minute, name)
			require.Equal(t, row.failure, attr(s, "error.type"), name)
			if row.failure == "" {
				require.Equal(t, codes.Ok, s.Status.Code, name)
				continue
			}
			require.Equal(t, codes.Error, s.Status.Code, name)
			require.NotEmpty(t, attr(s, "error.message"), name)
			require.Equal(t, "1", attr(s, "ojs.job.error.attempt"), name)
		}
	})

	t.Run("EachAttemptHasItsSpan", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		id := a.push(`"type":"again","args":[],"queue":"%s","retry":{"initial_interval":"PT0.05S","jitter":false}`, q)
		for range 2 {
			eventually(t, func() bool { return a.fetch(q, `"wait_ms":1000`).count("jobs") == 1 })
			a.nack(id).is(200)
		}
		eventually(t, func() bool { return a.fetch(q, `"wait_ms":1000`).count("jobs") == 1 })
		a.ack(id).is(200)
		var attempts []string
		for _, s := range a.spans("ojs.execute again", "ojs.job.id", id) {
			attempts = append(attempts, attr(s, "ojs.job.attempt")+" "+attr(s, "ojs.job.state"))
			require.Equal(t, idOf(a.span("ojs.enqueue again", "ojs.job.id", id).SpanContext), parentOf(s), "all in the trace of the request")
		}
		require.Equal(t, []string{"1 retryable", "2 retryable", "3 completed"}, attempts)
		eventually(t, func() bool { return len(a.spans("ojs.retry.evaluate", "ojs.backend.type", "postgres")) > 0 })
	})

	t.Run("BulkCallsMakeOneSpanPerAcceptedJob", func(t *testing.T) {
		t.Parallel()
		a, kind := a.in(t), "bulk.traced"
		good, bad := `{"type":"`+kind+`","args":[]}`, `{"type":"`+kind+`"}`
		key := "Idempotency-Key: " + queue()
		a.post("/ojs/v1/jobs/batch", `{"jobs":[`+good+`,`+good+`]}`, "traceparent: "+parent1).is(201)
		a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+good+`,`+bad+`]}`, "traceparent: "+parent1).is(207)
		a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+good+`,`+bad+`],"atomicity":"atomic"}`, "traceparent: "+parent1).is(422)
		first := a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+good+`]}`, key, "traceparent: "+parent1).is(201)
		again := a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+good+`]}`, key, "traceparent: "+parent2).is(201)
		require.Equal(t, first.body, again.body, "the trace context is no part of what was asked")
		require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
		id := newID()
		a.push(`"id":"%s","type":"%s","args":[]`, id, kind)
		a.post("/ojs/v1/jobs", `{"id":"`+id+`","type":"`+kind+`","args":[]}`).is(409)

		spans := a.spans("ojs.enqueue "+kind, "ojs.job.type", kind)
		require.Len(t, spans, 5)
		var metas []string
		for _, s := range spans {
			r := a.job(attr(s, "ojs.job.id"))
			metas = append(metas, r.at("job.meta.traceparent"))
			require.Equal(t, "00-"+idOf(s.SpanContext)+"-01", r.at("job.meta.traceparent"))
			require.Equal(t, r.at("job.id") != id, s.SpanContext.TraceID().String() == trace1, "the last request had no trace context")
		}
		slices.Sort(metas)
		require.Len(t, slices.Compact(metas), 5, "each job its own")
	})

	t.Run("RequestsEndAsTheyEnd", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, row := range []struct {
			method, path, name string
			status             int
			code               codes.Code
		}{
			{"GET", "/healthz", "GET /healthz", 200, codes.Ok},
			{"GET", "/ojs/v1/jobs/nothing?access_token=secret", "GET /ojs/v1/jobs/:id", 400, codes.Unset},
			{"GET", "/nowhere/secret", "GET unknown", 404, codes.Unset},
			{"BREW", "/healthz", "_OTHER /healthz", 405, codes.Unset},
			{"GET", "/ojs/v1/ws", "GET /ojs/v1/ws", 400, codes.Unset},
		} {
			id := queue()
			a.do(row.method, row.path, nil, "X-Request-Id: "+id).is(row.status)
			s := a.span(row.name, "ojs.request.id", id)
			require.Equal(t, row.code, s.Status.Code, row.path)
			require.Equal(t, fmt.Sprint(row.status), attr(s, "http.response.status_code"))
			require.NotContains(t, fmt.Sprint(s.Attributes), "secret")
		}
	})

	t.Run("StreamsEndWithTheirConnection", func(t *testing.T) {
		t.Parallel()
		a, id := a.in(t), queue()
		s, _, err := a.dial("/ojs/v1/ws", "X-Request-Id: "+id, "traceparent: "+parent1)
		require.NoError(t, err)
		require.Empty(t, a.spans("GET /ojs/v1/ws", "ojs.request.id", id))
		require.NoError(t, s.conn.CloseNow())
		ws := a.span("GET /ojs/v1/ws", "ojs.request.id", id)
		require.Equal(t, "101", attr(ws, "http.response.status_code"))
		require.Equal(t, trace1+"-"+span1, parentOf(ws))
		require.Equal(t, codes.Ok, ws.Status.Code)
	})

	t.Run("PassesThatFoundWork", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT0.05S"`, q)
		eventually(t, func() bool { return a.fetch(q, `"wait_ms":1000`).count("jobs") == 1 })
		for _, name := range []string{"ojs.scheduler.poll", "ojs.events.publish"} {
			eventually(t, func() bool { return len(a.spans(name, "ojs.backend.type", "postgres")) > 0 })
			for _, s := range a.spans(name, "ojs.backend.type", "postgres") {
				require.Equal(t, trace.SpanKindInternal, s.SpanKind)
				require.NotEqual(t, "0", attr(s, "ojs.pass.items"))
			}
		}
	})

	t.Run("CronsEnqueueInsideTheirPass", func(t *testing.T) {
		t.Parallel()
		a, name := a.in(t), queue()
		a.post("/ojs/v1/cron", fmt.Sprintf(`{"name":"%s","expression":"@every 1s","type":"%s","queue":"%s","meta":{"traceparent":"%s"}}`, name, "tick.traced", name, parent1),
			"traceparent: "+parent2).is(201)
		var spans []tracetest.SpanStub
		eventually(t, func() bool {
			spans = a.spans("ojs.enqueue tick.traced", "ojs.job.queue", name)
			return len(spans) > 0
		})
		a.del("/ojs/v1/cron/" + name).is(200)
		var pass []string
		eventually(t, func() bool {
			pass = nil
			for _, s := range a.spans("ojs.cron.trigger", "ojs.backend.type", "postgres") {
				pass = append(pass, idOf(s.SpanContext))
			}
			return slices.Contains(pass, parentOf(spans[0]))
		})
		require.Len(t, spans[0].Links, 1)
		require.Equal(t, trace1+"-"+span1, idOf(spans[0].Links[0].SpanContext))
		require.Equal(t, parent1, a.job(attr(spans[0], "ojs.job.id")).at("job.meta.traceparent"))
	})
}

func TestTraceSettings(t *testing.T) {
	t.Parallel()

	t.Run("LongWaitsBeginATraceOfTheirOwn", func(t *testing.T) {
		t.Parallel()
		a, q := setupTraced(t), queue()
		id := a.push(`"type":"late","args":[],"queue":"%s","meta":{"ojs.otel.traceparent":"%s"}`, q, parent1)
		conn, err := pgx.Connect(t.Context(), a.database)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(t.Context())) }()
		_, err = conn.Exec(t.Context(), `UPDATE ojs.jobs SET created_at = created_at - interval '61 minutes'`)
		require.NoError(t, err)
		require.Equal(t, 1, a.fetch(q).count("jobs"))
		a.ack(id).is(200)
		s := a.span("ojs.execute late", "ojs.job.id", id)
		require.False(t, s.Parent.IsValid())
		require.NotEqual(t, trace1, s.SpanContext.TraceID().String())
		require.Len(t, s.Links, 1)
		require.Equal(t, trace1+"-"+span1, idOf(s.Links[0].SpanContext))
	})

	t.Run("DeadWorkers", func(t *testing.T) {
		t.Parallel()
		a, q := setupTraced(t, deadAfter(300*time.Millisecond)), queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, 1, a.fetch(q, `"worker_id":"w1"`).count("jobs"))
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w1","queues":["`+q+`"]}`).is(200) // then it is silent
		s := a.span("ojs.execute t", "ojs.job.id", id)
		require.Equal(t, "worker_death", attr(s, "error.type"))
		require.Equal(t, codes.Error, s.Status.Code)
		eventually(t, func() bool { return len(a.spans("ojs.reaper.check", "ojs.backend.type", "postgres")) > 0 })
	})
}

// TestTraceContextWithoutExporter covers docs/reference/observability.md, Trace context: a node that exports no spans.
func TestTraceContextWithoutExporter(t *testing.T) {
	t.Parallel()
	a := setup(t)
	push := func(t *testing.T, meta string, headers ...string) reply {
		t.Helper()
		return a.in(t).post("/ojs/v1/jobs", `{"type":"t","args":[],"meta":`+meta+`}`, headers...).is(201)
	}
	event := func(t *testing.T, r reply) reply {
		t.Helper()
		var got reply
		eventually(t, func() bool {
			got = a.in(t).get("/ojs/v1/events?job_id=" + r.at("job.id"))
			return got.status == 200 && got.count("events") == 1
		})
		return got
	}

	t.Run("TheReceivedValueIsAdded", func(t *testing.T) {
		t.Parallel()
		r := push(t, `{"a":1}`, "traceparent: "+parent1, "tracestate: a=b")
		require.Equal(t, `{"a":1,"traceparent":"`+parent1+`","tracestate":"a=b"}`, r.at("job.meta"))
		require.Equal(t, trace1, event(t, r).at("events.0.data.trace_id"))
		r = push(t, `{}`, "traceparent: 00-"+trace1+"-"+span1+"-fe", "tracestate: !!")
		require.Equal(t, `{"traceparent":"00-`+trace1+"-"+span1+`-fe"}`, r.at("job.meta"), "whatever the flags; no broken state")
		r = push(t, `{"baggage":"x=y","trace_id":"mine"}`, "traceparent: "+parent1)
		require.Equal(t, `{"baggage":"x=y","trace_id":"mine","traceparent":"`+parent1+`"}`, r.at("job.meta"))
		require.Equal(t, "mine", event(t, r).at("events.0.data.trace_id"), "the first hit wins")
	})

	t.Run("MetaThatHasAFormIsKept", func(t *testing.T) {
		t.Parallel()
		for _, meta := range []string{
			`{"traceparent":"` + parent2 + `"}`, `{"traceparent":"nonsense"}`, `{"traceparent":7}`, `{"traceparent":null}`, `{"tracestate":"a=b"}`,
			`{"ojs.otel.traceparent":"` + parent2 + `"}`, `{"ojs.otel.tracestate":"a=b"}`, `{"tracepar\u0065nt":"escaped"}`,
		} {
			require.Equal(t, meta, push(t, meta, "traceparent: "+parent1).at("job.meta"))
		}
	})

	t.Run("InvalidContextsAreIgnored", func(t *testing.T) {
		t.Parallel()
		for _, parent := range invalidParents {
			if !strings.HasSuffix(parent, " ") { // net/http trims it
				require.Equal(t, `{}`, push(t, `{}`, "traceparent: "+parent).at("job.meta"), parent)
			}
			r := push(t, `{"traceparent":"`+parent+`","ojs.otel.traceparent":"`+parent+`"}`)
			require.Equal(t, parent, r.at("job.meta.traceparent"))
			require.False(t, event(t, r).has("events.0.data.trace_id"), parent)
		}
		require.Equal(t, `{}`, push(t, `{}`, "traceparent: "+parent1, "traceparent: "+parent2).at("job.meta"), "two are none")
	})

	t.Run("LimitsApply", func(t *testing.T) {
		t.Parallel()
		whole := `{"a":"` + strings.Repeat("x", 65_536-len(`{"a":""}`)) + `"}`
		require.Equal(t, whole, push(t, whole, "traceparent: "+parent1).at("job.meta"))
	})
}
