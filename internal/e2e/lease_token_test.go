package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeaseToken: a job that was handed back and fetched again by the same worker has the same attempt. Only the token tells the runs apart.
func TestLeaseToken(t *testing.T) {
	t.Parallel()
	a := setup(t)
	// again is a job in its second run, and the tokens of both.
	again := func(a *node) (id, first, second string) {
		q := queue()
		id = a.push(`"type":"t","args":[],"queue":"%s"`, q)
		first = a.fetch(q, `"worker_id":"w"`).at("jobs.0.lease_token")
		require.NotEmpty(t, first)
		a.nack(id, `"requeue":true`, token(first)).is(200)
		r := a.fetch(q, `"worker_id":"w"`)
		second = r.at("jobs.0.lease_token")
		require.Equal(t, "1", r.at("jobs.0.attempt"))
		require.NotEqual(t, first, second)
		require.False(t, a.job(id).has("job.lease_token"), "only who has fetched the job has it")
		return id, first, second
	}

	t.Run("OfAnotherRunIsRefused", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id, first, second := again(a)
		const run = `"worker_id":"w","attempt":1`
		for name, r := range map[string]reply{
			"ack": a.ack(id, run, token(first)), "nack": a.nack(id, run, `"error":{}`, token(first)),
			"requeue": a.nack(id, run, `"requeue":true`, token(first)),
		} {
			require.Contains(t, r.fails(409, "conflict", "stale_attempt").body, "lease_token", name)
		}
		batch := fmt.Sprintf(`{"job_id":"%s",%s}`, id, token(first))
		require.Equal(t, "stale_attempt", a.post("/ojs/v1/workers/ack/batch", `{"acks":[`+batch+`]}`).is(200).at("items.0.error.type"))
		require.Equal(t, "stale_attempt", a.post("/ojs/v1/workers/nack/batch", `{"nacks":[`+batch[:len(batch)-1]+`,"error":{}}]}`).is(200).at("items.0.error.type"))
		require.Equal(t, "active", a.job(id).at("job.state"))
		a.ack(id, run, token(second)).is(200)
	})

	t.Run("IsComparedForEachAckOfAFlush", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		one, stale, _ := again(a)
		two, _, good := again(a)
		three, _, _ := again(a)
		r := a.post("/ojs/v1/workers/ack/batch", fmt.Sprintf(`{"acks":[{"job_id":"%s",%s},{"job_id":"%s",%s},{"job_id":"%s"}]}`,
			one, token(stale), two, token(good), three)).is(200)
		require.Equal(t, []string{"failed", "ok", "ok"}, r.list("items", "status"))
	})

	t.Run("KeepsTheCurrentRunOnly", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		one, first, _ := again(a)
		two, _, second := again(a)
		three, _, _ := again(a)
		r := a.post("/ojs/v1/workers/heartbeat", fmt.Sprintf(`{"worker_id":"w","active_jobs":["%s","%s","%s"],"lease_tokens":{"%[1]s":"%[4]s","job_%[2]s":"%[5]s","%[6]s":"%[4]s"}}`,
			one, two, three, first, second, newID())).is(200)
		require.ElementsMatch(t, []string{two, three}, r.texts("jobs_extended"))
		require.Equal(t, []string{one}, r.texts("jobs_lost"))
		require.Equal(t, "active", a.job(one).at("job.state"))
	})

	t.Run("NamesACancelledRun", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id, first, second := again(a)
		a.del("/ojs/v1/jobs/" + id).is(200)
		a.ack(id, token(first)).fails(409, "conflict", "invalid_state_transition")
		require.Equal(t, "false", a.ack(id, token(second)).is(200).at("acknowledged"))
		for tok, member := range map[string]string{first: "jobs_lost", second: "jobs_cancelled"} {
			r := a.post("/ojs/v1/workers/heartbeat", fmt.Sprintf(`{"worker_id":"w","job_id":"%s","lease_tokens":{"%[1]s":"%s"}}`, id, tok)).is(200)
			require.Equal(t, []string{id}, r.texts(member))
		}
	})

	t.Run("BadOnesAreRefused", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id, _, second := again(a)
		for _, bad := range []string{`7`, `""`, `"x y"`, `"-1"`, `"0"`, `"0` + second + `"`, `"zzzzzzzzzzzzzzzzzzzz"`, `{}`} {
			a.ack(id, `"lease_token":`+bad).invalid("lease_token")
			a.nack(id, `"error":{}`, `"lease_token":`+bad).invalid("lease_token")
			a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","lease_tokens":{"`+id+`":`+bad+`}}`).invalid("lease_tokens")
		}
		for _, bad := range []string{`7`, `[]`, `"x"`, `{"x":"` + second + `"}`} {
			a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","lease_tokens":`+bad+`}`).invalid("lease_tokens")
		}
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","lease_tokens":null,"job_id":"`+id+`"}`).is(200)
		a.ack(id, `"lease_token":null`).is(200)
	})

	t.Run("OfAnEnqueueIsDropped", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.push(`"type":"t","args":[],"queue":"%s","lease_token":"mine"`, q)
		require.NotEqual(t, "mine", a.fetch(q).at("jobs.0.lease_token"))
	})
}

func token(t string) string { return `"lease_token":"` + t + `"` }
