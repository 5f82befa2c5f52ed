package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestHistory covers docs/reference/jobs.md, History.
func TestHistory(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	records := func(a *node, id string, n int) (lines []string) {
		a.published(id, n)
		r := a.get("/ojs/v1/jobs/" + id + "/history?limit=200").is(200)
		for i := range r.elements("events") {
			at := fmt.Sprintf("events.%d.", i)
			require.Equal(t, id, r.at(at+"job_id"))
			require.Regexp(t, serverTime, r.at(at+"timestamp"))
			require.Regexp(t, "^evt_", r.at(at+"id"))
			lines = append(lines, r.at(at+"event_type")+" "+r.at(at+"actor.type")+":"+r.at(at+"actor.id")+" "+r.at(at+"data"))
		}
		require.Equal(t, fmt.Sprint(len(lines)), r.at("total"))
		return lines
	}

	t.Run("ListsAllEventsOfAJob", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.01S","jitter":false}`, q)
		a.fetch(q, `"worker_id":"w/1"`)
		a.nack(id, `"error":{"code":"c","message":"m\u0000"}`).is(200)
		require.Equal(t, id, a.fetch(q, `"wait_ms":5000`).at("jobs.0.id"))
		a.report(id, `"progress":0.5`).is(200)
		a.ack(id, `"worker_id":"w2"`).is(200)
		got := records(a, id, 7)
		last := got[len(got)-1]
		require.Equal(t, []string{
			`job.created client:api {"queue":"` + q + `","type":"t"}`,
			`job.attempt_started worker:w/1 {"worker_id":"w/1","attempt":1}`,
			`job.attempt_failed worker:w/1 {"error":{"code":"c","type":"c","message":"m\u0000","retryable":true},"will_retry":true,"attempt":1}`,
			`job.state_changed worker:w/1 {"from":"active","to":"retryable"}`,
			`job.state_changed system:scheduler {"from":"retryable","to":"available"}`,
			`job.attempt_started worker:anonymous {"worker_id":"anonymous","attempt":2}`,
		}, got[:len(got)-1])
		require.Regexp(t, `^job\.attempt_completed worker:w2 \{"duration_ms":\d+,"attempt":2\}$`, last)
	})

	t.Run("ShowsOtherEnds", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		discarded := records(a, a.jobIn("discarded"), 4)
		require.Contains(t, discarded[len(discarded)-2], `"will_retry":false,"attempt":1}`)
		require.Regexp(t, `^job\.discarded worker:w1 \{"total_attempts":1,"last_error":\{.*"boom".*\}\}$`, discarded[len(discarded)-1])
		id := a.jobIn("scheduled")
		a.del("/ojs/v1/jobs/"+id+"?reason=late", "X-OJS-Actor: jo").is(200)
		require.Equal(t, []string{`job.created client:api {"queue":"` + a.job(id).at("job.queue") + `","type":"t"}`, `job.cancelled user:jo {"reason":"late"}`}, records(a, id, 2))
		for actor, want := range map[string]string{"": "client:api", "key:12": "client:key:12", "sql": "client:sql", "sqlite": "user:sqlite", "system:x": "system:system:x"} {
			id := a.jobIn("scheduled")
			a.del("/ojs/v1/jobs/"+id, "X-OJS-Actor: "+actor).is(200)
			require.Equal(t, "job.cancelled "+want+" {}", records(a, id, 2)[1])
			kind, _, _ := strings.Cut(want, ":")
			r := a.get("/ojs/v1/history?actor_type=" + kind + "&event_types=job.cancelled&queues=" + a.job(id).at("job.queue")).is(200)
			require.Equal(t, []string{id}, r.list("events", "job_id"), actor)
		}
		pending := a.jobIn("pending")
		a.post("/ojs/v1/jobs/"+pending+"/activate", "").is(200)
		require.Equal(t, []string{`job.created client:api {"queue":"` + a.job(pending).at("job.queue") + `","type":"t"}`, `job.state_changed client:api {"from":"pending","to":"available"}`}, records(a, pending, 2))
	})

	t.Run("IsPaged", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("discarded")
		a.published(id, 4)
		whole := a.get("/ojs/v1/jobs/" + id + "/history").is(200)
		require.Equal(t, "null", whole.at("next_cursor"))
		ids := []string{}
		for cursor := ""; cursor != "null"; {
			r := a.get("/ojs/v1/jobs/" + id + "/history?limit=1&cursor=" + cursor).is(200)
			require.Equal(t, "4", r.at("total"))
			ids, cursor = append(ids, r.list("events", "id")...), r.at("next_cursor")
		}
		require.Equal(t, whole.list("events", "id"), ids)
		require.Len(t, ids, 4)
		for _, query := range []string{"limit=0", "limit=x", "cursor=x"} {
			a.get("/ojs/v1/jobs/"+id+"/history?"+query).fails(400, "invalid_request", "invalid_request")
		}
		a.get("/ojs/v1/jobs/"+newID()+"/history").fails(404, "not_found", "not_found")
		a.del("/ojs/v1/jobs/"+id+"/history").fails(405, "invalid_request", "method_not_allowed")
	})

	t.Run("OfAllJobsIsFiltered", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		one, two := a.push(`"type":"one","args":[],"queue":"q1"`), a.push(`"type":"two","args":[],"queue":"q2"`)
		a.fetch("q1", `"worker_id":"w1"`)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w1"}`).is(200) // no event of a job
		a.nack(one, `"error":{"message":"x","retryable":false}`).is(200)
		a.del("/ojs/v1/jobs/"+two, "X-OJS-Actor: jo").is(200)
		a.published(one, 4)
		a.published(two, 2)
		ask := func(query string) []string {
			r := a.get("/ojs/v1/history?" + query).is(200)
			require.Equal(t, fmt.Sprint(r.count("events")), r.at("total_estimate"), query)
			require.Equal(t, "null", r.at("next_cursor"))
			require.True(t, r.has("query_time_ms"))
			return r.list("events", "event_type")
		}
		all := []string{"job.cancelled", "job.discarded", "job.attempt_failed", "job.attempt_started", "job.created", "job.created"}
		require.Equal(t, all, ask(""))
		require.Equal(t, all, ask("limit=100000"))
		for query, want := range map[string][]string{
			"event_types=job.created": all[4:], "event_types=job.discarded,job.attempt_failed": all[1:3], "queues=q2": {"job.cancelled", "job.created"},
			"job_types=one": {"job.discarded", "job.attempt_failed", "job.attempt_started", "job.created"}, "actor_type=worker": all[1:4],
			"actor_type=user": all[:1], "actor_type=client": all[4:], "actor_type=system": {}, "queues=q2&actor_type=client": all[4:5],
			"start=2020-01-01T00:00:00Z": all, "start=2999-01-01T00:00:00Z": {}, "end=2020-01-01T00:00:00Z": {}, "end=2999-01-01T00:00:00Z": all,
		} {
			require.Equal(t, want, ask(query), query)
		}
		got := []string{}
		for cursor := ""; cursor != "null"; {
			r := a.get("/ojs/v1/history?limit=2&cursor=" + cursor).is(200)
			require.Equal(t, "6", r.at("total_estimate"))
			got, cursor = append(got, r.list("events", "event_type")...), r.at("next_cursor")
		}
		require.Equal(t, all, got)
		a.push(`"type":"t","args":[],"queue":"q3"`) // with events that no history lists
		noisy := a.fetch("q3").at("jobs.0.id")
		a.report(noisy, `"progress":0.5`).is(200)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w1","job_id":"`+noisy+`"}`).is(200)
		a.publishedAll()
		require.Equal(t, []string{"job.attempt_started", "job.created"}, ask("queues=q3"))
		require.Equal(t, "2", a.get("/ojs/v1/jobs/"+noisy+"/history").is(200).at("total"))
		for _, query := range []string{"limit=0", "limit=x", "cursor=x", "event_types=job.enqueued", "actor_type=god", "start=yesterday", "end=PT1H", "queues=%00", "job_types=%ff"} {
			r := a.get("/ojs/v1/history?"+query).fails(400, "invalid_request", "invalid_request")
			require.Equal(t, strings.Split(query, "=")[0], r.at("error.details.parameter"))
		}
	})

	t.Run("ShowsRetries", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.01S","jitter":false,"max_attempts":2}`, q)
		require.Equal(t, `{"job_id":"`+id+`","retries":[],"policy":{"max_attempts":2,"initial_interval":"PT0.01S","backoff_strategy":"exponential"}}`,
			a.get("/ojs/v1/jobs/"+id+"/retries").is(200).body)
		for range 2 {
			require.Equal(t, id, a.fetch(q, `"wait_ms":5000`).at("jobs.0.id"))
			a.nack(id, `"error":{"code":"c","message":"bang"}`).is(200)
		}
		a.published(id, 8)
		r := a.get("/ojs/v1/jobs/" + id + "/retries").is(200)
		require.Equal(t, []string{"1", "2"}, r.list("retries", "attempt"))
		require.Equal(t, []string{"retryable", "discarded"}, r.list("retries", "state"))
		require.Equal(t, []string{"bang", "bang"}, r.list("retries", "error"))
		for _, member := range []string{"started_at", "failed_at"} {
			for _, text := range r.list("retries", member) {
				require.Regexp(t, serverTime, text)
			}
		}
		require.Regexp(t, serverTime, r.at("retries.0.next_retry_at"))
		require.False(t, r.has("retries.1.next_retry_at"))
		a.get("/ojs/v1/jobs/"+newID()+"/retries").fails(404, "not_found", "not_found")
	})

	t.Run("ShowsRecordedRetriesWithoutEvents", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("discarded")
		a.settled(id)
		a.exec(`DELETE FROM ojs.events WHERE job_id = $1`, id)
		require.Contains(t, a.get("/ojs/v1/jobs/"+id+"/retries").is(200).body, `"retries":[{"attempt":1,"state":"retryable","error":"boom","failed_at":"`+
			a.job(id).at("job.errors.0.occurred_at")+`"}]`)
	})

	t.Run("ShowsTheNewestOfManyRetries", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[],"queue":"%s"`, queue())
		a.exec(`INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, data)
			SELECT e.type, 'api', clock_timestamp(), $1, 't', 'q', i, CASE WHEN e.type = 'job.failed' THEN '{"error":{"message":"bang"},"next_state":"retryable"}'::json END
			FROM generate_series(1, 600) i CROSS JOIN (VALUES (1, 'job.started'), (2, 'job.failed')) e (nth, type) ORDER BY i, e.nth`, id)
		eventually(t, func() bool {
			attempts := a.get("/ojs/v1/jobs/"+id+"/retries").is(200).list("retries", "attempt")
			return len(attempts) == 500 && attempts[0] == "101" && attempts[499] == "600"
		})
		require.True(t, a.get("/ojs/v1/jobs/"+id+"/retries").has("retries.0.started_at"))
	})

	t.Run("ShowsLineage", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("available")
		require.Equal(t, `{"job_id":"`+id+`","parent_id":null,"workflow_id":null,"root_id":"`+id+`","children":[]}`, a.get("/ojs/v1/jobs/"+id+"/lineage").is(200).body)
		a.get("/ojs/v1/jobs/"+newID()+"/lineage").fails(404, "not_found", "not_found")
		w := a.post("/ojs/v1/workflows", `{"type":"group","jobs":[{"type":"t","args":[]}]}`).is(201)
		id = w.at("steps.0.job_id")
		require.Equal(t, `{"job_id":"`+id+`","parent_id":null,"workflow_id":"`+w.at("id")+`","root_id":"`+id+`","children":[]}`, a.get("/ojs/v1/jobs/"+id+"/lineage").is(200).body)
	})
}
