package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

func TestLifecycle(t *testing.T) {
	t.Parallel()

	t.Run("EnqueueFetchComplete", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		require.Equal(t, "available", j.State)

		got := b.Fetched(5, "other", "q")
		require.Len(t, got, 1)
		require.Equal(t, j.ID, got[0].ID)
		require.Equal(t, int32(1), got[0].Attempt)
		require.Equal(t, "w1", got[0].WorkerID.String)
		require.Empty(t, b.Fetched(5, "q"))

		done, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: -1, Result: []byte(`{"n":1.0}`)})
		require.NoError(t, err)
		require.Equal(t, "completed", done.State)
		require.Equal(t, `{"n":1.0}`, string(done.Result))
		require.Equal(t, ojs.StateCompleted, b.State(j.ID))
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.completed:active>completed"}, b.EventTypes(j.ID))

		_, err = b.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: -1})
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		_, err = b.Complete(t.Context(), job.Ack{JobID: job.NewID(), Attempt: -1})
		domaintest.RequireCode(t, err, ojs.ErrNotFound)
	})

	t.Run("NackRetriesThenDiscards", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.MaxAttempts = 2
		j := b.Enqueued(in)[0]
		b.Fetched(1, "q")
		nack := job.Nack{JobID: j.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{"code":"handler_error","message":"no"}`)}
		failed, err := b.Fail(t.Context(), nack)
		require.NoError(t, err)
		require.Equal(t, "retryable", failed.State)
		require.True(t, failed.NextAttemptAt.Valid)
		require.Contains(t, string(failed.Error), `"occurred_at":"`)

		b.Exec(`UPDATE ojs.jobs SET due_at = now(), next_attempt_at = now()`)
		moved, err := b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, moved)
		got := b.Fetched(1, "q")
		require.Len(t, got, 1)
		require.Equal(t, int32(2), got[0].Attempt)
		failed, err = b.Fail(t.Context(), nack)
		require.NoError(t, err)
		require.Equal(t, "discarded", failed.State)
		require.Len(t, failed.Errors, 2)
		require.Equal(t, []string{
			"job.enqueued>available", "job.started:available>active", "job.failed", "job.retrying:active>retryable",
			"job.state_changed:retryable>available", "job.started:available>active", "job.failed", "job.discarded:active>discarded",
		}, b.EventTypes(j.ID))
	})

	t.Run("RequeueDoesNotCountTheAttempt", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		back, err := b.Fail(t.Context(), job.Nack{JobID: j.ID, Attempt: 1, WorkerID: "w1", Requeue: true})
		require.NoError(t, err)
		require.Equal(t, "available", back.State)
		require.Zero(t, back.Attempt)
		require.Nil(t, back.Error)
		require.Empty(t, back.Errors)
		require.Len(t, b.Fetched(1, "q"), 1)
	})

	t.Run("RequeueWithADelay", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		back, err := b.Fail(t.Context(), job.Nack{JobID: j.ID, Attempt: 1, WorkerID: "w1", Requeue: true, Delay: time.Hour})
		require.NoError(t, err)
		require.Equal(t, "scheduled", back.State)
		require.Zero(t, back.Attempt)
		require.Empty(t, b.Fetched(1, "q"))
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.state_changed:active>scheduled"}, b.EventTypes(j.ID))
	})

	t.Run("CancelFromEveryLiveState", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		pending, scheduled := domaintest.NewJob("p"), domaintest.NewJob("s")
		pending.Pending = true
		scheduled.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour}
		jobs := b.Enqueued(domaintest.NewJob("q"), pending, scheduled, domaintest.NewJob("a"))
		b.Fetched(1, "a")
		for i, was := range []string{"available", "pending", "scheduled", "active"} {
			j, err := b.Cancel(t.Context(), jobs[i].ID, queue.Cancel{By: "test", Reason: "x"})
			require.NoError(t, err)
			require.Equal(t, "cancelled", j.State)
			require.Equal(t, was, j.PreviousState.String)
			_, err = b.Cancel(t.Context(), jobs[i].ID, queue.Cancel{By: "test"})
			domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		}
		late, err := b.Complete(t.Context(), job.Ack{JobID: jobs[3].ID, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
		require.Equal(t, "cancelled", late.State)
		_, err = b.Complete(t.Context(), job.Ack{JobID: jobs[3].ID, WorkerID: "w2", Attempt: -1})
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		_, err = b.Complete(t.Context(), job.Ack{JobID: jobs[0].ID, Attempt: -1})
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
	})

	t.Run("ADiscardedJobIsNotCancelled", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.DeadLetter().ID
		_, err := b.Cancel(t.Context(), id, queue.Cancel{By: "test"})
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		require.Equal(t, ojs.StateDiscarded, b.State(id))
	})

	t.Run("RefusesOtherWorkersAndStaleAttempts", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		_, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: "w2", Attempt: -1})
		domaintest.RequireCode(t, err, ojs.ErrNotOwner)
		for _, stale := range []int32{0, 2} {
			_, err = b.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: stale})
			domaintest.RequireCode(t, err, ojs.ErrStaleAttempt)
			_, err = b.Fail(t.Context(), job.Nack{JobID: j.ID, WorkerID: "w1", Attempt: stale, Error: job.WorkerError{Code: "x", Type: "x", Message: "x", Retryable: true}})
			domaintest.RequireCode(t, err, ojs.ErrStaleAttempt)
			_, err = b.Fail(t.Context(), job.Nack{JobID: j.ID, WorkerID: "w1", Attempt: stale, Requeue: true})
			domaintest.RequireCode(t, err, ojs.ErrStaleAttempt)
		}
		_, err = b.Fail(t.Context(), job.Nack{JobID: j.ID, WorkerID: "w2", Attempt: -1, Requeue: true})
		domaintest.RequireCode(t, err, ojs.ErrNotOwner)
		require.Equal(t, ojs.StateActive, b.State(j.ID))
	})

	t.Run("ActivatePending", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.Pending = true
		in.ExpiresAt = job.When{Set: true, Relative: true, In: time.Hour}
		in.TotalTimeoutMS = 7_200_000
		j := b.Enqueued(in)[0]
		require.Empty(t, b.Fetched(1, "q"))
		j, err := b.Activate(t.Context(), j.ID)
		require.NoError(t, err)
		require.Equal(t, "available", j.State)
		require.Equal(t, j.ExpiresAt, j.DueAt)
		require.Len(t, b.Fetched(1, "q"), 1)
		_, err = b.Activate(t.Context(), j.ID)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
	})

	// The second call finds the job as the first one has left it, even if a worker has it by then.
	t.Run("ActivateTwiceAtOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.Pending = true }))[0].ID
		tx := b.Lock(id)
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := b.Activate(t.Context(), id)
				done <- err
			}()
		}
		require.Eventually(t, func() bool {
			return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 2
		}, domaintest.WaitFor, time.Millisecond)
		require.NoError(t, tx.Rollback(t.Context()))
		first, second := domaintest.Await(t, done), domaintest.Await(t, done)
		if first != nil {
			first, second = second, first
		}
		require.NoError(t, first)
		domaintest.RequireCode(t, second, ojs.ErrInvalidStateTransition)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.events WHERE job_id = $1 AND type = 'job.enqueued'`, id))
	})

	t.Run("ExpiredJobsAreNotDelivered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.ExpiresAt = job.When{Set: true, At: time.Now().Add(-time.Hour)}
		j := b.Enqueued(in)[0]
		require.Empty(t, b.Fetched(1, "q"))
		_, err := b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		got, err := b.Get(t.Context(), j.ID)
		require.NoError(t, err)
		require.Equal(t, "discarded", got.State)
		require.False(t, got.Failed)
		require.Contains(t, string(got.Error), `"code":"expired"`)
		require.Equal(t, []string{"job.enqueued>available", "job.expired:available>discarded"}, b.EventTypes(j.ID))
		require.Equal(t, "0", b.One(`SELECT data ->> 'ttl_ms' FROM ojs.events WHERE type = 'job.expired'`), "it had expired before it came")
	})

	// A retry is promoted when it is due, not before: due_at and next_attempt_at are one time.
	t.Run("RetryIsDueWhenItIsAnnounced", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := domaintest.NewJob("q")
		j.Retry = []byte(`{"initial_interval":"PT1H","jitter":false}`)
		id := b.Enqueued(j)[0].ID
		b.Fetched(1, "q")
		_, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: 1, Error: domaintest.DecodeError(t, `{"code":"x","message":"no"}`)})
		require.NoError(t, err)
		require.Equal(t, "true", b.One(`SELECT (due_at = next_attempt_at AND due_at > now() + interval '50 minutes')::text FROM ojs.jobs WHERE id = $1`, id))
	})

	t.Run("LostLeaseMakesTheJobAvailable", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		found, failed, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Zero(t, found+failed)
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), lease_until = now()`)
		_, failed, err = b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		got, err := b.Get(t.Context(), j.ID)
		require.NoError(t, err)
		require.Equal(t, "available", got.State)
		require.Equal(t, int32(1), got.Attempt)
		require.Len(t, got.Errors, 1)
		require.Contains(t, string(got.Error), "visibility_timeout")
		require.Len(t, b.Fetched(1, "q"), 1)
		require.Equal(t, []string{
			"job.enqueued>available", "job.started:available>active", "job.failed", "job.state_changed:active>available", "job.started:available>active",
		}, b.EventTypes(j.ID))
	})

	t.Run("ExecutionTimeoutRetries", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.TimeoutMS = 1000
		j := b.Enqueued(in)[0]
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), started_at = started_at - interval '2 s'`)
		_, failed, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		got, err := b.Get(t.Context(), j.ID)
		require.NoError(t, err)
		require.Equal(t, "retryable", got.State)
		require.Contains(t, string(got.Error), `"timeout_kind":"execution"`)
	})
}

func TestClientIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := domaintest.NewJob("q")
	in.ID, in.ClientID = job.NewID(), true
	_, err := b.Enqueue(t.Context(), in)
	require.NoError(t, err)
	for range 2 { // live, then finished
		again := domaintest.NewJob("z")
		again.ID, again.ClientID = in.ID, true
		_, err = b.Enqueue(t.Context(), again)
		domaintest.RequireCode(t, err, ojs.ErrDuplicateJob)

		_, at, err := b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("z"), again})
		domaintest.RequireCode(t, err, ojs.ErrDuplicateJob)
		require.Equal(t, 1, at)
		require.Empty(t, b.Fetched(1, "z"), "nothing of a refused batch is stored")

		stored, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.NewJob("y"), again, domaintest.NewJob("y")})
		domaintest.RequireCode(t, errs[1], ojs.ErrDuplicateJob)
		require.NotNil(t, stored[0])
		require.NotNil(t, stored[2])

		if got := b.Fetched(1, "q"); len(got) == 1 {
			_, err = b.Complete(t.Context(), job.Ack{JobID: in.ID, Attempt: -1})
			require.NoError(t, err)
		}
	}
}
