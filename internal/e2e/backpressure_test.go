package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// bound sets the backpressure of a queue.
func (a *node) bound(queue, policy string) {
	a.t.Helper()
	a.exec(`INSERT INTO ojs.queues (name, config) VALUES ($1, $2::json) ON CONFLICT (name) DO UPDATE SET config = EXCLUDED.config`, queue, `{"backpressure":`+policy+`}`)
	require.NoError(a.t, a.app.Domains().Configured.Refresh(a.t.Context()))
}

// TestBackpressure covers docs/reference/backpressure.md.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Reject", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.bound(q, `{"max_depth":4}`)
		job := `{"type":"t","args":[],"queue":"` + q + `"}`
		for n, pressure := range []string{"", "", "", "1.00"} {
			r := a.post("/ojs/v1/jobs", job).is(201)
			require.Equal(t, pressure, r.header.Get("X-OJS-Queue-Pressure"), n)
			if pressure != "" {
				require.Equal(t, "4", r.header.Get("X-OJS-Queue-Depth"))
				require.Equal(t, "4", r.header.Get("X-OJS-Queue-Bound"))
			}
		}
		r := a.post("/ojs/v1/jobs", job).fails(429, "QUEUE_FULL", "queue_full")
		for _, at := range []string{"error.", "error.details."} {
			require.Equal(t, []string{q, "4", "4", "reject"}, []string{r.at(at + "queue"), r.at(at + "depth"), r.at(at + "bound"), r.at(at + "strategy")})
		}
		require.Equal(t, []string{"5", "4", "4"}, []string{r.header.Get("Retry-After"), r.header.Get("X-OJS-Queue-Depth"), r.header.Get("X-OJS-Queue-Bound")})
		require.Equal(t, "Queue '"+q+"' reached its bound of 4 jobs.", r.at("error.message"))
		require.Equal(t, "true", r.at("error.retryable"))

		a.fetch(q)
		r = a.post("/ojs/v1/jobs/batch", `{"jobs":[`+job+`,`+job+`]}`).fails(429, "QUEUE_FULL", "queue_full")
		require.Equal(t, []string{"1", "3"}, []string{r.at("error.details.index"), r.at("error.depth")})
		a.post("/ojs/v1/jobs/batch", `{"jobs":[`+job+`,`+job+`]}`, "Idempotency-Key: "+newID()).fails(429, "QUEUE_FULL", "queue_full")
		bulk := a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+job+`,`+job+`]}`).is(207)
		require.Equal(t, []string{"created", "failed"}, bulk.list("items", "status"))
		require.Equal(t, "QUEUE_FULL", bulk.at("items.1.error.code"))
		a.post("/ojs/v1/jobs", job, "Idempotency-Key: "+newID()).fails(429, "QUEUE_FULL", "queue_full")
		require.Equal(t, "4", a.one(`SELECT ojs.queue_depth($1)::text`, q))
	})

	t.Run("Block", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.bound(q, `{"max_depth":1,"strategy":"block"}`)
		job := `{"type":"t","args":[],"queue":"` + q + `"}`
		a.post("/ojs/v1/jobs", job).is(201)
		a.post("/ojs/v1/jobs", job).fails(429, "QUEUE_FULL", "queue_full")
		for _, wrong := range []string{"-1", "x", "1.5"} {
			a.post("/ojs/v1/jobs", job, "OJS-Block-Timeout: "+wrong).fails(400, "invalid_request", "invalid_request")
		}
		for _, send := range []func() reply{
			func() reply { return a.post("/ojs/v1/jobs", job, "OJS-Block-Timeout: 60") },
			func() reply {
				return a.post("/ojs/v1/jobs", job, "OJS-Block-Timeout: 99999999999", "Idempotency-Key: "+newID())
			},
			func() reply { return a.post("/ojs/v1/jobs/batch", `{"jobs":[`+job+`]}`, "OJS-Block-Timeout: 60") },
			func() reply { return a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+job+`]}`, "OJS-Block-Timeout: 60") },
			func() reply {
				return a.post("/ojs/v1/workflows", `{"type":"chain","options":{"queue":"`+q+`"},"steps":[{"type":"t","args":[]},{"type":"t","args":[]}]}`, "OJS-Block-Timeout: 60")
			},
		} {
			a.fetch(q, `"count":10`)
			a.post("/ojs/v1/jobs", job).is(201)
			got := make(chan reply, 1)
			go func() { got <- send() }()
			for answered := false; !answered; {
				a.fetch(q)
				select {
				case r := <-got:
					r.is(201)
					answered = true
				default:
				}
			}
		}
	})

	t.Run("DropOldest", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.bound(q, `{"max_depth":2,"strategy":"drop_oldest"}`)
		ids := []string{}
		for range 3 {
			ids = append(ids, a.push(`"type":"t","args":[],"queue":"%s"`, q))
		}
		dropped := a.job(ids[0])
		require.Equal(t, []string{"discarded", "overflow"}, []string{dropped.at("job.state"), dropped.at("job.error.code")})
		require.False(t, dropped.has("job.completed_at"))
		require.Equal(t, ids[1:], a.fetch(q, `"count":5`).list("jobs", "id"))
	})

	t.Run("Workflows", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.bound(q, `{"max_depth":2}`)
		group := func(n int) string {
			jobs := ""
			for range n {
				jobs += `,{"type":"t","args":[]}`
			}
			return fmt.Sprintf(`{"type":"group","options":{"queue":"%s"},"jobs":[%s]}`, q, jobs[1:])
		}
		r := a.post("/ojs/v1/workflows", group(3)).fails(429, "QUEUE_FULL", "queue_full")
		require.True(t, r.has("error.details.step_id"))
		require.Equal(t, "0", a.one(`SELECT count(*)::text FROM ojs.jobs WHERE queue = $1`, q))
		a.post("/ojs/v1/workflows", fmt.Sprintf(`{"type":"chain","options":{"queue":"%s"},"steps":[{"type":"t","args":[]},{"type":"t","args":[]}]}`, q)).is(201)
		first := a.fetch(q).at("jobs.0.id")
		a.pushMany(t, q, 2)
		a.ack(first).is(200)
		require.Equal(t, "3", a.one(`SELECT ojs.queue_depth($1)::text`, q), "later steps pass the bound")
	})

	t.Run("AWorkflowGoesOnAfterItsJobWasDropped", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.post("/ojs/v1/workflows", fmt.Sprintf(`{"type":"chain","options":{"queue":"%s"},"steps":[{"type":"t","args":[]},{"type":"t","args":[]}]}`, q)).is(201).at("id")
		a.bound(q, `{"max_depth":1,"strategy":"drop_oldest"}`)
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, "failed", a.get("/ojs/v1/workflows/"+id).is(200).at("state"))
	})
	t.Run("Crons", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.bound(q, `{"max_depth":1}`)
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.post("/ojs/v1/cron", `{"name":"`+q+`","expression":"@daily","type":"t","options":{"queue":"`+q+`"}}`).is(201)
		a.post("/ojs/v1/cron/"+q+"/trigger", "").fails(429, "QUEUE_FULL", "queue_full")
		a.exec(`UPDATE ojs.crons SET next_run_at = now() - interval '1 second' WHERE name = $1`, q)
		a.wake()
		eventually(t, func() bool {
			return a.one(`SELECT count(*)::text FROM ojs.events WHERE type = 'cron.skipped' AND subject = $1 AND data ->> 'reason' = 'enqueue_failed'`, q) == "1"
		})
		eventually(t, func() bool { return a.scrape().values("ojs_backpressure_rejected_total")["queue="+q] == 2 })
	})

	t.Run("Metrics", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.bound(q, `{"max_depth":1}`)
		job := `{"type":"t","args":[],"queue":"` + q + `"}`
		a.post("/ojs/v1/jobs", job).is(201)
		a.post("/ojs/v1/jobs", job).is(429)
		a.bound(q, `{"max_depth":1,"strategy":"drop_oldest"}`)
		a.post("/ojs/v1/jobs", job).is(201)
		s := a.scrape()
		require.EqualValues(t, 1, s.values("ojs_backpressure_rejected_total")["queue="+q])
		require.EqualValues(t, 1, s.values("ojs_backpressure_dropped_total")["queue="+q])
		require.EqualValues(t, 2, s.values("ojs_queue_overflow_count_total")["queue="+q])
	})
}

func TestBackpressureOverGRPC(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	r.bound("q", `{"max_depth":1,"strategy":"block"}`)
	options := &ojsv1.EnqueueOptions{Queue: "q"}
	_, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Options: options})
	require.NoError(t, err)
	for _, wait := range []string{"0", "1"} {
		_, err = r.Enqueue(r.ctx("x-ojs-block-timeout", wait), &ojsv1.EnqueueRequest{Type: "t", Options: options})
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
	}
	_, err = r.Enqueue(r.ctx("x-ojs-block-timeout", "x"), &ojsv1.EnqueueRequest{Type: "t", Options: options})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	done := make(chan error, 1)
	go func() {
		_, err := r.EnqueueBatch(r.ctx("x-ojs-block-timeout", "60", "x-ojs-idempotency-key", newID()), &ojsv1.EnqueueBatchRequest{
			Jobs: []*ojsv1.BatchJobEntry{{Type: "t", Options: options}}})
		done <- err
	}()
	for answered := false; !answered; {
		r.fetch("q")
		select {
		case err := <-done:
			require.NoError(t, err)
			answered = true
		default:
		}
	}
}
