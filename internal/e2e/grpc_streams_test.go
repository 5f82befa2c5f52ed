package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
)

func TestGRPCStreamEvents(t *testing.T) {
	t.Parallel()

	t.Run("BothServicesShowWhatPollingShows", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		one := r.listenEvents(&ojsv1.StreamEventsRequest{})
		two := listen(t, func(ctx context.Context) (grpc.ServerStreamingClient[eventsv1.Event], error) {
			return r.events().StreamEvents(ctx, &eventsv1.StreamEventsRequest{})
		})
		id := r.push(`"type":"mail","args":[],"queue":"q","priority":7`)
		a, b := one.next(), two.next()
		polled := r.eventOf(t, id, "job.enqueued")
		require.Equal(t, polled.at("id"), a.GetId())
		require.Equal(t, "job.enqueued", a.GetType())
		require.Equal(t, id, a.GetJobId())
		require.Equal(t, id, a.GetSubject())
		require.Equal(t, "mail", a.GetJobType())
		require.Equal(t, "q", a.GetQueue())
		require.Equal(t, "ojs://ojs/api", a.GetSource())
		require.Equal(t, "1.0", a.GetSpecversion())
		require.Equal(t, polled.at("time"), a.GetTimestamp().AsTime().Format("2006-01-02T15:04:05.000Z"))
		require.InDelta(t, 7, a.GetData().GetFields()["priority"].GetNumberValue(), 0)
		require.Equal(t, a.GetId(), b.GetId())
		require.Equal(t, a.GetType(), b.GetType())
		require.Equal(t, a.GetSource(), b.GetSource())
		require.Equal(t, a.GetSubject(), b.GetSubject())
		require.Equal(t, "1.0", b.GetSpecversion())
		require.Equal(t, "application/json", b.GetDatacontenttype())
		require.Equal(t, a.GetTimestamp().AsTime(), b.GetTime().AsTime())
		require.Equal(t, a.GetData().AsMap(), b.GetData().AsMap())
	})

	t.Run("Filters", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		first := r.push(`"type":"a","args":[],"queue":"q1"`)
		r.settled(first)
		for name, c := range map[string]struct {
			in   *ojsv1.StreamEventsRequest
			want []string
		}{
			"EventTypes": {&ojsv1.StreamEventsRequest{EventTypes: []string{"job.can*", "job.dead"}}, []string{"job.cancelled"}},
			"Queues":     {&ojsv1.StreamEventsRequest{Queues: []string{"q2"}}, []string{"job.enqueued", "job.cancelled"}},
			"JobTypes":   {&ojsv1.StreamEventsRequest{JobTypes: []string{"b"}}, []string{"job.enqueued", "job.cancelled"}},
			"Sources":    {&ojsv1.StreamEventsRequest{Sources: []string{"ojs://ojs/a*"}, EventTypes: []string{"job.cancelled"}}, []string{"job.cancelled"}},
			"JobID":      {&ojsv1.StreamEventsRequest{JobId: first}, []string{"job.cancelled"}},
		} {
			t.Run(name, func(t *testing.T) {
				in := r.in(t)
				s := r.listenEvents(c.in)
				for range 2 { // what the second round brings shows that the first brought nothing else
					in.push(`"type":"c","args":[],"queue":"q3"`)
					id := in.push(`"type":"b","args":[],"queue":"q2"`)
					in.del("/ojs/v1/jobs/" + id).is(200)
					if name == "JobID" {
						continue
					}
					for _, want := range c.want {
						e := s.next()
						require.Equal(t, []string{want, id}, []string{e.GetType(), e.GetJobId()})
					}
				}
				if name == "JobID" { // its only event comes after those of all others
					in.del("/ojs/v1/jobs/" + first).is(200)
					e := s.next()
					require.Equal(t, []string{"job.cancelled", first}, []string{e.GetType(), e.GetJobId()})
				}
			})
		}
	})

	t.Run("StateFramesAreNotOffered", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenEvents(&ojsv1.StreamEventsRequest{EventTypes: []string{"job.state_changed", "job.cancelled"}})
		r.push(`"type":"t","args":[],"pending":true`)
		r.del("/ojs/v1/jobs/" + r.push(`"type":"t","args":[]`)).is(200)
		require.Equal(t, "job.cancelled", s.next().GetType())
	})

	t.Run("RefusesBadFilters", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		many := make([]string, 51)
		for name, c := range map[string]struct {
			in    *ojsv1.StreamEventsRequest
			field string
		}{
			"Pattern":    {&ojsv1.StreamEventsRequest{EventTypes: []string{"job:x"}}, "event_types"},
			"Source":     {&ojsv1.StreamEventsRequest{Sources: []string{"a*b"}}, "sources"},
			"Many":       {&ojsv1.StreamEventsRequest{Queues: many}, "queues"},
			"NUL":        {&ojsv1.StreamEventsRequest{JobTypes: []string{"a\x00"}}, "job_types"},
			"JobID":      {&ojsv1.StreamEventsRequest{JobId: "x"}, "job_id"},
			"WorkflowID": {&ojsv1.StreamEventsRequest{WorkflowId: "x"}, "workflow_id"},
			"After":      {&ojsv1.StreamEventsRequest{After: "evt_1"}, "after"},
		} {
			stream, err := r.StreamEvents(r.ctx(), c.in)
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, []string{c.field}, refused(t, err, codes.InvalidArgument, "invalid_request").violations, name)
		}
		require.Equal(t, 0, r.app.API().Streams())
	})

	t.Run("ResumesOverARestart", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenEvents(&ojsv1.StreamEventsRequest{Queues: []string{"q"}})
		want := r.pushMany(t, "q", 20)
		var got []string
		var last string
		for range 10 {
			e := s.next()
			got, last = append(got, e.GetJobId()), e.GetId()
		}
		require.NoError(t, r.app.Stop())
		again := r.anotherGRPC()
		want = append(want, again.pushMany(t, "q", 20)...)
		resumed := again.listenEvents(&ojsv1.StreamEventsRequest{Queues: []string{"q"}, After: last})
		for range 20 {
			got = append(got, resumed.next().GetJobId())
		}
		want = append(want, again.pushMany(t, "q", 5)...)
		for range 15 {
			got = append(got, resumed.next().GetJobId())
		}
		require.Equal(t, want, got)
		require.Equal(t, again.enqueue("q"), resumed.next().GetJobId(), "nothing else has come")
	})

	t.Run("ExpiredPositionIsOutOfRange", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenEvents(&ojsv1.StreamEventsRequest{})
		r.push(`"type":"t","args":[]`)
		first := s.next().GetId()
		s.cancel()
		for range 3 {
			r.settled(r.push(`"type":"t","args":[]`))
		}
		r.exec(`UPDATE ojs.event_relay SET max_count = 1`)
		stream, err := r.StreamEvents(r.ctx(), &ojsv1.StreamEventsRequest{After: first})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NotEmpty(t, refused(t, err, codes.OutOfRange, "x_cursor_expired").metadata["oldest_id"])
	})

	t.Run("SlowClientLosesNothing", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, func(c *app.Config) { c.Realtime.RateLimitPerSecond = 0 }).narrow()
		stream, err := r.StreamEvents(r.ctx(), &ojsv1.StreamEventsRequest{})
		require.NoError(t, err)
		_, err = stream.Header()
		require.NoError(t, err)
		r.overfill()
		seen := map[string]bool{}
		for range 3000 {
			e, err := stream.Recv()
			require.NoError(t, err)
			require.False(t, seen[e.GetId()])
			seen[e.GetId()] = true
		}
	})

	t.Run("BlockedClientIsDisconnected", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, func(c *app.Config) { c.Realtime.RateLimitPerSecond, c.Realtime.WriteTimeout = 0, 300*time.Millisecond }).narrow()
		stream, err := r.StreamEvents(r.ctx(), &ojsv1.StreamEventsRequest{})
		require.NoError(t, err)
		_, err = stream.Header()
		require.NoError(t, err)
		r.overfill()
		eventually(t, func() bool { return r.app.API().Streams() == 0 })
		for err == nil {
			_, err = stream.Recv()
		}
		refused(t, err, codes.Unavailable, "backend_error")
	})

	t.Run("DropReportsWhatIsLost", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, func(c *app.Config) {
			c.Realtime.RateLimitPerSecond, c.Realtime.Overflow, c.Realtime.BufferSize = 0, "drop", 500
		}).narrow()
		stream, err := r.StreamEvents(r.ctx(), &ojsv1.StreamEventsRequest{})
		require.NoError(t, err)
		_, err = stream.Header()
		require.NoError(t, err)
		r.overfill()
		last := r.push(`"type":"last","args":[]`)
		eventually(t, func() bool { return r.get("/ojs/v1/events?job_id="+last).count("events") == 1 })
		shown, dropped := 0, 0
		for {
			e, err := stream.Recv()
			require.NoError(t, err)
			if e.GetType() == "system.events_dropped" {
				dropped += int(e.GetData().GetFields()["dropped_count"].GetNumberValue())
				require.Equal(t, e.GetId(), e.GetData().GetFields()["newest_dropped_id"].GetStringValue())
				continue
			}
			if shown++; e.GetJobId() == last {
				break
			}
		}
		require.Positive(t, dropped)
		require.Equal(t, 3001, shown+dropped)
	})
}

