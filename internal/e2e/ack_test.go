package e2e_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAck covers docs/reference/http.md, Ack.
func TestAck(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Completes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		r := a.ack(id, `"worker_id":"w1"`, `"attempt":1`, `"result":{"sent":true}`).is(200)
		require.Equal(t, "true", r.at("acknowledged"))
		require.Equal(t, id, r.at("id"))
		require.Equal(t, id, r.at("job_id"))
		require.Equal(t, "completed", r.at("state"))
		require.Equal(t, "1", r.at("attempt"))
		require.Regexp(t, serverTime, r.at("completed_at"))
		job := a.job(id)
		require.Equal(t, job.at("job"), r.at("job"))
		require.Equal(t, `{"sent":true}`, job.at("job.result"))
		require.Equal(t, r.at("completed_at"), job.at("job.completed_at"))
		require.Equal(t, "1", job.at("job.attempt"))
		require.True(t, job.has("job.started_at"))
		require.False(t, job.has("job.worker_id"))
		require.False(t, job.has("job.error"))
		a.ack("job_"+id).fails(409, "conflict", "invalid_state_transition")
	})

	t.Run("ClearsErrorAndKeepsHistory", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.001S","jitter":false}`, q)
		require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
		a.nack(id).is(200)
		again := a.fetch(q, `"wait_ms":5000`)
		require.Equal(t, id, again.at("jobs.0.id"))
		require.Equal(t, "2", again.at("jobs.0.attempt"))
		require.Equal(t, "boom", again.at("jobs.0.error.message"))
		require.Equal(t, "1", again.at("jobs.0.retry_delay_ms"))
		require.False(t, again.has("jobs.0.next_attempt_at"))
		a.ack(id).is(200)
		job := a.job(id)
		require.False(t, job.has("job.error"))
		require.Equal(t, []string{"boom"}, job.list("job.errors", "message"))
	})

	t.Run("RefusesBadFields", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		for _, c := range []struct{ body, field string }{
			{`{}`, "job_id"}, {`{"job_id":null}`, "job_id"}, {`{"job_id":""}`, "job_id"}, {`{"job_id":7}`, "job_id"}, {`{"job_id":["` + id + `"]}`, "job_id"},
			{`{"job_id":"` + id + `","worker_id":7}`, "worker_id"}, {`{"job_id":"` + id + `","worker_id":"` + repeated('w', 256) + `"}`, "worker_id"},
			{`{"job_id":"` + id + `","attempt":"1"}`, "attempt"}, {`{"job_id":"` + id + `","attempt":1.5}`, "attempt"}, {`{"job_id":"` + id + `","attempt":1e30}`, "attempt"},
		} {
			a.post("/ojs/v1/workers/ack", c.body).invalid(c.field)
			nack := strings.TrimSuffix(c.body, "}") + `,"error":{}}`
			if c.body == `{}` {
				nack = `{"error":{}}`
			}
			a.post("/ojs/v1/workers/nack", nack).invalid(c.field)
		}
		require.Equal(t, "active", a.job(id).at("job.state"))
	})

	t.Run("GuardsOwnerAndAttempt", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		before := a.job(id).body
		for _, call := range []func(more ...string) reply{
			func(more ...string) reply { return a.ack(id, more...) },
			func(more ...string) reply { return a.nack(id, append(more, `"error":{}`)...) },
			func(more ...string) reply { return a.nack(id, append(more, `"requeue":true`)...) },
		} {
			r := call(`"worker_id":"w2"`).fails(409, "conflict", "not_owner")
			require.Equal(t, id, r.at("error.details.job_id"))
			require.Equal(t, "w2", r.at("error.details.worker_id"))
			require.Equal(t, "w1", r.at("error.details.owner_worker_id"))
			for _, attempt := range []string{"0", "2", "-1", "4294967297"} {
				r = call(`"attempt":`+attempt).fails(409, "conflict", "stale_attempt")
				require.Equal(t, "1", r.at("error.details.current_attempt"))
			}
			require.Equal(t, before, a.job(id).body)
		}
		a.ack(id, `"worker_id":"w1"`, `"attempt":1.0`).is(200)
	})

	t.Run("OwnerlessJobTakesAnyWorker", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		r := a.fetch(q)
		require.False(t, r.has("jobs.0.worker_id"))
		a.ack(id, `"worker_id":"anybody"`).is(200)
	})

	t.Run("ResultLimit", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		for _, excess := range []int{1, 40_000, 200_000} {
			r := a.ack(id, `"result":"`+repeated('r', 1_048_574+excess)+`"`).fails(413, "payload_too_large", "payload_too_large")
			if excess < 60_000 {
				require.Equal(t, "result", r.at("error.details.field"))
				require.Equal(t, "1048576", r.at("error.details.max_bytes"))
			}
			require.Equal(t, "active", a.job(id).at("job.state"))
		}
		a.ack(id, `"result":"`+repeated('r', 1_048_574)+`"`).is(200)
	})

	t.Run("LaterRunIsNotTouchedByTheEarlierWorker", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w1"`, `"visibility_timeout_ms":50`)
		again := a.fetch(q, `"worker_id":"w2"`, `"wait_ms":5000`)
		require.Equal(t, "2", again.at("jobs.0.attempt"))
		require.Equal(t, "visibility_timeout", again.at("jobs.0.error.code"))
		a.ack(id, `"worker_id":"w1"`).fails(409, "conflict", "not_owner")
		a.ack(id, `"attempt":1`).fails(409, "conflict", "stale_attempt")
		a.ack(id, `"worker_id":"w2"`).is(200)
	})
}

