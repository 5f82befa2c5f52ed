package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var states = []string{"scheduled", "pending", "available", "active", "retryable", "completed", "cancelled", "discarded"}

// TestOperationsByState covers docs/reference/jobs.md, Allowed operations: every cell of the table.
func TestOperationsByState(t *testing.T) {
	t.Parallel()
	a := setup(t)
	ack := func(a *node, id string) reply { return a.ack(id, `"worker_id":"w1"`) }
	nack := func(a *node, id string) reply { return a.nack(id, `"worker_id":"w1"`, `"error":{"message":"m"}`) }
	cancel := func(a *node, id string) reply { return a.del("/ojs/v1/jobs/" + id) }
	activate := func(a *node, id string) reply { return a.post("/ojs/v1/jobs/"+id+"/activate", "") }

	for _, op := range []struct {
		name    string
		do      func(a *node, id string) reply
		becomes map[string]string // by state; absent: refused
		needs   string            // expected_state of the refusal
	}{
		{"Ack", ack, map[string]string{"active": "completed"}, "active"},
		{"Nack", nack, map[string]string{"active": "retryable"}, "active"},
		{"Cancel", cancel, map[string]string{"scheduled": "cancelled", "pending": "cancelled", "available": "cancelled", "active": "cancelled", "retryable": "cancelled"},
			`["scheduled","pending","available","active","retryable"]`},
		{"Activate", activate, map[string]string{"pending": "available"}, "pending"},
	} {
		for _, state := range states {
			t.Run(op.name+"/"+state, func(t *testing.T) {
				t.Parallel()
				a := a.in(t)
				id := a.jobIn(state)
				before := a.job(id)
				if next, legal := op.becomes[state]; legal {
					op.do(a, id).is(200)
					require.Equal(t, next, a.job(id).at("job.state"))
					before, state = a.job(id), next
					if _, again := op.becomes[next]; again {
						return
					}
				}
				// Refused, or done a second time; a repeated call is not the same as one.
				for range 2 {
					r := op.do(a, id).fails(409, "conflict", "invalid_state_transition")
					require.Equal(t, "false", r.at("error.retryable"))
					require.Equal(t, id, r.at("error.details.job_id"))
					require.Equal(t, state, r.at("error.details.current_state"))
					require.Equal(t, op.needs, r.at("error.details.expected_state"))
					require.Equal(t, before.body, a.job(id).body)
				}
			})
		}
		t.Run(op.name+"/unknown", func(t *testing.T) {
			t.Parallel()
			id := newID()
			r := op.do(a.in(t), id).fails(404, "not_found", "not_found")
			require.Equal(t, "job", r.at("error.details.resource_type"))
			require.Equal(t, id, r.at("error.details.resource_id"))
		})
	}

	for _, state := range states {
		t.Run("Fetch/"+state, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			id := a.jobIn(state)
			before := a.job(id)
			r := a.fetch(before.at("job.queue"))
			if state == "available" {
				require.Equal(t, []string{id}, r.list("jobs", "id"))
				return
			}
			require.Equal(t, `{"jobs":[]}`, r.body)
			require.Equal(t, before.body, a.job(id).body)
		})
		t.Run("Heartbeat/"+state, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			id := a.jobIn(state)
			before := a.job(id)
			r := a.post("/ojs/v1/workers/heartbeat", fmt.Sprintf(`{"worker_id":"w1","active_jobs":["%s"]}`, id)).is(200)
			want := `[]`
			if state == "active" {
				want = `["` + id + `"]`
			}
			require.Equal(t, want, r.at("jobs_extended"))
			require.Equal(t, before.body, a.job(id).body)
		})
	}
}

// TestOutcomeOfCancelledRun covers docs/reference/jobs.md, Allowed operations: the sentence below the table.
func TestOutcomeOfCancelledRun(t *testing.T) {
	t.Parallel()
	a := setup(t)
	calls := map[string]func(a *node, id string, more ...string) reply{
		"Ack":  func(a *node, id string, more ...string) reply { return a.ack(id, more...) },
		"Nack": func(a *node, id string, more ...string) reply { return a.nack(id, append(more, `"error":{}`)...) },
		"AckBatch": func(a *node, id string, more ...string) reply {
			return a.post("/ojs/v1/workers/ack/batch", fmt.Sprintf(`{"acks":[{"job_id":"%s"%s}]}`, id, strings.Join(append([]string{""}, more...), ",")))
		},
		"NackBatch": func(a *node, id string, more ...string) reply {
			return a.post("/ojs/v1/workers/nack/batch", fmt.Sprintf(`{"nacks":[{"job_id":"%s","error":{}%s}]}`, id, strings.Join(append([]string{""}, more...), ",")))
		},
	}
	for name, call := range calls {
		batch := strings.HasSuffix(name, "Batch")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			id := a.jobIn("cancelled-active")
			own := map[bool]string{true: `"requeue":true`, false: `"result":{"x":1}`}[strings.HasPrefix(name, "Nack")]
			before := a.job(id)
			for _, more := range [][]string{{}, {`"worker_id":"w1"`}, {`"attempt":1`}, {`"worker_id":"w1"`, `"attempt":1`, own}} {
				r := call(a, id, more...).is(200)
				if batch {
					require.Equal(t, "ok", r.at("items.0.status"))
					require.Equal(t, "cancelled", r.at("items.0.job.state"))
				} else {
					require.Equal(t, "false", r.at("acknowledged"))
					require.Equal(t, id, r.at("id"))
					require.Equal(t, id, r.at("job_id"))
					require.Equal(t, "cancelled", r.at("state"))
					require.Equal(t, before.at("job"), r.at("job"))
				}
				require.Equal(t, before.body, a.job(id).body)
			}
			for _, more := range [][]string{{`"worker_id":"w2"`}, {`"attempt":2`}, {`"worker_id":"w1"`, `"attempt":0`}, {`"attempt":-1`}, {`"attempt":99999999999`}} {
				r := call(a, id, more...)
				if batch {
					require.Equal(t, "conflict", r.is(200).at("items.0.error.code"))
				} else {
					r.fails(409, "conflict", "invalid_state_transition")
				}
				require.Equal(t, before.body, a.job(id).body)
			}
		})
	}

	t.Run("ClaimedWithoutWorker", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
		a.del("/ojs/v1/jobs/" + id).is(200)
		require.Equal(t, "false", a.ack(id).is(200).at("acknowledged"))
		require.Equal(t, "false", a.ack(id, `"worker_id":"anybody"`).is(200).at("acknowledged"))
	})

	t.Run("NotForAFormerOwner", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("retryable")
		a.del("/ojs/v1/jobs/" + id).is(200)
		a.ack(id, `"worker_id":"w1"`).fails(409, "conflict", "invalid_state_transition")
		a.nack(id, `"worker_id":"w1"`, `"error":{}`).fails(409, "conflict", "invalid_state_transition")
	})
}
