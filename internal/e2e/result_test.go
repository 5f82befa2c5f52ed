package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestResult covers docs/reference/jobs.md, Results.
func TestResult(t *testing.T) {
	t.Parallel()
	a := setup(t)
	get := func(a *node, id, query string) reply { return a.get("/ojs/v1/jobs/" + id + "/result" + query) }

	t.Run("HasSizeAndTimes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.finished(`{"n": 1.0}`, `,"options":{"result_ttl":60}`)
		job := a.job(id)
		require.Equal(t, "9", job.at("job.result_size_bytes"))
		require.Equal(t, job.at("job.completed_at"), job.at("job.result_stored_at"))
		stored, err := time.Parse(time.RFC3339, job.at("job.result_stored_at"))
		require.NoError(t, err)
		expires, err := time.Parse(time.RFC3339, job.at("job.result_expires_at"))
		require.NoError(t, err)
		require.Equal(t, time.Minute, expires.Sub(stored))
		r := get(a, id, "").is(200)
		require.Equal(t, `{"job_id":"`+id+`","state":"completed","result":{"n":1.0},"completed_at":"`+job.at("job.completed_at")+`"}`, r.body)

		forever := a.job(a.finished(`1`, `,"result_ttl":-1`))
		require.True(t, forever.has("job.result_stored_at"))
		require.False(t, forever.has("job.result_expires_at"))
		require.True(t, a.job(a.finished(`1`, `,"result_ttl":3153600000`)).has("job.result_expires_at"))
		none := a.jobIn("completed")
		require.False(t, a.job(none).has("job.result_stored_at"))
		require.Equal(t, "null", get(a, none, "").is(200).at("result"))
		null := a.job(a.finished(`null`, ""))
		require.Equal(t, []string{"null", "4"}, []string{null.at("job.result"), null.at("job.result_size_bytes")})
	})

	t.Run("IsDeletedAfterItsTime", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.finished(`1`, `,"result_ttl":3`)
		require.Equal(t, "1", a.job(id).at("job.result"))
		eventually(t, func() bool { return !a.job(id).has("job.result") })
		require.False(t, a.job(id).has("job.result_expires_at"))
		require.Equal(t, "completed", a.job(id).at("job.state"))
		r := get(a, id, "").fails(410, "x_result_pruned", "x_result_pruned")
		require.Equal(t, "false", r.at("error.retryable"))
		require.Equal(t, "null", a.post("/ojs/v1/jobs/results", `{"ids":["`+id+`"]}`).is(200).at("results."+id+".result"))
		require.False(t, a.get("/ojs/v1/jobs?queue="+a.job(id).at("job.queue")).is(200).has("jobs.0.result"))

		unkept := a.finished(`1`, `,"result_ttl":0`)
		require.False(t, a.job(unkept).has("job.result"))
		require.Equal(t, "null", get(a, unkept, "").is(200).at("result"))
	})

	t.Run("IsKeptForAWeekByDefault", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kept := a.job(a.finished(`1`, ""))
		stored, err := time.Parse(time.RFC3339, kept.at("job.result_stored_at"))
		require.NoError(t, err)
		expires, err := time.Parse(time.RFC3339, kept.at("job.result_expires_at"))
		require.NoError(t, err)
		require.Equal(t, 168*time.Hour, expires.Sub(stored))
	})

	t.Run("IsLimitedBySize", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Jobs.MaxJobBytes = 1000 })
		id := a.jobIn("active")
		for _, n := range []int{999, 100_000} {
			r := a.ack(id, `"result":"`+repeated('x', n)+`"`).fails(413, "payload_too_large", "payload_too_large")
			require.Equal(t, "result", r.at("error.details.field"))
		}
		require.Equal(t, "active", a.job(id).at("job.state"))
		a.ack(id, `"result":"`+repeated('x', 998)+`"`).is(200)
	})

	t.Run("ShowsEveryState", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"scheduled", "pending", "available", "active", "retryable"} {
			id := a.jobIn(state)
			require.Equal(t, `{"job_id":"`+id+`","state":"`+state+`","result":null}`, get(a, id, "?wait=false").is(200).body)
		}
		discarded := get(a, a.jobIn("discarded"), "?wait=true").is(200)
		require.Equal(t, []string{"discarded", "null", "boom"}, []string{discarded.at("state"), discarded.at("result"), discarded.at("error.message")})
		cancelled := get(a, a.jobIn("cancelled"), "?wait=true").is(200)
		require.Equal(t, []string{"cancelled", "null", ""}, []string{cancelled.at("state"), cancelled.at("result"), cancelled.at("error")})
		get(a, newID(), "?wait=true").fails(404, "not_found", "not_found")
		get(a, "x", "").fails(404, "not_found", "not_found")
		for query, parameter := range map[string]string{"?wait=maybe": "wait", "?wait=true&timeout=0": "timeout", "?wait=true&timeout=x": "timeout", "?timeout=1.5": "timeout", "?timeout=-1": "timeout"} {
			r := get(a, newID(), query).fails(400, "invalid_request", "invalid_request")
			require.Equal(t, parameter, r.at("error.details.parameter"))
		}
	})

	t.Run("WaitsUntilTheEnd", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		start := time.Now()
		r := get(a, a.jobIn("active"), "?wait=true&timeout=1").fails(408, "x_wait_timeout", "x_wait_timeout")
		require.Equal(t, "true", r.at("error.retryable"))
		require.GreaterOrEqual(t, time.Since(start), time.Second)
		require.Less(t, time.Since(start), 30*time.Second)
		for end, do := range map[string]func(id string){
			"completed": func(id string) { a.ack(id, `"result":7`).is(200) },
			"discarded": func(id string) { a.nack(id, `"error":{"message":"x","retryable":false}`).is(200) },
			"cancelled": func(id string) { a.del("/ojs/v1/jobs/" + id).is(200) },
		} {
			id := a.jobIn("active")
			got := a.awaiting(id)
			do(id)
			require.Equal(t, end, (<-got).is(200).at("state")) // a wait that is not ended is answered 408
		}
		expired := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"PT1H"`, queue())
		got := a.awaiting(expired)
		a.exec(`UPDATE ojs.jobs SET expires_at = now(), due_at = now() WHERE id = $1`, expired)
		a.wake()
		require.Equal(t, "discarded", (<-got).is(200).at("state"))
	})

	t.Run("ListsMany", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		done, active, lost, unknown := a.finished(`[1]`, ""), a.jobIn("active"), a.jobIn("discarded"), newID()
		r := a.post("/ojs/v1/jobs/results", fmt.Sprintf(`{"ids":["%s","%s","%s","%s","strange","job_%s","%s"]}`, done, active, lost, unknown, done, done)).is(200)
		require.Equal(t, `[1]`, r.at("results."+done+".result"))
		require.Equal(t, `[1]`, r.at("results.job_"+done+".result"))
		require.Equal(t, "active", r.at("results."+active+".state"))
		require.Equal(t, "null", r.at("results."+active+".result"))
		require.Equal(t, "boom", r.at("results."+lost+".error.message"))
		require.Equal(t, []string{"null", "null"}, []string{r.at("results." + unknown), r.at("results.strange")})
		require.Equal(t, `{"results":{}}`, a.post("/ojs/v1/jobs/results", `{"ids":[]}`).is(200).body)
		ids := ""
		for range 100 {
			ids += `"` + newID() + `",`
		}
		a.post("/ojs/v1/jobs/results", `{"ids":[`+ids[:len(ids)-1]+`]}`).is(200)
		r = a.post("/ojs/v1/jobs/results", `{"ids":[`+ids+`"x"]}`).fails(413, "batch_size_exceeded", "batch_size_exceeded")
		require.Equal(t, "100", r.at("error.details.max_batch_size"))
		for _, body := range []string{`{}`, `{"ids":"x"}`, `{"ids":[7]}`, `{"ids":null}`} {
			a.post("/ojs/v1/jobs/results", body).invalid("ids")
		}
		require.Equal(t, "null", a.post("/ojs/v1/jobs/results", `{"ids":["\u0000"]}`).is(200).at("results.\x00"))
	})
}

// TestResultAcrossNodes: a wait on one node ends when the job has ended on another.
func TestResultAcrossNodes(t *testing.T) {
	t.Parallel()
	a, b := nodes(t)
	for range 3 {
		id := a.jobIn("active")
		got := a.awaiting(id)
		b.ack(id, `"result":"there"`).is(200)
		require.Equal(t, "there", (<-got).is(200).at("result"))
	}
	t.Run("EndsWithTheServer", func(t *testing.T) {
		got := a.in(t).awaiting(a.jobIn("active"))
		require.NoError(t, a.app.Stop())
		(<-got).fails(408, "x_wait_timeout", "x_wait_timeout")
	})
}
