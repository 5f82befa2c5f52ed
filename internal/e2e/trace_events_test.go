package e2e_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestTraceIDIsInEveryEvent drives jobs that carry a trace id over every transition of docs/reference/events.md,
// Transitions, and looks at all rows of the log.
func TestTraceIDIsInEveryEvent(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	a := setup(t, deadAfter(2*time.Second), func(c *app.Config) { c.Database.URL, c.DeadLetter.MaxAge = url, 0 })
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })

	push := func(more string) (id, q string) {
		q = queue()
		return a.push(`"type":"t","args":[],"queue":"%s","meta":{"trace_id":"tr"}%s`, q, more), q
	}
	reserved := func(more string) (id string) {
		id, q := push(more)
		require.Equal(t, id, a.fetch(q, `"worker_id":"w1"`).at("jobs.0.id"))
		return id
	}
	state := func(id, want string) {
		eventually(t, func() bool { return a.job(id).at("job.state") == want })
	}
	discarded := func() string {
		id := reserved(`,"retry":{"on_exhaustion":"dead_letter"}`)
		a.nack(id, `"error":{"message":"x","retryable":false}`).is(200)
		return id
	}

	id, _ := push(`,"scheduled_at":"PT0.05S"`)
	state(id, "available")
	id, _ = push(`,"pending":true`)
	a.post("/ojs/v1/jobs/"+id+"/activate", "").is(200)
	a.del("/ojs/v1/jobs/" + id + "?reason=x").is(200)
	id, _ = push("")
	a.post("/ojs/v1/jobs/bulk/cancel", `{"job_ids":["`+id+`"]}`).is(200)
	a.post("/ojs/v1/jobs/bulk/delete", `{"job_ids":["`+id+`"]}`).is(200)
	id, q := push("")
	require.Equal(t, id, a.fetch(q, `"worker_id":"w0"`).at("jobs.0.id")) // w1 sends no heartbeat, so it does not die
	a.report(id, `"progress":0.5`).is(200)
	a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w0","active_jobs":["`+id+`"]}`).is(200)
	a.ack(id, `"result":{"a":1}`).is(200)
	id = reserved(`,"retry":{"initial_interval":"PT0.05S","jitter":false}`)
	a.nack(id).is(200)
	state(id, "available")
	id = reserved(`,"retry":{"initial_interval":"PT1H"}`)
	a.nack(id).is(200)
	a.post("/ojs/v1/jobs/bulk/retry", `{"job_ids":["`+id+`"]}`).is(200)
	a.nack(reserved(""), `"requeue":true`).is(200)
	state(reserved(`,"visibility_timeout_ms":50`), "available")
	state(reserved(`,"timeout_ms":50,"retry":{"initial_interval":"PT1H"}`), "retryable")
	state(reserved(`,"total_timeout":3`), "discarded")
	id, _ = push(`,"total_timeout":1`)
	state(id, "discarded")
	id, _ = push(`,"expires_at":"PT0.05S"`)
	state(id, "discarded")
	a.post("/ojs/v1/dead-letter/"+discarded()+"/retry", "").is(200)
	a.post("/ojs/v1/dead-letter/"+discarded()+"/retry", `{"override":{"queue":"`+queue()+`"}}`).is(200)
	a.del("/ojs/v1/dead-letter/" + discarded()).is(200)

	_, q = push("")
	id = a.fetch(q, `"worker_id":"mortal"`).at("jobs.0.id")
	a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"mortal","queues":["`+q+`"]}`).is(200)
	state(id, "available")

	var sqlID string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT ojs.enqueue('t', '[]', options => '{"meta":{"trace_id":"tr"}}')::text`).Scan(&sqlID))
	_, err = conn.Exec(t.Context(), `SELECT ojs.cancel($1::uuid)`, sqlID)
	require.NoError(t, err)

	name := queue()
	a.post("/ojs/v1/cron", fmt.Sprintf(`{"name":"%s","expression":"@every 1s","type":"t","queue":"%s","meta":{"trace_id":"tr"},"overlap_policy":"skip"}`, name, name)).is(201)
	transitions := func() []string {
		rows, err := conn.Query(t.Context(), `SELECT DISTINCT type || ' ' || coalesce(from_state, '') || '→' || coalesce(to_state, '') ||
			CASE WHEN internal THEN ' ' || coalesce(data ->> 'reason', '') ELSE '' END FROM ojs.events ORDER BY 1`)
		require.NoError(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return list
	}
	eventually(t, func() bool { return slices.Contains(transitions(), "cron.skipped →") })
	require.Subset(t, transitions(), []string{
		"cron.skipped →", "cron.triggered →", "job.cancelled available→cancelled", "job.completed active→completed",
		"job.discarded active→discarded", "job.discarded available→discarded", "job.enqueued discarded→available", "job.enqueued pending→available",
		"job.enqueued scheduled→available", "job.enqueued →available", "job.expired available→discarded", "job.failed →", "job.heartbeat →",
		"job.progress →", "job.retrying active→retryable", "job.scheduled →scheduled", "job.started available→active",
		"job.state_changed active→available requeue", "job.state_changed active→available visibility_timeout",
		"job.state_changed active→available worker_death", "job.state_changed cancelled→ deleted", "job.state_changed discarded→ moved",
		"job.state_changed discarded→ deleted", "job.state_changed retryable→available retry", "job.state_changed →discarded moved",
		"job.state_changed →pending ",
	})

	rows, err := conn.Query(t.Context(), `SELECT type || ' ' || coalesce(from_state, '') || '→' || coalesce(to_state, '') FROM ojs.events
		WHERE (job_id IS NOT NULL OR type LIKE 'cron.%') AND trace_id IS DISTINCT FROM 'tr'`)
	require.NoError(t, err)
	without, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, without)

	// And shown, whatever the payload.
	a.publishedAll()
	seen := map[string]bool{}
	for cursor, more := "", true; more; {
		r := a.get("/ojs/v1/events?limit=1000" + cursor).is(200)
		for _, e := range r.elements("events") {
			event := reply{t: t, body: string(e)}
			if kind := event.at("type"); kind[:4] == "job." || kind[:4] == "cron" {
				require.Equal(t, "tr", event.at("data.trace_id"), event.body)
				seen[kind] = true
			}
		}
		more = r.at("has_more") == "true"
		cursor = "&after=" + r.at("next_cursor")
	}
	require.Len(t, seen, 13, "%v", seen)
}
