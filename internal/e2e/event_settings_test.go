package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestEventSettings covers docs/reference/events.md, Source, and the settings that add or leave out events.
func TestEventSettings(t *testing.T) {
	t.Parallel()

	t.Run("Sources", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		id := a.push(`"type":"t","args":[],"scheduled_at":"PT0.05S"`)
		eventually(t, func() bool { return a.job(id).at("job.state") == "available" })
		a.fetch("default", `"worker_id":"w"`)
		a.ack(id).is(200)
		a.settled(id)
		require.Equal(t, []string{"ojs://ojs/api", "ojs://ojs/scheduler", "ojs://ojs/workers/w", "ojs://ojs/workers/w"},
			a.get("/ojs/v1/events?job_id="+id).is(200).list("events", "source"))
		require.Equal(t, []string{"client", "system", "worker", "worker"}, a.get("/ojs/v1/jobs/"+id+"/history").is(200).list("events", "actor.type"))
		require.Equal(t, 2, a.get("/ojs/v1/events?sources=ojs://ojs/api*,ojs://ojs/scheduler*&job_id="+id).is(200).count("events"))
	})

	t.Run("EnqueuedAgain", func(t *testing.T) {
		t.Parallel()
		a := setup(t, freshGauges, func(c *app.Config) { c.Events.EnqueuedOnRequeue = true })
		id := a.push(`"type":"t","args":[],"retry":{"initial_interval":"PT0.01S"}`)
		a.fetch("default", `"worker_id":"w"`)
		a.nack(id, `"requeue":true`).is(200)
		a.fetch("default", `"worker_id":"w"`)
		a.nack(id).is(200)
		eventually(t, func() bool { return a.job(id).at("job.state") == "available" })
		a.settled(id)
		enqueued := a.get("/ojs/v1/events?types=job.enqueued&job_id=" + id).is(200)
		require.Equal(t, []string{"", "active", "retryable"}, enqueued.list("events", "data.previous_state"))
		eventually(t, func() bool { // the timer counts after its commit
			return strings.Contains(a.get("/metrics").is(200).body, `ojs_jobs_enqueued_total{job_type="t",queue="default"} 3`)
		})
	})

	t.Run("FewerHeartbeats", func(t *testing.T) {
		t.Parallel()
		for interval, want := range map[time.Duration]int{0: 3, time.Hour: 1} {
			a := setup(t, func(c *app.Config) { c.Events.JobHeartbeatMinInterval = interval })
			id := a.push(`"type":"t","args":[]`)
			a.fetch("default", `"worker_id":"w"`)
			for range 3 {
				require.Contains(t, a.beat("w", `"active_jobs":["`+id+`"]`).at("jobs_extended"), id)
			}
			a.ack(id).is(200)
			a.settled(id)
			require.Equal(t, want, a.get("/ojs/v1/events?types=job.heartbeat&job_id="+id).is(200).count("events"))
		}
	})
}
