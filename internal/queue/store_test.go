package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/worker"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func (b *bundle) enqueued(jobs ...*job.Job) []*job.Record {
	b.T.Helper()
	stored, errs := b.EnqueueEach(b.T.Context(), jobs)
	require.Nil(b.T, errs)
	return stored
}

func (b *bundle) fetched(count int, queues ...string) []*job.Record {
	b.T.Helper()
	jobs, err := b.Fetch(b.T.Context(), queue.Fetch{Queues: queues, Count: count, WorkerID: "w1"})
	require.NoError(b.T, err)
	return jobs
}

func (b *bundle) state(id [16]byte) ojs.JobState {
	b.T.Helper()
	job, err := b.Get(b.T.Context(), id)
	require.NoError(b.T, err)
	return ojs.JobState(job.State)
}

// exec runs SQL of the test's own.
func (b *bundle) exec(sql string, args ...any) {
	b.T.Helper()
	_, err := b.Pool.Exec(context.Background(), sql, args...)
	require.NoError(b.T, err)
}

func (b *bundle) eventTypes(id [16]byte) (types []string) {
	b.T.Helper()
	rows, err := b.Pool.Query(b.T.Context(), `SELECT type || COALESCE(':' || from_state, '') || COALESCE('>' || to_state, '') FROM ojs.events WHERE job_id = $1 ORDER BY seq, sub`, id)
	require.NoError(b.T, err)
	for rows.Next() {
		var s string
		require.NoError(b.T, rows.Scan(&s))
		types = append(types, s)
	}
	require.NoError(b.T, rows.Err())
	return types
}