func TestGRPCStreamJobs(t *testing.T) {
	t.Parallel()

	t.Run("RefusesWithoutQueueOrWorker", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		for field, in := range map[string]*ojsv1.StreamJobsRequest{
			"queues": {WorkerId: "w"}, "worker_id": {Queues: []string{"q"}}, "worker_id ": {Queues: []string{"q"}, WorkerId: "w\x00"},
		} {
			stream, err := r.StreamJobs(r.ctx(), in)
			require.NoError(t, err)
			_, err = stream.Recv()
			refused(t, err, codes.InvalidArgument, "invalid_payload")
			_ = field
		}
	})

	t.Run("SendsLikeFetchAndOneAtATimeByDefault", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenJobs("w", 0, "q")
		ids := r.pushMany(t, "q", 3)
		for _, id := range ids {
			job := s.next()
			require.Equal(t, id, job.GetId())
			require.Equal(t, ojsv1.JobState_JOB_STATE_ACTIVE, job.GetState())
			require.EqualValues(t, 1, job.GetAttempt())
			require.Equal(t, "w", r.job(id).at("job.worker_id"))
			_, err := r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id})
			require.NoError(t, err)
		}
		require.Equal(t, r.enqueue("q"), s.next().GetId(), "nothing else has come")
		r.oneAtATime()
	})

	t.Run("EveryEndOfAJobFreesItsSlotOnAnyNode", func(t *testing.T) {
		t.Parallel()
		one := setupGRPC(t)
		two := one.anotherGRPC()
		s := one.listenJobs("w", 1, "q")
		waiting := 0
		next := func(end func(id string)) {
			t.Helper()
			for ; waiting < 2; waiting++ {
				one.push(`"type":"t","args":[],"queue":"q","visibility_timeout_ms":600000,"retry":{"initial_interval":"PT1H"}`)
			}
			id := s.next().GetId()
			waiting--
			end(id)
		}
		for _, r := range []*rpc{one, two} {
			next(func(id string) { r.ack(id).is(200) })
			next(func(id string) { r.nack(id).is(200) })
			next(func(id string) { r.nack(id, `"error":{"retryable":false}`).is(200) })
			next(func(id string) { r.del("/ojs/v1/jobs/" + id).is(200) })
			next(func(id string) { r.nack(id, `"requeue":true`).is(200); waiting++ })
			next(func(id string) { r.leaseEnds(id); waiting++ })
		}
		s.next()
	})

	t.Run("JobThatComesBackTakesASlotAgain", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenJobs("w", 1, "q")
		id := r.push(`"type":"t","args":[],"queue":"q"`)
		for range 20 {
			require.Equal(t, id, s.next().GetId())
			r.nack(id, `"requeue":true`).is(200)
		}
		require.Equal(t, id, s.next().GetId())
		other := r.push(`"type":"t","args":[],"queue":"q"`)
		r.ack(id).is(200)
		require.Equal(t, other, s.next().GetId())
		r.oneAtATime()
	})

	t.Run("TwoStreamsOnTwoNodesShareTheJobs", func(t *testing.T) {
		t.Parallel()
		const jobs, most = 200, 5
		one := setupGRPC(t)
		two := one.anotherGRPC()
		var mu sync.Mutex
		seen := map[string]int{}
		var workers sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i, r := range []*rpc{one, two} {
			stream, err := r.StreamJobs(ctx, &ojsv1.StreamJobsRequest{Queues: []string{"q"}, WorkerId: fmt.Sprint("w", i), MaxConcurrent: most})
			require.NoError(t, err)
			_, err = stream.Header()
			require.NoError(t, err)
			other := []*rpc{two, one}[i]
			slots := make(chan struct{}, most)
			workers.Go(func() {
				for {
					job, err := stream.Recv()
					if err != nil {
						return
					}
					select {
					case slots <- struct{}{}:
					default:
						t.Error("more jobs than slots")
						return
					}
					mu.Lock()
					seen[job.GetId()]++
					mu.Unlock()
					workers.Go(func() {
						<-slots // before the ack: the next job may come with it
						if _, err := other.Ack(ctx, &ojsv1.AckRequest{JobId: job.GetId()}); err != nil && ctx.Err() == nil {
							t.Error(err)
						}
					})
				}
			})
		}
		one.pushMany(t, "q", jobs)
		eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) == jobs
		})
		eventually(t, func() bool { return one.get("/ojs/v1/queues/q/stats").at("stats.completed") == fmt.Sprint(jobs) })
		cancel()
		workers.Wait()
		for _, n := range seen {
			require.Equal(t, 1, n)
		}
	})

	t.Run("EndOfTheStreamLeavesItsJobsToTheirReservation", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenJobs("w", 3, "q")
		r.push(`"type":"t","args":[],"queue":"q","visibility_timeout_ms":600000`)
		id := s.next().GetId()
		s.cancel()
		eventually(t, func() bool { return r.app.API().Streams() == 0 })
		require.Equal(t, ojsv1.JobState_JOB_STATE_ACTIVE, r.state(id))
		r.leaseEnds(id)
		eventually(t, func() bool { return r.state(id) == ojsv1.JobState_JOB_STATE_AVAILABLE })
	})

	t.Run("JobsThatCannotBeSentGoBack", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t).narrow()
		stream, err := r.StreamJobs(r.ctx(), &ojsv1.StreamJobsRequest{Queues: []string{"q"}, WorkerId: "w", MaxConcurrent: 50})
		require.NoError(t, err)
		_, err = stream.Header()
		require.NoError(t, err)
		big := repeated('x', 60_000)
		job := fmt.Sprintf(`{"type":"t","args":["%s"],"queue":"q"}`, big)
		r.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(job+",", 50), ",")+`]}`).is(201)
		active := func() string { return r.get("/ojs/v1/queues/q/stats").at("stats.active") }
		eventually(t, func() bool { return active() == "50" }) // nobody reads
		require.NoError(t, r.conn.Close())
		eventually(t, func() bool { return r.get("/ojs/v1/queues/q/stats").at("stats.available") != "0" })
		require.Equal(t, "1", r.fetch("q").at("jobs.0.attempt"))
	})

	t.Run("QuietWorkerGetsNothing", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		_, err := r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{WorkerId: "w", CurrentState: ojsv1.WorkerState_WORKER_STATE_QUIET})
		require.NoError(t, err)
		s, others := r.listenJobs("w", 1, "q"), r.listenJobs("v", 1, "other")
		id := r.enqueue("q")
		require.Equal(t, r.enqueue("other"), others.next().GetId(), "streams that wait have been woken")
		require.Equal(t, ojsv1.JobState_JOB_STATE_AVAILABLE, r.state(id))
		_, err = r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{WorkerId: "w", CurrentState: ojsv1.WorkerState_WORKER_STATE_RUNNING})
		require.NoError(t, err)
		require.Equal(t, id, s.next().GetId())
		require.Equal(t, "true", r.one(`SELECT (j.started_at >= w.last_beat_at)::text FROM ojs.jobs j, ojs.workers w WHERE j.id = $1 AND w.id = 'w'`, id))
	})

	t.Run("RestartOfANodeLosesNothing", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		s := r.listenJobs("w", 1, "q")
		ids := r.pushMany(t, "q", 2)
		require.Equal(t, ids[0], s.next().GetId())
		require.NoError(t, r.app.Stop())
		refused(t, s.ends(), codes.Unavailable, "backend_error")
		again := r.anotherGRPC()
		resumed := again.listenJobs("w", 1, "q")
		require.Equal(t, ids[1], resumed.next().GetId())
		again.ack(ids[0]).is(200)
		again.ack(ids[1]).is(200)
	})
}
