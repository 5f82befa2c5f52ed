package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
)

// TestQueues covers docs/reference/queues.md over HTTP and gRPC.
func TestQueues(t *testing.T) {
	t.Parallel()
	a, other := nodes(t)
	enqueue := func(a *node, q string) reply {
		return a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+q+`"}`)
	}
	fetch := func(a *node, q string) int {
		return a.post("/ojs/v1/workers/fetch", `{"queues":["`+q+`"],"worker_id":"w"}`).is(200).count("jobs")
	}

	t.Run("PauseAndResume", func(t *testing.T) {
		t.Parallel()
		a, other := a.in(t), other.in(t)
		q := queue()
		r := a.post("/ojs/v1/queues/"+q+"/pause", `{"paused_by":"alice"}`).is(200)
		require.Equal(t, q, r.at("queue.name"))
		require.Equal(t, "paused", r.at("queue.status"))
		require.Equal(t, "true", r.at("paused"))
		require.NotEmpty(t, r.at("paused_at"))
		require.Contains(t, r.header.Values("Vary"), "OJS-Version")
		require.Equal(t, q, a.post("/ojs/v1/queues/"+q+"/pause", "", "OJS-Version: 1.0").is(200).at("queue"))
		enqueue(a, q).is(201)
		require.Zero(t, fetch(a, q))
		require.Zero(t, fetch(other, q))
		r = other.post("/ojs/v1/queues/"+q+"/resume", "", "X-OJS-Actor: bob").is(200)
		require.Equal(t, "active", r.at("status"))
		require.NotEmpty(t, r.at("resumed_at"))
		eventually(t, func() bool { return fetch(a, q) == 1 })
		eventually(t, func() bool {
			events := a.get("/ojs/v1/events?types=queue.*&queues=" + q).is(200)
			return events.count("events") == 2 && events.at("events.0.data.paused_by") == "alice" && events.at("events.1.data.resumed_by") == "bob" &&
				events.at("events.0.subject") == q && events.at("events.0.queue") == q
		})
	})

	t.Run("ResumeWakesALongPollOfAnotherNode", func(t *testing.T) {
		t.Parallel()
		a, other := a.in(t), other.in(t)
		q := queue()
		a.post("/ojs/v1/queues/"+q+"/pause", "").is(200)
		const parked = 40 // more than are woken by a poll every second
		got := make(chan int, parked)
		for range parked {
			enqueue(a, q).is(201)
			go func() {
				got <- other.post("/ojs/v1/workers/fetch", `{"queues":["`+q+`"],"wait_ms":20000}`).count("jobs")
			}()
		}
		a.post("/ojs/v1/queues/"+q+"/resume", "").is(200)
		for range parked {
			require.Equal(t, 1, <-got)
		}
	})

	t.Run("Drain", func(t *testing.T) {
		t.Parallel()
		a, other := a.in(t), other.in(t)
		q := queue()
		enqueue(a, q).is(201)
		r := a.post("/ojs/v1/queues/"+q+"/drain", "").is(200)
		require.Equal(t, "1", r.at("remaining"))
		require.Equal(t, "draining", r.at("status"))
		refused := enqueue(other, q).fails(422, "queue_paused", "queue_paused")
		require.Equal(t, "draining", refused.at("error.details.status"))
		a.post("/ojs/v1/jobs/batch", `{"jobs":[{"type":"t","args":[],"queue":"`+q+`"}]}`).fails(422, "queue_paused", "queue_paused")
		a.post("/ojs/v1/workflows", `{"type":"chain","steps":[{"type":"t","args":[]},{"type":"t","args":[],"options":{"queue":"`+q+`"}}]}`).fails(422, "queue_paused", "queue_paused")
		require.Equal(t, 1, fetch(other, q))
		a.get("/ojs/v1/queues/" + q).is(200)
	})

	t.Run("CreateConfigureAndRead", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.get("/ojs/v1/queues/"+q).fails(404, "not_found", "not_found")
		a.get("/ojs/v1/queues/"+q+"/config").fails(404, "not_found", "not_found")
		r := a.post("/ojs/v1/queues", `{"name":"`+q+`","concurrency":4,"config":{"max_size":100}}`).is(201)
		require.Equal(t, "100", r.at("config.max_size"))
		require.Equal(t, "4", r.at("config.concurrency"))
		require.Equal(t, "/ojs/v1/queues/"+q, r.header.Get("Location"))
		a.post("/ojs/v1/queues", `{"name":"`+q+`"}`).fails(409, "conflict", "x_queue_exists")
		a.post("/ojs/v1/queues", `{}`).invalid("name")
		a.post("/ojs/v1/queues", `{"name":"a","config":5}`).invalid("config")
		a.post("/ojs/v1/queues", `{"name":"a","config":{"concurrency":-1}}`).invalid("concurrency")
		for kind, name := range map[string]string{"invalid_queue": "_default", "queue_name_too_long": repeated('a', 129)} {
			require.Equal(t, "name", a.post("/ojs/v1/queues", `{"name":"`+name+`"}`).fails(400, "invalid_payload", kind).at("error.details.field"))
		}

		r = a.put("/ojs/v1/queues/"+q+"/config", `{"concurrency":5,"retention":{"completed":"P3D"},"default_timeout":60}`).is(200)
		require.Equal(t, "5", r.at("config.concurrency"))
		require.Equal(t, "P3D", r.at("config.retention.completed"))
		require.Equal(t, "P30D", r.at("config.retention.discarded"))
		require.Equal(t, "P7D", r.at("config.retention.cancelled"))
		require.Equal(t, r.at("config"), r.at("configuration"))
		require.Equal(t, r.body, a.get("/ojs/v1/queues/"+q+"/config").is(200).body)
		a.put("/ojs/v1/queues/"+q+"/config", `{"retention":"soon"}`).invalid("retention.completed")
		a.put("/ojs/v1/queues/"+q+"/config", "").is(400)
		a.put("/ojs/v1/queues/"+q+"/config", `{"allowed_job_types":["a"]}`).is(200)
		enqueue(a, q).fails(422, "x_job_type_not_allowed", "x_job_type_not_allowed")
		a.put("/ojs/v1/queues/"+q+"/config", `{"allowed_job_types":null,"max_size":7}`).is(200)
		id := enqueue(a, q).is(201).at("job.id")
		require.NotEmpty(t, id)

		r = a.get("/ojs/v1/queues/" + q).is(200)
		require.Equal(t, "1", r.at("depth"))
		require.Equal(t, "0", r.at("running"))
		require.Equal(t, "1", r.at("stats.available"))
		require.Equal(t, "7", r.at("config.max_size"))
		require.NotEmpty(t, r.at("created_at"))
		require.Equal(t, "7", a.get("/ojs/v1/queues/"+q+"/stats").is(200).at("stats.max_depth"))
		require.Equal(t, "P7D", a.get("/ojs/v1/queues/_default/config").is(200).at("config.retention.completed"))
		require.Equal(t, "_default", a.put("/ojs/v1/admin/queues/_default/config", `{"dead_letter_queue":null}`).is(200).at("name"))
	})

	t.Run("ListInBothVocabularies", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for _, q := range []string{"c", "a", "b"} {
			enqueue(a, q).is(201)
		}
		r := a.get("/ojs/v1/queues?limit=2").is(200)
		require.Equal(t, []string{"a", "b"}, r.list("queues", "name"))
		require.Equal(t, "3", r.at("total"))
		require.Equal(t, "true", r.at("pagination.has_more"))
		require.NotEmpty(t, r.at("queues.0.created_at"))
		require.Equal(t, []string{"c"}, a.get("/ojs/v1/queues?cursor="+r.at("pagination.next_cursor")).is(200).list("queues", "name"))
		require.Equal(t, []string{"c"}, a.get("/ojs/v1/queues?page=2&per_page=2").is(200).list("queues", "name"))
		require.Equal(t, "[]", a.get("/ojs/v1/queues?offset=9").is(200).at("queues"))
		a.get("/ojs/v1/queues?cursor=%00").is(400)
		a.get("/ojs/v1/queues?limit=0").is(400)
	})

	t.Run("Delete", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, to := queue(), queue()
		enqueue(a, q).is(201)
		a.del("/ojs/v1/queues/"+q).fails(409, "conflict", "invalid_state_transition")
		a.del("/ojs/v1/queues/" + q + "?strategy=burn").is(400)
		a.del("/ojs/v1/queues/" + q + "?strategy=move").is(400)
		a.del("/ojs/v1/queues/" + q + "?strategy=move&target_queue=" + q).is(400)
		r := a.del("/ojs/v1/queues/" + q + "?strategy=move&target_queue=" + to).is(200)
		require.Equal(t, "1", r.at("jobs_affected"))
		require.Equal(t, "deleted", r.at("state"))
		a.get("/ojs/v1/queues/"+q).fails(404, "not_found", "not_found")
		require.Equal(t, 1, fetch(a, to))
		require.Equal(t, "draining", a.del("/ojs/v1/queues/"+to+"?strategy=discard").is(202).at("state"))
		enqueue(a, q).is(201) // implicit creation starts afresh
		a.get("/ojs/v1/queues/" + q).is(200)
	})

	t.Run("Purge", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		enqueue(a, q).is(201)
		a.post("/ojs/v1/queues/"+q+"/purge", "").is(400)
		for _, body := range []string{`{}`, `{"states":[]}`, `{"states":["active"]}`, `{"states":["x"],"confirm":true}`, `{"states":"completed"}`} {
			a.post("/ojs/v1/queues/"+q+"/purge", body).invalid("states")
		}
		a.post("/ojs/v1/queues/"+q+"/purge", `{"states":["available"]}`).invalid("confirm")
		require.Equal(t, "1", a.post("/ojs/v1/queues/"+q+"/purge", `{"states":["available"],"confirm":true}`).is(200).at("deleted"))
		require.Equal(t, `["completed"]`, a.post("/ojs/v1/queues/"+q+"/purge", `{"states":["completed"]}`).is(200).at("states"))
	})

	t.Run("BadNamesAndBodies", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/ojs/v1/queues/UP/pause", "/ojs/v1/queues/a%00b/resume", "/ojs/v1/queues/" + repeated('a', 129) + "/drain", "/ojs/v1/queues/_default/pause"} {
			a.post(path, "").is(400)
		}
		a.post("/ojs/v1/queues/a/pause", `{"paused_by":5}`).invalid("paused_by")
		a.post("/ojs/v1/queues/a/pause", "{\"paused_by\":\"\xff\"}").is(400)
		a.post("/ojs/v1/queues/a/pause", `[]`).is(400)
		a.put("/ojs/v1/queues/a/config", `{"concurrency":1e999}`).invalid("concurrency")
		a.put("/ojs/v1/queues/a/config", `{"default_retry":{"x":`+repeated('[', 40)+repeated(']', 40)+`}}`).invalid("default_retry")
		a.put("/ojs/v1/queues/a/config", `{"default_retry":{"x":"`+repeated('x', 70_000)+`"}}`).is(413)
	})
}