// TestAckAndNackByPath covers docs/reference/http.md, Ack and Nack: the paths with the id of the job.
func TestAckAndNackByPath(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, body := range []string{"", " ", "{}", `{"job_id":"ignored","worker_id":"w1","attempt":1}`} {
		id := a.jobIn("active")
		r := a.post("/ojs/v1/jobs/"+id+"/ack", body).is(200)
		require.Equal(t, "true", r.at("acknowledged"))
		require.Equal(t, id, r.at("job_id"))
		a.post("/ojs/v1/jobs/"+id+"/ack", body).fails(409, "conflict", "invalid_state_transition")
	}
	id := a.jobIn("active")
	a.post("/ojs/v1/jobs/"+id+"/ack", `{"result":"`+repeated('x', 1_048_576)+`"}`).is(413)
	a.post("/ojs/v1/jobs/"+id+"/ack", `{"attempt":2}`).fails(409, "conflict", "stale_attempt")
	a.post("/ojs/v1/jobs/"+id+"/ack", `{"worker_id":"w2"}`).fails(409, "conflict", "not_owner")
	a.post("/ojs/v1/jobs/"+id+"/nack", ``).is(400)
	a.post("/ojs/v1/jobs/"+id+"/nack", `{}`).invalid("error")
	a.post("/ojs/v1/jobs/"+id+"/nack", `{"error":7}`).invalid("error")
	r := a.post("/ojs/v1/jobs/"+id+"/nack", `{"error":"it broke"}`).is(200)
	require.Equal(t, "retryable", r.at("state"))
	require.Equal(t, "handler_error", r.at("job.error.code"))
	require.Equal(t, "it broke", r.at("job.error.message"))
	reserved := a.jobIn("active")
	require.Equal(t, "0", a.post("/ojs/v1/jobs/"+reserved+"/nack", `{"requeue":true}`).is(200).at("attempt"))
	for _, path := range []string{newID(), "strange"} {
		a.post("/ojs/v1/jobs/"+path+"/ack", "").is(404)
		a.post("/ojs/v1/jobs/"+path+"/nack", `{"error":{}}`).is(404)
	}
	a.nack(reserved, `"error":"a text"`).invalid("error")
}
