package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDeadWorkers covers docs/reference/workers.md, Dead workers.
func TestDeadWorkers(t *testing.T) {
	t.Parallel()
	const dead = 3 * time.Second // a busy machine makes a few calls meanwhile

	t.Run("LoseTheirJobsAtOnce", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":600000`, q)
		a.fetch(q, `"worker_id":"w"`)
		start := time.Now()
		a.beat("w", `"job_id":"`+id+`"`)
		r := a.fetch(q, `"worker_id":"v"`, `"wait_ms":20000`)
		require.Equal(t, id, r.at("jobs.0.id"))
		require.Equal(t, "2", r.at("jobs.0.attempt"))
		require.GreaterOrEqual(t, time.Since(start), dead)
		job := a.job(id)
		require.Equal(t, "1", job.at("job.errors.0.attempt"))
		require.Equal(t, "worker_death", job.at("job.errors.0.code"))
		require.Equal(t, "worker_death", job.at("job.errors.0.type"))
		require.Equal(t, "3", job.at("job.errors.0.limit_seconds"))
		require.Equal(t, "stale", a.worker("w").is(200).at("state"))
		require.Equal(t, "stale", a.get("/ojs/v1/workers/w/health").is(503).at("state"))
		eventually(t, func() bool {
			return a.get("/ojs/v1/health").at("workers") == `{"active":0,"connected":0,"stale":1,"total":1}`
		})
		types, data := a.workerEvents("w")
		require.Equal(t, []string{"worker.started", "worker.stopped"}, types)
		require.Equal(t, "error", data[1].at("data.reason"))
		require.Equal(t, "ojs://ojs/scheduler", data[1].at("source"))

		// The worker sends a heartbeat again.
		a.ack(id, `"worker_id":"w"`).fails(409, "conflict", "not_owner")
		a.nack(id, `"worker_id":"w"`, `"error":{}`).fails(409, "conflict", "not_owner")
		r = a.beat("w", `"job_id":"`+id+`"`)
		require.Equal(t, `["`+id+`"]`, r.at("jobs_lost"))
		a.ack(id, `"worker_id":"v"`).is(200)
		require.Equal(t, "running", a.worker("w").at("state"))
		eventually(t, func() bool { types, _ := a.workerEvents("w"); return len(types) >= 3 })
		types, _ = a.workerEvents("w")
		require.Equal(t, "worker.started", types[2])
	})

	t.Run("ComeBackWithoutTheirJobs", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w"`)
		a.beat("w")
		a.direct("w", "quiet").is(200)
		eventually(t, func() bool { return a.job(id).at("job.state") == "available" })
		a.ack(id, `"worker_id":"w"`).fails(409, "conflict", "invalid_state_transition")
		r := a.beat("w", `"job_id":"`+id+`"`)
		require.Equal(t, `["`+id+`"]`, r.at("jobs_lost"))
		require.Equal(t, "running", r.at("state"), "the directive was dropped with the worker")
		require.Equal(t, id, a.fetch(q, `"worker_id":"w"`).at("jobs.0.id"))
	})

	t.Run("PoisonEndsInTheDeadLetters", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(200*time.Millisecond))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":600000,"retry":{"max_attempts":2,"on_exhaustion":"dead_letter"}`, q)
		for attempt := range 2 {
			w := newID()
			require.Equal(t, fmt.Sprint(attempt+1), a.fetch(q, `"worker_id":"`+w+`"`, `"wait_ms":20000`).at("jobs.0.attempt"))
			a.beat(w, `"job_id":"`+id+`"`)
		}
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		require.Equal(t, "2", a.job(id).at("job.attempt"))
		require.Equal(t, 2, a.job(id).count("job.errors"))
		require.Equal(t, `[]`, a.fetch(q).at("jobs"))
	})

	t.Run("AreOnlyThoseThatEverReported", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(200*time.Millisecond))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w"`)
		a.beat("other")
		eventually(t, func() bool { return a.worker("other").at("state") == "stale" })
		require.Equal(t, "active", a.job(id).at("job.state"))
		require.Equal(t, "1", a.get("/ojs/v1/workers").at("summary.total"))
	})

	t.Run("AnyCallIsASignOfLife", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(6*time.Second)) // calls are written after a second, in bulk
		calls := map[string]func(w string){
			"w-fetch": func(w string) { a.fetch(queue(), `"worker_id":"`+w+`"`) },
			"w-ack":   func(w string) { a.ack(newID(), `"worker_id":"`+w+`"`).is(404) },
			"w-nack":  func(w string) { a.nack(newID(), `"worker_id":"`+w+`"`, `"error":{}`).is(404) },
		}
		for w := range calls {
			a.beat(w)
		}
		a.exec(`UPDATE ojs.workers SET last_seen_at = last_seen_at - interval '1 s'`)
		last := a.one(`SELECT max(last_seen_at)::text FROM ojs.workers`)
		for w, call := range calls {
			call(w)
		}
		eventually(t, func() bool {
			return a.one(`SELECT count(*)::text FROM ojs.workers WHERE last_seen_at > $1::text::timestamptz + interval '1 s'`, last) == "3"
		})
		for w := range calls {
			require.Equal(t, "running", a.worker(w).at("state"))
		}
		for w := range calls {
			eventually(t, func() bool { return a.worker(w).at("state") == "stale" })
		}
	})

	t.Run("AreDeletedByHand", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		first, second := a.push(`"type":"t","args":[],"queue":"%s"`, q), a.push(`"type":"t","args":[],"queue":"%s"`, queue())
		a.fetch(q, `"worker_id":"w"`)
		a.beat("w")
		a.del("/ojs/v1/admin/workers/w").fails(409, "conflict", "invalid_state_transition")
		eventually(t, func() bool { return a.job(first).at("job.state") == "available" })
		require.Equal(t, first, a.fetch(q, `"worker_id":"w"`).at("jobs.0.id"), "a fetch does not bring it back")
		require.Equal(t, "stale", a.worker("w").at("state"))
		require.JSONEq(t, `{"deleted":true,"worker_id":"w","jobs_requeued":1}`, a.del("/ojs/v1/admin/workers/w").is(200).body)
		require.Equal(t, "available", a.job(first).at("job.state"))
		require.Equal(t, "available", a.job(second).at("job.state"))
		a.del("/ojs/v1/admin/workers/w").fails(404, "not_found", "not_found")
	})

	t.Run("GiveTheirJobsBackWhenTheyDeregister", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.beat("w")
		eventually(t, func() bool { return a.worker("w").at("state") == "stale" })
		a.fetch(q, `"worker_id":"w"`)
		a.del("/ojs/v1/workers/w").is(200)
		require.Equal(t, "available", a.job(id).at("job.state"))
		require.Equal(t, "worker_death", a.job(id).at("job.error.code"))
		a.worker("w").is(404)
	})

	t.Run("AreReapedOnceByTwoNodes", func(t *testing.T) {
		t.Parallel()
		one, two := nodes(t, deadAfter(dead))
		q := queue()
		const n = 30
		for range n {
			one.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":600000`, q)
		}
		ids := one.fetch(q, `"worker_id":"w"`, `"count":100`).list("jobs", "id")
		require.Len(t, ids, n)
		one.beat("w")
		two.beat("w")
		for _, id := range ids {
			eventually(t, func() bool { return two.job(id).at("job.state") == "available" })
			job := one.job(id)
			require.Equal(t, "1", job.at("job.attempt"))
			require.Equal(t, 1, job.count("job.errors"))
		}
		eventually(t, func() bool { types, _ := one.workerEvents("w"); return len(types) >= 2 })
		types, _ := one.workerEvents("w")
		require.Equal(t, []string{"worker.started", "worker.stopped"}, types)
		for _, j := range one.fetch(q, `"count":100`).list("jobs", "attempt") {
			require.Equal(t, "2", j)
		}
	})
}
