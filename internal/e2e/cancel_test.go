package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCancelAndActivate covers docs/reference/http.md, Cancel.
func TestCancelAndActivate(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("CancelShowsThePreviousState", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"scheduled", "pending", "available", "active", "retryable"} {
			id := a.jobIn(state)
			before := a.job(id)
			r := a.del("/ojs/v1/jobs/"+id, "OJS-Version: 1.0").is(200)
			require.Equal(t, "cancelled", r.at("job.state"))
			require.Equal(t, state, r.at("job.previous_state"))
			require.Regexp(t, serverTime, r.at("job.cancelled_at"))
			for _, absent := range []string{"completed_at", "discarded_at", "next_attempt_at", "worker_id"} {
				require.False(t, r.has("job."+absent), absent)
			}
			for _, kept := range []string{"attempt", "started_at", "enqueued_at", "error", "args"} {
				require.Equal(t, before.at("job."+kept), r.at("job."+kept), kept)
			}
			require.False(t, a.job(id).has("job.previous_state"))
			require.Equal(t, r.at("job.cancelled_at"), a.job(id).at("job.cancelled_at"))
		}
	})

	t.Run("CancelledJobIsNotDelivered", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		first, second := a.push(`"type":"t","args":[],"queue":"%s"`, q), a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.del("/ojs/v1/jobs/" + first).is(200)
		require.Equal(t, []string{second}, a.fetch(q, `"count":5`).list("jobs", "id"))
	})

	t.Run("ActivateMakesAvailable", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, body := range []string{``, `{}`, ` `} {
			id := a.jobIn("pending")
			require.False(t, a.job(id).has("job.enqueued_at"))
			r := a.post("/ojs/v1/jobs/"+id+"/activate", body, "OJS-Version: 1.0").is(200)
			require.Equal(t, "available", r.at("job.state"))
			require.Equal(t, "pending", r.at("job.previous_state"))
			require.Regexp(t, serverTime, r.at("job.activated_at"))
			require.Equal(t, r.at("job.activated_at"), r.at("job.enqueued_at"))
			require.False(t, a.job(id).has("job.activated_at"))
			require.Equal(t, id, a.fetch(r.at("job.queue")).at("jobs.0.id"))
		}
		id := a.jobIn("pending")
		for _, body := range []string{`[]`, `{`, `x`, `"x"`} {
			a.post("/ojs/v1/jobs/"+id+"/activate", body).fails(400, "invalid_payload", "invalid_payload")
		}
		a.post("/ojs/v1/jobs/"+newID()+"/activate", `[]`).is(400)
	})

	t.Run("PendingJobMayExpire", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[],"pending":true,"expires_at":"PT0.1S"`)
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		require.Equal(t, "expired", a.job(id).at("job.error.code"))
	})
}
