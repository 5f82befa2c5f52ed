package queueadmin_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/ojs"
)

func TestPause(t *testing.T) {
	t.Parallel()

	t.Run("HoldsAtOnceOnEveryNode", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.Node()
		b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		require.Len(t, other.Fetched(1, "q"), 1)
		status, err := b.Queues.Pause(t.Context(), "q", "alice")
		require.NoError(t, err)
		require.Equal(t, "paused", status.Status)
		require.Empty(t, other.Fetched(1, "q"), "before it has been notified")
		require.NoError(t, other.Configured.Refresh(t.Context())) // what a notification does
		other.QueueChanged("q")
		require.WithinDuration(t, time.Now(), status.PausedAt, time.Minute)
		require.Empty(t, other.Fetched(1, "q"))
		require.Empty(t, b.Fetched(1, "q"))
		require.Equal(t, ojs.StateAvailable, b.State(b.Enqueued(domaintest.NewJob("q"))[0].ID), "a paused queue takes jobs")

		again, err := b.Queues.Pause(t.Context(), "q", "bob")
		require.NoError(t, err)
		require.Equal(t, status.PausedAt, again.PausedAt)

		_, err = b.Queues.Resume(t.Context(), "q", "bob")
		require.NoError(t, err)
		_, err = b.Queues.Resume(t.Context(), "q", "bob")
		require.NoError(t, err)
		require.NoError(t, other.Configured.Refresh(t.Context()))
		other.QueueChanged("q")
		require.Len(t, other.Fetched(1, "q"), 1)
		require.Len(t, b.Fetched(1, "q"), 1)
		require.Equal(t, []string{`queue.paused {"queue":"q","paused_by":"alice"}`, `queue.resumed {"queue":"q","resumed_by":"bob"}`}, b.events("q"))
		require.Empty(t, b.Texts(`SELECT queue FROM ojs.events WHERE subject = 'q' AND queue IS DISTINCT FROM 'q'`))
	})

	t.Run("RefusesAQueueThatIsBeingDeleted", func(t *testing.T) {
		t.Parallel()
		for _, paused := range []bool{false, true} {
			b := setup(t)
			b.Enqueued(domaintest.NewJob("q"))
			running := b.Fetched(1, "q")[0]
			if paused {
				_, err := b.Queues.Pause(t.Context(), "q", "a")
				require.NoError(t, err)
			}
			// Of a deletion that has just begun.
			b.Exec(`UPDATE ojs.queues SET status = CASE status WHEN 'paused' THEN status ELSE 'draining' END,
				deletion = '{"strategy":"discard","previous":"active","began":"2026-01-01T00:00:00Z"}' WHERE name = 'q'`)
			require.NoError(t, b.Configured.Refresh(t.Context()))
			before, events := b.status("q"), b.events("q")
			_, err := b.Queues.Pause(t.Context(), "q", "a")
			requireKind(t, ojs.ErrInvalidStateTransition, err)
			require.ErrorContains(t, err, "is being deleted")
			_, err = b.Queues.Drain(t.Context(), "q", "a")
			requireKind(t, ojs.ErrInvalidStateTransition, err)
			require.Equal(t, before, b.status("q"))
			require.Equal(t, events, b.events("q"))

			_, err = b.Complete(t.Context(), job.Ack{JobID: running.ID, WorkerID: "w1", Attempt: 1})
			require.NoError(t, err)
			require.NoError(t, b.Queues.Finish(t.Context()))
			require.Empty(t, b.status("q"), "the deletion has gone on")
		}
	})

	t.Run("WakesParkedFetches", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		_, err := b.Queues.Pause(t.Context(), "q", "a")
		require.NoError(t, err)
		b.Enqueued(domaintest.NewJob("q"))
		got := make(chan int, 1)
		go func() {
			jobs, _ := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", Wait: domaintest.WaitFor})
			got <- len(jobs)
		}()
		_, err = b.Queues.Resume(t.Context(), "q", "a")
		require.NoError(t, err)
		require.Equal(t, 1, <-got)
	})

	t.Run("CreatesAnUnknownQueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t, extended)
		_, err := b.Queues.Pause(t.Context(), "new", "a")
		require.NoError(t, err)
		_, err = b.Queues.Resume(t.Context(), "other", "a")
		require.NoError(t, err)
		require.Equal(t, []string{`queue.created {"queue":"new"}`, `queue.paused {"queue":"new","paused_by":"a"}`}, b.events("new"))
		require.Equal(t, []string{`queue.created {"queue":"other"}`}, b.events("other"))
	})

	t.Run("ManyAtOnceMakeOneEvent", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		nodes := []*domaintest.Bundle{b.Bundle, b.Node(), b.Node()}
		var calls sync.WaitGroup
		for i := range 12 {
			calls.Go(func() {
				_, err := nodes[i%3].Queues.Pause(t.Context(), "q", "a")
				require.NoError(t, err)
			})
		}
		calls.Wait()
		require.Len(t, b.events("q"), 1)
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("RefusesNewJobsAndGivesOldOnes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		require.Len(t, b.Fetched(1, "q"), 1)
		status, err := b.Queues.Drain(t.Context(), "q", "a")
		require.NoError(t, err)
		require.EqualValues(t, 2, status.Remaining)
		_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
		wire := wireError(t, ojs.ErrQueuePaused, err)
		require.Equal(t, "draining", wire.Details["status"])
		require.Len(t, b.Fetched(5, "q"), 1)

		_, at, err := b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("other"), domaintest.NewJob("q")})
		requireKind(t, ojs.ErrQueuePaused, err)
		require.Equal(t, 1, at)
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'other'`), "nothing of an atomic call is stored")
		stored, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.NewJob("other"), domaintest.NewJob("q")})
		require.NotNil(t, stored[0])
		require.NoError(t, errs[0])
		requireKind(t, ojs.ErrQueuePaused, errs[1])
		_, err = b.Pool.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q')`)
		require.ErrorContains(t, err, "draining")

		_, err = b.Queues.Resume(t.Context(), "q", "a")
		require.NoError(t, err)
		_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
		require.NoError(t, err)
	})

	t.Run("NoJobSlipsIn", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.Node()
		other.Queues.SetSettled(0, 0)
		b.Queues.SetSettled(4*time.Second, 0) // 3 s more than the other node may take to learn of it, for calls that are slow
		stop := make(chan struct{})
		var producers sync.WaitGroup
		var refused atomic.Int64
		for range 4 {
			producers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if _, err := other.Enqueue(t.Context(), domaintest.NewJob("q")); err != nil {
							refused.Add(1)
						}
					}
				}
			})
		}
		require.Eventually(t, func() bool { return b.Number(`SELECT count(*) FROM ojs.jobs`) > 20 }, domaintest.WaitFor, time.Millisecond)
		status, err := b.Queues.Drain(t.Context(), "q", "a")
		require.NoError(t, err)
		before := b.Number(`SELECT count(*) FROM ojs.jobs`)
		require.EqualValues(t, before, status.Remaining)
		since := refused.Load()
		require.Eventually(t, func() bool { return refused.Load() > since+100 }, domaintest.WaitFor, time.Millisecond)
		close(stop)
		producers.Wait()
		require.Equal(t, before, b.Number(`SELECT count(*) FROM ojs.jobs`))
	})

	t.Run("WaitsForOpenTransactions", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', '{"notify":false}')`)
		require.NoError(t, err)
		done := make(chan queueadmin.Status, 1)
		go func() {
			status, _ := b.Queues.Drain(t.Context(), "q", "a")
			done <- status
		}()
		require.Eventually(t, func() bool { return b.status("q") == "draining" }, domaintest.WaitFor, time.Millisecond)
		require.NoError(t, tx.Commit(t.Context()))
		require.EqualValues(t, 1, (<-done).Remaining)
	})

	t.Run("OfAPausedQueueResumesFetches", func(t *testing.T) {
		t.Parallel()
		for extension, b := range map[bool]*bundle{false: setup(t), true: setup(t, extended)} {
			b.Enqueued(domaintest.NewJob("q"))
			for _, change := range []func(context.Context, string, string) (queueadmin.Status, error){
				b.Queues.Drain, b.Queues.Pause, b.Queues.Drain, b.Queues.Resume, b.Queues.Drain,
			} {
				_, err := change(t.Context(), "q", "a")
				require.NoError(t, err)
			}
			require.Len(t, b.Fetched(1, "q"), 1)
			want := []string{
				`queue.draining {"queue":"q","drained_by":"a"}`,
				`queue.paused {"queue":"q","paused_by":"a"}`, `queue.accepting {"queue":"q","accepted_by":"a"}`,
				`queue.resumed {"queue":"q","resumed_by":"a"}`, `queue.draining {"queue":"q","drained_by":"a"}`,
				`queue.accepting {"queue":"q","accepted_by":"a"}`,
				`queue.draining {"queue":"q","drained_by":"a"}`,
			}
			if !extension {
				want = []string{want[1], want[3]}
			}
			require.Equal(t, want, b.events("q"))
		}
	})
}

// Of two calls at once the later one finds what the earlier one has stored, and reports no change that was none.
func TestStatusOfTwoCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, extended)
	b.Enqueued(domaintest.NewJob("q"))
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })                                                          // or the pool would wait for it when the test fails
	_, err = tx.Exec(t.Context(), `UPDATE ojs.queues SET status = 'paused', paused_at = '2026-01-01Z' WHERE name = 'q'`) // as the other call does
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := b.Queues.Pause(context.Background(), "q", "a")
		done <- err
	}()
	require.Eventually(t, func() bool {
		return len(done) > 0 || b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, domaintest.WaitFor, time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, domaintest.Await(t, done))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'queue.paused'`))
	require.Equal(t, "2026-01-01 00:00:00+00", b.One(`SELECT (paused_at AT TIME ZONE 'UTC')::text || '+00' FROM ojs.queues WHERE name = 'q'`))
}
