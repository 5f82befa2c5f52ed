package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestDatabaseOutage kills Postgres: requests are answered 503, nothing acknowledged is lost, and the server goes on by itself.
func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	cluster := dbtest.Cluster(t)
	a := setup(t, func(c *app.Config) {
		c.Database.URL, c.Jobs.VisibilityTimeout = cluster.URL(dbtest.ClusterDatabase), time.Hour
	})
	waiting, reserved := a.jobIn("available"), a.jobIn("active")
	q := a.job(waiting).at("job.queue")
	a.ready()
	a.settled(waiting)
	stream, socket := a.open("/ojs/v1/queues/"+q+"/events"), a.socket()
	socket.send(`{"action":"subscribe","channel":"events","filter":{"queues":["%s"]}}`, q)
	socket.receive()
	require.NoError(t, cluster.Kill())

	calls := map[string]func() reply{
		"Push":            func() reply { return a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`) },
		"PushWithID":      func() reply { return a.post("/ojs/v1/jobs", `{"type":"t","args":[],"id":"`+newID()+`"}`) },
		"PushToNewQueue":  func() reply { return a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+queue()+`"}`) },
		"Batch":           func() reply { return a.post("/ojs/v1/jobs/batch", `{"jobs":[{"type":"t","args":[]}]}`) },
		"Bulk":            func() reply { return a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}]}`) },
		"BulkWithInvalid": func() reply { return a.post("/ojs/v1/jobs/bulk", `{"jobs":[7,{"type":"t","args":[]}]}`) },
		"BulkAtomic": func() reply {
			return a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}],"atomicity":"atomic"}`)
		},
		"BulkWithKey": func() reply {
			return a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}],"idempotency_key":"k"}`)
		},
		"BulkCancel":    func() reply { return a.post("/ojs/v1/jobs/bulk/cancel", `{"job_ids":["`+waiting+`"]}`) },
		"BulkByFilter":  func() reply { return a.post("/ojs/v1/jobs/bulk/cancel", `{"filter":{"older_than":"0s"}}`) },
		"Info":          func() reply { return a.get("/ojs/v1/jobs/" + waiting) },
		"List":          func() reply { return a.get("/ojs/v1/jobs") },
		"Cancel":        func() reply { return a.del("/ojs/v1/jobs/" + waiting) },
		"Activate":      func() reply { return a.post("/ojs/v1/jobs/"+waiting+"/activate", "") },
		"Fetch":         func() reply { return a.post("/ojs/v1/workers/fetch", `{"queues":["`+q+`"]}`) },
		"FetchWithWait": func() reply { return a.post("/ojs/v1/workers/fetch", `{"queues":["`+q+`"],"wait_ms":10000}`) },
		"Ack":           func() reply { return a.ack(reserved) },
		"Nack":          func() reply { return a.nack(reserved) },
		"AckBatch":      func() reply { return a.post("/ojs/v1/workers/ack/batch", `{"acks":[{"job_id":"`+reserved+`"},{}]}`) },
		"NackBatch": func() reply {
			return a.post("/ojs/v1/workers/nack/batch", `{"nacks":[{"job_id":"`+reserved+`","error":{}}]}`)
		},
		"Heartbeat":       func() reply { return a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w1","job_id":"`+reserved+`"}`) },
		"QueueStatistics": func() reply { return a.get("/ojs/v1/queues/" + q + "/stats") },
		"Events":          func() reply { return a.get("/ojs/v1/events") },
		"Stream":          func() reply { return a.get("/ojs/v1/events/stream") },
		"StreamOfQueue":   func() reply { return a.get("/ojs/v1/queues/" + q + "/events") },
		"StreamOfJob":     func() reply { return a.get("/ojs/v1/jobs/" + reserved + "/events") },
		"StreamResumed":   func() reply { return a.get("/ojs/v1/jobs/"+reserved+"/events", "Last-Event-ID: evt_"+newID()) },
		"StreamProgress":  func() reply { return a.get("/ojs/v1/jobs/" + reserved + "/progress/stream") },
		"StreamStats":     func() reply { return a.get("/ojs/v1/admin/stats/stream") },
		"EventHistory":    func() reply { return a.get("/ojs/v1/events/" + reserved + "/history") },
		"Reset":           func() reply { return a.post("/ojs/v1/admin/reset", "") },
		"Metrics":         func() reply { return a.get("/ojs/v1/metrics") },
	}
	for name, call := range calls {
		start := time.Now()
		r := call()
		require.Less(t, time.Since(start), 10*time.Second, name) // a statement may take 15 s
		if r.status == 504 {                                     // sent on a connection whose end the node had not seen
			require.Equal(t, "unknown", r.at("error.details.outcome"), name)
			require.Equal(t, "true", r.at("error.retryable"), name)
			continue
		}
		require.Equal(t, 503, r.status, "%s: %s", name, r.body)
		require.Equal(t, "backend_error", r.at("error.code"), name)
		require.Equal(t, "backend_unavailable", r.at("error.type"), name)
		require.Equal(t, "true", r.at("error.retryable"), name)
		requireErrorBody(t, r)
		requireRetryAfter(t, r)
		for _, secret := range []string{"postgres://", "SQLSTATE", "127.0.0.1", "dial", "socket"} {
			require.NotContains(t, r.body, secret, name)
		}
	}

	// Requests that need no database are answered as always.
	a.post("/ojs/v1/jobs", `{`).fails(400, "invalid_payload", "invalid_payload")
	a.get("/ojs/v1/jobs/x").fails(404, "not_found", "not_found")
	a.get("/ojs/manifest").is(200)
	require.Equal(t, `{"status":"ok"}`, a.get("/healthz").is(200).body)
	eventually(t, func() bool { return a.get("/ojs/v1/health").status == 503 }) // a probe is shared for a second
	health := a.get("/ojs/v1/health").is(503)
	requireRetryAfter(t, health)
	for member, want := range map[string]string{"status": "unhealthy", "backend.status": "unhealthy", "backend.connection": "disconnected", "backend.type": "postgres"} {
		require.Equal(t, want, health.at(member))
	}
	require.NotEmpty(t, health.at("backend.error"))
	require.NotContains(t, health.body, "dial")
	ready := a.get("/readyz").is(503)
	require.Equal(t, "not_ready", ready.at("status"))

	require.NoError(t, cluster.Restart(t.Context()))
	eventually(t, func() bool { return a.get("/readyz").status == 200 })
	eventually(t, func() bool { return a.get("/ojs/v1/health").at("status") == "ok" })
	require.Equal(t, waiting, a.fetch(q).at("jobs.0.id"))
	require.Equal(t, waiting, stream.next().at(t, "job_id")) // streams have waited for it
	require.Equal(t, waiting, socket.receive().at("job_id"))
	a.ack(reserved, `"worker_id":"w1"`).is(200)
	got := a.parked("after", `"wait_ms":15000`)
	id := a.push(`"type":"t","args":[],"queue":"after"`)
	require.Equal(t, id, (<-got).at("jobs.0.id"))
	due := a.push(`"type":"t","args":[],"queue":"after","scheduled_at":"PT0.2S"`)
	require.Equal(t, due, a.fetch("after", `"wait_ms":15000`).at("jobs.0.id"))
}

// TestOutageWhileFetchWaits: a fetch that waits while the database stops is not answered with a job that is not reserved.
func TestOutageWhileFetchWaits(t *testing.T) {
	t.Parallel()
	cluster := dbtest.Cluster(t)
	a := setup(t, func(c *app.Config) {
		c.Database.URL, c.Jobs.VisibilityTimeout = cluster.URL(dbtest.ClusterDatabase), time.Hour
	})
	got := a.whenParked(func() reply { return a.post("/ojs/v1/workers/fetch", `{"queues":["q"],"wait_ms":20000}`) })
	require.NoError(t, cluster.Kill())
	require.NoError(t, cluster.Restart(t.Context()))
	var id string
	eventually(t, func() bool {
		r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"q"}`)
		if r.status == 201 {
			id = r.at("job.id")
		}
		return r.status == 201
	})
	if r := <-got; r.status == 200 {
		require.Equal(t, id, r.at("jobs.0.id"))
	} else { // it looked while the database was away
		require.Contains(t, []int{503, 504}, r.status, r.body)
		require.Equal(t, id, a.fetch("q").at("jobs.0.id"))
	}
}
