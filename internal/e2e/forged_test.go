package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// Every role that may connect to the database can send notifications. They wake nodes; whatever they say, no job is lost or run twice, and
// what a node remembers stays true (docs/SECURITY.md).
func TestForgedNotifications(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Tests.EnableReset = false })
	a.beat("quiet", `"state":"quiet"`)
	a.post("/ojs/v1/queues/paused/pause", "").is(200)
	busy := a.busy("q", "")
	scheduled := a.push(`"type":"t","args":[],"queue":"q","scheduled_at":"PT1H"`)
	waiting := a.push(`"type":"t","args":[],"queue":"paused"`)
	parked := a.parked("empty", `"worker_id":"w"`, `"wait_ms":20000`)

	payloads := []string{
		"", "x", "{}", "null", "[]", `{"w":-1,"q":[]}`, `{"w":9223372036854775807,"q":[["q",0,9223372036854775807,1,"lane"]]}`,
		`{"w":1,"q":[["empty",32767,-9223372036854775808,null]]}`, `{"w":1,"q":[["` + strings.Repeat("q", 7000) + `",0,1,null]]}`,
		`{"w":1e400,"q":[[1,2,3,4]]}`, "made", "_default", "paused", "\u0001",
	}
	for _, channel := range []string{
		"ojs_events", "ojs_published", "ojs_wake", "ojs_workers", "ojs_maintenance", "ojs_cron", "ojs_schemas", "ojs_queues", "ojs_pools", "ojs_reset",
		"ojs_webhooks", "ojs_probe",
	} {
		for _, payload := range payloads {
			a.exec(fmt.Sprintf("SELECT pg_notify('%s', $1)", channel), payload)
		}
	}
	// A job that is enqueued after them reaches the fetch that waits.
	id := a.push(`"type":"t","args":[],"queue":"empty"`)
	require.Equal(t, id, (<-parked).at("jobs.0.id"))
	require.Equal(t, `{"jobs":[]}`, a.fetch("paused", `"worker_id":"w"`).body)
	a.push(`"type":"t","args":[],"queue":"q"`)
	require.Equal(t, `{"jobs":[]}`, a.fetch("q", `"worker_id":"quiet"`).body)
	require.NotEqual(t, busy, a.fetch("q", `"worker_id":"w"`).at("jobs.0.id"))
	for id, state := range map[string]string{busy: "active", scheduled: "scheduled", waiting: "available"} {
		require.Equal(t, state, a.job(id).at("job.state"))
	}
	a.ack(busy).is(200)
	require.Equal(t, "ok", a.get("/ojs/v1/health").is(200).at("status"))
}
