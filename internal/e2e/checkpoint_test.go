package e2e_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckpoint covers docs/reference/jobs.md, Progress and Checkpoints.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	a := setup(t)
	path := func(id string) string { return "/ojs/v1/jobs/" + id + "/checkpoint" }

	t.Run("IsNumberedAndReplaced", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		r := a.put(path(id), `{"state":{"page": 3}}`).is(200)
		at := r.at("created_at")
		require.Regexp(t, serverTime, at)
		require.Equal(t, `{"job_id":"`+id+`","sequence":1,"created_at":"`+at+`","checkpoint":{"job_id":"`+id+`","sequence":1,"created_at":"`+at+
			`","state":{"page":3},"step_index":0,"metadata":{}}}`, r.body)
		require.Equal(t, "2", a.post(path(id), `{"state":[1.0]}`).is(200).at("sequence"))
		r = a.get(path(id)).is(200)
		require.Equal(t, []string{id, "[1.0]", "2", "[1.0]"}, []string{r.at("job_id"), r.at("state"), r.at("sequence"), r.at("checkpoint.state")})

		require.Equal(t, "7", a.put(path(id), `{"state":1,"sequence":7}`).is(200).at("sequence"))
		for _, sequence := range []string{"7", "6", "0", "-1", "-9223372036854775808"} {
			r := a.put(path(id), `{"state":2,"sequence":`+sequence+`}`).fails(409, "conflict", "invalid_state_transition")
			require.Equal(t, "7", r.at("error.details.current_sequence"))
		}
		require.Equal(t, "1", a.get(path(id)).at("state"))
		require.Equal(t, "8", a.put(path(id), `{"state":null}`).is(200).at("sequence"))
		require.Equal(t, "null", a.get(path(id)).at("state"))

		for _, where := range []string{path(id), "/ojs/v1/checkpoints/" + id, "/ojs/v1/ojs/v1/checkpoints/" + id} {
			require.Equal(t, `{"deleted":true,"job_id":"`+id+`"}`, a.del(where).is(200).body)
			require.Equal(t, `{"deleted":true,"job_id":"`+id+`"}`, a.del(where).is(200).body)
			a.get(path(id)).fails(404, "not_found", "not_found")
			require.Equal(t, "1", a.put(path(id), `{"state":1}`).is(200).at("sequence"))
		}
		require.Equal(t, "9007199254740991", a.put(path(id), `{"state":1,"sequence":9007199254740991}`).is(200).at("sequence"))
	})

	t.Run("ServesDurableHelpers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, prefix := range []string{"/ojs/v1", "/ojs/v1/ojs/v1"} {
			id := a.jobIn("active")
			where := prefix + "/checkpoints/" + id
			require.Equal(t, `{"has_checkpoint":false}`, a.get(where+"/resume").is(200).body)
			r := a.post(where, `{"state":{"a":1},"step_index":2,"metadata":{"_replay_log":"[]","attempt":"1"}}`).is(200)
			require.Equal(t, "2", r.at("checkpoint.step_index"))
			r = a.get(where + "/resume").is(200)
			require.Equal(t, []string{"true", id, `{"a":1}`, "1", "2", "[]"}, []string{
				r.at("has_checkpoint"), r.at("checkpoint.job_id"), r.at("checkpoint.state"), r.at("checkpoint.sequence"),
				r.at("checkpoint.step_index"), r.at("checkpoint.metadata._replay_log"),
			})
			require.Equal(t, "2", a.post(where, `{}`).is(200).at("sequence"))
			a.get(prefix+"/checkpoints/"+newID()+"/resume").fails(404, "not_found", "not_found")
		}
	})

	t.Run("SurvivesFailuresUntilTheEnd", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.01S","jitter":false,"max_attempts":9}`, q)
		require.False(t, a.fetch(q).has("jobs.0.last_checkpoint"))
		a.put(path(id), `{"state":{"n":1.0,"z":"\u0000"}}`).is(200)
		a.nack(id).is(200)
		require.Equal(t, `{"n":1.0,"z":"\u0000"}`, a.fetch(q, `"wait_ms":5000`, `"visibility_timeout_ms":50`).at("jobs.0.last_checkpoint"))
		require.Equal(t, `{"n":1.0,"z":"\u0000"}`, a.fetch(q, `"wait_ms":5000`).at("jobs.0.last_checkpoint")) // the reservation ran out
		a.nack(id, `"requeue":true`).is(200)
		require.Equal(t, "2", a.put(path(id), `{"state":"waiting"}`).is(200).at("sequence"))
		require.Equal(t, "available", a.job(id).at("job.state"))
		require.Equal(t, `waiting`, a.fetch(q, `"wait_ms":5000`).at("jobs.0.last_checkpoint"))
		require.False(t, a.job(id).has("job.last_checkpoint"))
		require.False(t, a.ack(id).is(200).has("job.last_checkpoint"))
		require.Equal(t, "waiting", a.get(path(id)).is(200).at("state"))
	})

	t.Run("CanBeReadUntilTheJobIsPruned", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for name, end := range map[string]func(id string){
			"Ack":     func(id string) { a.ack(id).is(200) },
			"Cancel":  func(id string) { a.del("/ojs/v1/jobs/" + id).is(200) },
			"SQL":     func(id string) { require.Equal(t, "true", a.one(`SELECT ojs.cancel($1)::text`, id)) },
			"Failure": func(id string) { a.nack(id, `"error":{"message":"m","retryable":false}`).is(200) },
			"Expiry": func(id string) {
				a.nack(id, `"requeue":true`).is(200)
				a.exec(`UPDATE ojs.jobs SET expires_at = now(), due_at = now() WHERE id = $1`, id)
				eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
			},
		} {
			id := a.jobIn("active")
			a.put(path(id), `{"state":{"n":1.0},"sequence":7}`).is(200)
			end(id)
			r := a.get(path(id)).is(200)
			require.Equal(t, []string{`{"n":1.0}`, "7"}, []string{r.at("state"), r.at("sequence")}, name)
			require.Equal(t, "true", a.get("/ojs/v1/checkpoints/"+id+"/resume").is(200).at("has_checkpoint"), name)
			r = a.put(path(id), `{"state":2,"sequence":8}`).fails(409, "conflict", "invalid_state_transition")
			require.Equal(t, a.job(id).at("job.state"), r.at("error.details.current_state"), name)
			a.del(path(id)).is(200)
			a.get(path(id)).fails(404, "not_found", "not_found")
			require.Equal(t, `{"has_checkpoint":false}`, a.get("/ojs/v1/checkpoints/"+id+"/resume").is(200).body, name)
			a.del(path(id)).is(200)
		}
		again := a.jobIn("active")
		a.put(path(again), `{"state":1}`).is(200)
		a.nack(again, `"error":{"message":"m","retryable":false}`).is(200)
		a.post("/ojs/v1/dead-letter/"+again+"/retry", "").is(200)
		a.get(path(again)).fails(404, "not_found", "not_found")
	})

	t.Run("IsStoredByProgressToo", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		a.report(id, `"progress":0.5,"checkpoint":{"a":1}`).is(200)
		a.report(id, `"progress":0.6,"checkpoint":{"a":2}`).is(200)
		a.report(id, `"progress":0.7`).is(200)
		r := a.get(path(id)).is(200)
		require.Equal(t, []string{"2", `{"a":2}`}, []string{r.at("sequence"), r.at("state")})
	})

	t.Run("RefusesWhatItMust", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"completed", "discarded", "cancelled"} {
			id := a.jobIn(state)
			r := a.put(path(id), `{"state":1}`).fails(409, "conflict", "invalid_state_transition")
			require.Equal(t, state, r.at("error.details.current_state"))
			a.post("/ojs/v1/checkpoints/"+id, `{"state":1}`).fails(409, "conflict", "invalid_state_transition")
			a.del(path(id)).is(200)
		}
		for _, id := range []string{newID(), "x"} {
			a.put(path(id), `{"state":1}`).fails(404, "not_found", "not_found")
			a.get(path(id)).fails(404, "not_found", "not_found")
			a.del(path(id)).fails(404, "not_found", "not_found")
			a.post("/ojs/v1/checkpoints/"+id, `{"state":1}`).fails(404, "not_found", "not_found")
		}
		id := a.jobIn("active")
		for body, field := range map[string]string{
			`{}`: "state", `{"sequence":1}`: "state", `{"state":1,"sequence":"1"}`: "sequence", `{"state":1,"sequence":1.5}`: "sequence",
			`{"state":1,"sequence":1e999}`: "sequence", `{"state":1,"sequence":9007199254740992}`: "sequence", `{"state":1,"step_index":"x"}`: "step_index",
			`{"state":1,"metadata":[]}`: "metadata", `{"state":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + `}`: "state",
			``: "body", `7`: "body", "{\"state\":\"\xff\"}": "body", "{\"state\":\"\x00\"}": "body",
		} {
			a.put(path(id), body).invalid(field)
		}
		r := a.put(path(id), `{"state":"`+repeated('x', 1<<20)+`"}`).fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "checkpoint", r.at("error.details.field"))
		a.put(path(id), `{"state":"`+repeated('x', 2<<20)+`"}`).fails(413, "payload_too_large", "payload_too_large")
		a.put(path(id), `{"state":1,"worker_id":"w2"}`).fails(409, "conflict", "not_owner")
		a.put(path(id), `{"state":1,"attempt":4}`).fails(409, "conflict", "stale_attempt")
		a.get(path(id)).is(404)
		a.put(path(id), `{"state":"`+repeated('x', 1<<20-2)+`"}`).is(200)
	})

	t.Run("OneOfTwoWithTheSameNumberWins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		var saved, refused atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if r := a.put(path(id), `{"state":1,"sequence":1}`); r.status == 200 {
					saved.Add(1)
				} else if r.status == 409 {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		require.Equal(t, []int32{1, 9}, []int32{saved.Load(), refused.Load()})
	})
}
