package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExpiryIsPrompt covers docs/reference/scheduling.md, Expiring jobs and Precision: what is over when it is written ends at once, also on a server that has just looked.
func TestExpiryIsPrompt(t *testing.T) {
	t.Parallel()

	discarded := func(a *node, id string) {
		a.t.Helper()
		eventually(a.t, func() bool { return a.job(id).at("job.state") == "discarded" })
	}

	t.Run("OfLongAgo", func(t *testing.T) {
		t.Parallel()
		a := setup(t, rarePolls)
		for _, at := range []string{"2020-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "1970-01-01T00:00:00Z"} {
			discarded(a, a.push(`"type":"t","args":[],"queue":"q","expires_at":"%s"`, at))
			discarded(a, a.push(`"type":"t","args":[],"queue":"q","pending":true,"expires_at":"%s"`, at))
		}
	})

	t.Run("AZeroTimeStopsNoTimers", func(t *testing.T) {
		t.Parallel()
		before := setup(t)
		require.NoError(t, before.app.Stop())
		zero := before.one(`SELECT ojs.enqueue('t', '[]', 'zero', '{"expires_at":"0001-01-01T00:00:00Z"}')::text`)
		a := before.another(rarePolls)
		discarded(a, zero)
		id := a.push(`"type":"t","args":[],"queue":"q","scheduled_at":"+PT0.3S"`)
		require.Equal(t, id, a.fetch("q", `"wait_ms":20000`).at("jobs.0.id"))
	})

	t.Run("AfterARelease", func(t *testing.T) {
		t.Parallel()
		a := setup(t, rarePolls)
		id := a.push(`"type":"t","args":[],"queue":"q","expires_at":"+PT1H"`)
		over := a.push(`"type":"t","args":[],"queue":"q","expires_at":"+PT1H"`)
		require.Len(t, a.fetch("q", `"count":2`).list("jobs", "id"), 2)
		a.exec(`UPDATE ojs.jobs SET expires_at = now() + CASE id WHEN $1 THEN interval '1 s' ELSE interval '0' END`, id)
		a.nack(id, `"requeue":true`).is(200)
		discarded(a, id)
		a.nack(over, `"requeue":true`).is(200)
		discarded(a, over)
	})
}