func TestLifecycle(t *testing.T) {
	t.Parallel()

	t.Run("EnqueueFetchComplete", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.Enqueued(domaintest.NewJob("q"))[0]
		require.Equal(t, "available", job.State)

		got := b.Fetched(5, "other", "q")
		require.Len(t, got, 1)
		require.Equal(t, job.ID, got[0].ID)
		require.Equal(t, int32(1), got[0].Attempt)
		require.Equal(t, "w1", got[0].WorkerID.String)
		require.Empty(t, b.Fetched(5, "q"))

		done, err := b.Complete(t.Context(), queue.Ack{JobID: job.ID, Attempt: -1, Result: []byte(`{"n":1.0}`)})
		require.NoError(t, err)
		require.Equal(t, "completed", done.State)
		require.Equal(t, `{"n":1.0}`, string(done.Result))
		require.Equal(t, ojs.StateCompleted, b.State(job.ID))
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.completed:active>completed"}, b.EventTypes(job.ID))

		_, err = b.Complete(t.Context(), queue.Ack{JobID: job.ID, Attempt: -1})
		domaintest.RequireCode(t, err, ojs.KindInvalidStateTransition)
		_, err = b.Complete(t.Context(), queue.Ack{JobID: job.NewID(), Attempt: -1})
		domaintest.RequireCode(t, err, ojs.KindNotFound)
	})

	t.Run("NackRetriesThenDiscards", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.MaxAttempts = 2
		job := b.Enqueued(in)[0]
		b.Fetched(1, "q")
		nack := queue.Nack{JobID: job.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{"code":"handler_error","message":"no"}`)}
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
		}, b.EventTypes(job.ID))
	})

	t.Run("RequeueGivesTheAttemptBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		back, err := b.Fail(t.Context(), queue.Nack{JobID: job.ID, Attempt: 1, WorkerID: "w1", Requeue: true})
		require.NoError(t, err)
		require.Equal(t, "available", back.State)
		require.Zero(t, back.Attempt)
		require.Nil(t, back.Error)
		require.Empty(t, back.Errors)
		require.Len(t, b.Fetched(1, "q"), 1)
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
			job, err := b.Cancel(t.Context(), jobs[i].ID, queue.Cancel{By: "test", Reason: "x"})
			require.NoError(t, err)
			require.Equal(t, "cancelled", job.State)
			require.Equal(t, was, job.PreviousState.String)
			_, err = b.Cancel(t.Context(), jobs[i].ID, queue.Cancel{By: "test"})
			domaintest.RequireCode(t, err, ojs.KindInvalidStateTransition)
		}
		late, err := b.Complete(t.Context(), queue.Ack{JobID: jobs[3].ID, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
		require.Equal(t, "cancelled", late.State)
		_, err = b.Complete(t.Context(), queue.Ack{JobID: jobs[3].ID, WorkerID: "w2", Attempt: -1})
		domaintest.RequireCode(t, err, ojs.KindInvalidStateTransition)
		_, err = b.Complete(t.Context(), queue.Ack{JobID: jobs[0].ID, Attempt: -1})
		domaintest.RequireCode(t, err, ojs.KindInvalidStateTransition)
	})

	t.Run("RefusesOthersAndOldAttempts", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		_, err := b.Complete(t.Context(), queue.Ack{JobID: job.ID, WorkerID: "w2", Attempt: -1})
		domaintest.RequireCode(t, err, ojs.KindNotOwner)
		_, err = b.Complete(t.Context(), queue.Ack{JobID: job.ID, WorkerID: "w1", Attempt: 2})
		domaintest.RequireCode(t, err, ojs.KindStaleAttempt)
		_, err = b.Fail(t.Context(), queue.Nack{JobID: job.ID, WorkerID: "w2", Attempt: -1, Requeue: true})
		domaintest.RequireCode(t, err, ojs.KindNotOwner)
		require.Equal(t, ojs.StateActive, b.State(job.ID))
	})

	t.Run("ActivatePending", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.Pending = true
		job := b.Enqueued(in)[0]
		require.Empty(t, b.Fetched(1, "q"))
		job, err := b.Activate(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "available", job.State)
		require.Len(t, b.Fetched(1, "q"), 1)
		_, err = b.Activate(t.Context(), job.ID)
		domaintest.RequireCode(t, err, ojs.KindInvalidStateTransition)
	})

	t.Run("ExpiredIsNeverDelivered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.ExpiresAt = job.When{Set: true, At: time.Now().Add(-time.Hour)}
		job := b.Enqueued(in)[0]
		require.Empty(t, b.Fetched(1, "q"))
		_, err := b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		got, err := b.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "discarded", got.State)
		require.False(t, got.Failed)
		require.Contains(t, string(got.Error), `"code":"expired"`)
		require.Equal(t, []string{"job.enqueued>available", "job.expired:available>discarded"}, b.EventTypes(job.ID))
	})

	t.Run("LostLeaseGoesBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		found, failed, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Zero(t, found+failed)
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), lease_until = now()`)
		_, failed, err = b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		got, err := b.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "available", got.State)
		require.Equal(t, int32(1), got.Attempt)
		require.Len(t, got.Errors, 1)
		require.Contains(t, string(got.Error), "visibility_timeout")
		require.Len(t, b.Fetched(1, "q"), 1)
		require.Equal(t, []string{
			"job.enqueued>available", "job.started:available>active", "job.failed", "job.state_changed:active>available", "job.started:available>active",
		}, b.EventTypes(job.ID))
	})

	t.Run("ExecutionTimeoutRetries", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := domaintest.NewJob("q")
		in.TimeoutMS = 1000
		job := b.Enqueued(in)[0]
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), started_at = started_at - interval '2 s'`)
		_, failed, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		got, err := b.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "retryable", got.State)
		require.Contains(t, string(got.Error), `"timeout_kind":"execution"`)
	})

	t.Run("HeartbeatExtendsWhatIsHeld", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
		b.Fetched(2, "q")
		_, err := b.Cancel(t.Context(), jobs[1].ID, queue.Cancel{By: "x"})
		require.NoError(t, err)
		unknown := job.NewID()
		res, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w1", JobIDs: [][16]byte{jobs[0].ID, jobs[1].ID, jobs[2].ID, unknown}})
		require.NoError(t, err)
		require.Equal(t, "running", res.State)
		require.Equal(t, [][16]byte{jobs[0].ID}, res.Extended)
		require.Equal(t, [][16]byte{jobs[1].ID}, res.Cancelled)
		require.Equal(t, [][16]byte{jobs[2].ID, unknown}, res.Lost)
		res, err = b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w2", State: "quiet", JobIDs: [][16]byte{jobs[0].ID}})
		require.NoError(t, err)
		require.Equal(t, "quiet", res.State)
		require.Empty(t, res.Extended)
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
		domaintest.RequireCode(t, err, ojs.KindDuplicateJob)

		_, at, err := b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("z"), again})
		domaintest.RequireCode(t, err, ojs.KindDuplicateJob)
		require.Equal(t, 1, at)
		require.Empty(t, b.Fetched(1, "z"), "nothing of a refused batch is stored")

		stored, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.NewJob("y"), again, domaintest.NewJob("y")})
		domaintest.RequireCode(t, errs[1], ojs.KindDuplicateJob)
		require.NotNil(t, stored[0])
		require.NotNil(t, stored[2])

		if got := b.Fetched(1, "q"); len(got) == 1 {
			_, err = b.Complete(t.Context(), queue.Ack{JobID: in.ID, Attempt: -1})
			require.NoError(t, err)
		}
	}
}
