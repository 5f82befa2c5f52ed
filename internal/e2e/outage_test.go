package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestOutage: while no node reaches the database, nobody loses a job whose worker sends heartbeats, although its reservation ends meanwhile.
// One job is left by its worker; it becomes available ten seconds after the outage.
func TestOutage(t *testing.T) {
	t.Parallel()
	p := newProxy(t, dbtest.URL(t))
	a := setup(t, connections(4), on(p.url))
	b := setup(t, connections(4), on(p.url))
	t.Cleanup(p.end)
	const lease = `"visibility_timeout_ms":3000`
	left := a.push(`"type":"t","args":[],"queue":"left"`)
	require.Equal(t, left, a.fetch("left", lease).at("jobs.0.id"))
	a.pushMany(t, "kept", 8)
	kept := a.fetch("kept", lease, `"worker_id":"w","count":8`).list("jobs", "id")
	require.Len(t, kept, 8)
	beat := `{"worker_id":"w","active_job_ids":["` + strings.Join(kept, `","`) + `"]}`

	p.Stop()
	eventually(t, func() bool { return a.post("/ojs/v1/workers/heartbeat", beat).status == 503 })
	time.Sleep(6 * time.Second) // longer than the reservation, and than what is an outage
	require.NoError(t, p.Start())
	eventually(t, func() bool { return b.post("/ojs/v1/workers/heartbeat", beat).status == 200 })
	for _, id := range kept {
		a.ack(id, `"worker_id":"w"`).is(200)
	}
	eventually(t, func() bool { return b.fetch("left", `"wait_ms":1000`).at("jobs.0.id") == left })
}