func TestQueuesProducers(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two"} })
	q, one, two := queue(), []string{"Authorization: Bearer one"}, []string{"Authorization: Bearer two"}
	body := `{"type":"t","args":[],"queue":"` + q + `"}`
	a.put("/ojs/v1/queues/"+q+"/config", `{"producers":["key:7692c3ad"]}`, one...).is(200) // SHA-256 of "one"
	a.post("/ojs/v1/jobs", body, one...).is(201)
	a.post("/ojs/v1/jobs", body, two...).is(403)
	a.post("/ojs/v1/jobs/batch", `{"jobs":[`+body+`]}`, two...).is(403)
	a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+body+`]}`, two...).is(422)
}

func TestQueuesGRPC(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	_, err := r.PauseQueue(r.ctx(), &ojsv1.PauseQueueRequest{Queue: "q"})
	require.NoError(t, err)
	stats, err := r.QueueStats(r.ctx(), &ojsv1.QueueStatsRequest{Queue: "q"})
	require.NoError(t, err)
	require.True(t, stats.GetStats().GetPaused())
	_, err = r.ResumeQueue(r.ctx(), &ojsv1.ResumeQueueRequest{Queue: "q"})
	require.NoError(t, err)
	_, err = r.PauseQueue(r.ctx(), &ojsv1.PauseQueueRequest{Queue: "Q"})
	refused(t, err, codes.InvalidArgument, "invalid_request")
}
