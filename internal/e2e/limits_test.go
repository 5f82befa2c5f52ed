package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestLimits covers docs/reference/jobs.md, Limits: exactly the limit is accepted. Attempts, results and errors are in states_test.go, nesting and
// compression in body_test.go.
func TestLimits(t *testing.T) {
	t.Parallel()
	a := setup(t)
	const mib = 1_048_576
	// sized is an object of n bytes.
	sized := func(start, end string, n int) string { return start + repeated('x', n-len(start)-len(end)) + end }

	t.Run("Envelope", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		start, end := `{"type":"t","args":["`, `"]}`
		a.post("/ojs/v1/jobs", sized(start, end, mib)).is(201)
		r := a.post("/ojs/v1/jobs", sized(start, end, mib+1)).fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "envelope", r.at("error.details.field"))
		require.Equal(t, "1048576", r.at("error.details.max_bytes"))
		require.Equal(t, "1048577", r.at("error.details.actual_bytes"))
		// The same for each element of a batch, which may be larger as a whole.
		for _, path := range []string{"batch", "bulk"} {
			a.post("/ojs/v1/jobs/"+path, `{"jobs":[`+sized(start, end, mib)+`,`+sized(start, end, mib)+`]}`).is(201)
		}
		r = a.post("/ojs/v1/jobs/batch", `{"jobs":[`+sized(start, end, mib)+`,`+sized(start, end, mib+1)+`]}`).fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "envelope", r.at("error.details.field"))
		require.Equal(t, "1", r.at("error.details.index"))
		require.Equal(t, "payload_too_large", a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+sized(start, end, mib)+`,`+sized(start, end, mib+1)+`]}`).is(207).at("items.1.error.code"))
	})

	t.Run("OtherBodies", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.post("/ojs/v1/workers/fetch", sized(`{"queues":["none"],"pool":"`, `"}`, mib)).is(404)
		a.post("/ojs/v1/workers/fetch", sized(`{"queues":["none"],"pool":"`, `"}`, mib+1)).fails(413, "payload_too_large", "payload_too_large")
		a.post("/ojs/v1/workers/heartbeat", sized(`{"worker_id":"w","x":"`, `"}`, mib)).is(200)
		a.post("/ojs/v1/workers/heartbeat", sized(`{"worker_id":"w","x":"`, `"}`, mib+1)).fails(413, "payload_too_large", "payload_too_large")
		id := newID()
		a.post("/ojs/v1/workers/ack", sized(`{"job_id":"`+id+`","x":"`, `"}`, mib+65_536)).unknown("x")
		a.post("/ojs/v1/workers/ack", sized(`{"job_id":"`+id+`","x":"`, `"}`, mib+65_537)).fails(413, "payload_too_large", "payload_too_large")
		a.post("/ojs/v1/workers/nack", sized(`{"job_id":"`+id+`","error":{"message":"`, `"}}`, 2*mib)).is(404)
	})

	t.Run("BatchBodies", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).post("/ojs/v1/jobs/batch", repeated(' ', 33_554_433)).fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "33554432", r.at("error.details.max_bytes"))
		a := setup(t, func(c *app.Config) { c.Server.MaxBatchBytes = 2 * mib })
		for path, start := range map[string]string{
			"jobs/batch": `{"jobs":[{}],"x":"`, "jobs/bulk": `{"jobs":[{}],"x":"`, "jobs/bulk/cancel": `{"job_ids":["x"],"x":"`,
			"workers/nack": `{"job_id":"x","error":{},"x":"`, "workers/ack/batch": `{"acks":[{}],"x":"`, "workers/nack/batch": `{"nacks":[{}],"x":"`,
		} {
			r := a.post("/ojs/v1/"+path, sized(start, `"}`, 2*mib))
			require.NotEqual(t, 413, r.status, path)
			r = a.post("/ojs/v1/"+path, sized(start, `"}`, 2*mib+1)).fails(413, "payload_too_large", "payload_too_large")
			require.Equal(t, "batch", r.at("error.details.field"), path)
		}
	})

	t.Run("Meta", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		meta := func(n int) string { return sized(`{"m":"`, `"}`, n) }
		require.Equal(t, meta(65_536), a.post("/ojs/v1/jobs", `{"type":"t","args":[],"meta":`+meta(65_536)+`}`).is(201).at("job.meta"))
		r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"meta":`+meta(65_537)+`}`).fails(413, "metadata_too_large", "metadata_too_large")
		require.Equal(t, "meta", r.at("error.details.field"))
		require.Equal(t, "65536", r.at("error.details.max_bytes"))
		// White space does not count; merged members do.
		a.post("/ojs/v1/jobs", `{"type":"t","args":[],"meta":  `+strings.Replace(meta(65_536), ":", " :\n ", 1)+`}`).is(201)
		a.post("/ojs/v1/jobs", `{"type":"t","args":[],"meta":`+meta(40_000)+`,"options":{"metadata":`+strings.Replace(meta(40_000), "m", "n", 1)+`}}`).is(413)
	})

	t.Run("Names", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		require.Len(t, a.post("/ojs/v1/jobs", `{"type":"`+repeated('t', 255)+`","args":[]}`).is(201).at("job.type"), 255)
		a.post("/ojs/v1/jobs", `{"type":"`+repeated('t', 256)+`","args":[]}`).fails(400, "invalid_payload", "job_type_too_long")
		require.Len(t, a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+repeated('q', 128)+`"}`).is(201).at("job.queue"), 128)
		a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+repeated('q', 129)+`"}`).fails(400, "invalid_payload", "queue_name_too_long")
		id := a.jobIn("available")
		q := a.job(id).at("job.queue")
		worker := strings.Repeat("ä", 127) + "x" // 255 bytes
		require.Equal(t, worker, a.fetch(q, `"worker_id":"`+worker+`"`).at("jobs.0.worker_id"))
		a.ack(id, `"worker_id":"`+worker+`y"`).invalid("worker_id")
		a.ack(id, `"worker_id":"`+worker+`"`).is(200)
	})

	t.Run("ManyAttributes", func(t *testing.T) {
		t.Parallel()
		var b strings.Builder
		for i := range 40_000 {
			fmt.Fprintf(&b, `,"x%d":%d`, i, i)
		}
		r := a.in(t).post("/ojs/v1/jobs", `{"type":"t","args":[]`+b.String()+`}`).is(201)
		require.Equal(t, "39999", r.at("job.x39999"))
	})
}
