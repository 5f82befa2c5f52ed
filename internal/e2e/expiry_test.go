package e2e_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// Contract 20 §10 and §13.1: what is over when it is written ends at once, also on a server that has just looked.
func TestExpiryIsPrompt(t *testing.T) {
	t.Parallel()

	discarded := func(a *api, id string) {
		a.t.Helper()
		start := time.Now()
		eventually(a.t, func() bool { return a.job(id).at("job.state") == "discarded" })
		require.Less(a.t, time.Since(start), 2500*time.Millisecond)
	}

	t.Run("OfLongAgo", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for _, at := range []string{"2020-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "1970-01-01T00:00:00Z"} {
			discarded(a, a.push(`"type":"t","args":[],"queue":"q","expires_at":"%s"`, at))
			discarded(a, a.push(`"type":"t","args":[],"queue":"q","pending":true,"expires_at":"%s"`, at))
		}
	})

	t.Run("AZeroTimeStopsNoTimers", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		a := setup(t, func(c *app.Config) { c.DatabaseURL = url })
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(t.Context())) }()
		_, err = conn.Exec(t.Context(), `SELECT ojs.enqueue('t', '[]', 'zero', '{"expires_at":"0001-01-01T00:00:00Z"}')`)
		require.NoError(t, err)
		id := a.push(`"type":"t","args":[],"queue":"q","scheduled_at":"+PT6S"`)
		require.Equal(t, id, a.fetch("q", `"wait_ms":20000`).at("jobs.0.id"))
	})

	t.Run("AfterARelease", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		id := a.push(`"type":"t","args":[],"queue":"q","expires_at":"+PT2S"`)
		over := a.push(`"type":"t","args":[],"queue":"q","expires_at":"+PT1S"`)
		require.Len(t, a.fetch("q", `"count":2`).list("jobs", "id"), 2)
		a.nack(id, `"requeue":true`).is(200)
		start := time.Now()
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		require.Less(t, time.Since(start), 4500*time.Millisecond)
		a.nack(over, `"requeue":true`).is(200)
		discarded(a, over)
	})
}
