package store_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// bundle is a store on a database of the test's own.
type bundle struct {
	*store.Store
	t      *testing.T
	pool   *pgxpool.Pool
	ledger *ledger
}

// settings are those of a server for which nothing is set.
func settings() store.Config {
	c := store.FromConfig(config.Default())
	c.Logger = slog.New(slog.DiscardHandler)
	return c
}

// setup makes each test also one of OnChanges: at its end, every event has been told.
func setup(t *testing.T) *bundle {
	t.Helper()
	return newBundle(t, dbtest.New(t))
}

func newBundle(t *testing.T, pool *pgxpool.Pool, change ...func(*store.Config)) *bundle {
	t.Helper()
	c := settings()
	for _, f := range change {
		f(&c)
	}
	l := &ledger{}
	c.OnChanges = l.add
	b := &bundle{store.New(pool, c), t, pool, l}
	t.Cleanup(b.requireTold)
	return b
}

// node is another store on the same database.
func (b *bundle) node() *bundle {
	b.t.Helper()
	return newBundle(b.t, b.pool)
}

func newJob(queue string) *envelope.Job {
	return &envelope.Job{Type: "test.job", Queue: queue, MaxAttempts: 3, Args: []byte(`[1]`)}
}

func (b *bundle) enqueued(jobs ...*envelope.Job) []*dbsqlc.Job {
	b.t.Helper()
	stored, errs := b.EnqueueEach(b.t.Context(), jobs)
	require.Nil(b.t, errs)
	return stored
}

func (b *bundle) fetched(count int, queues ...string) []*dbsqlc.Job {
	b.t.Helper()
	jobs, err := b.Fetch(b.t.Context(), store.Fetch{Queues: queues, Count: count, WorkerID: "w1"})
	require.NoError(b.t, err)
	return jobs
}

func (b *bundle) state(id [16]byte) ojs.JobState {
	b.t.Helper()
	job, err := b.Get(b.t.Context(), id)
	require.NoError(b.t, err)
	return ojs.JobState(job.State)
}

// exec runs SQL of the test's own.
func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) eventTypes(id [16]byte) (types []string) {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `SELECT type || COALESCE(':' || from_state, '') || COALESCE('>' || to_state, '') FROM ojs.events WHERE job_id = $1 ORDER BY seq, sub`, id)
	require.NoError(b.t, err)
	for rows.Next() {
		var s string
		require.NoError(b.t, rows.Scan(&s))
		types = append(types, s)
	}
	require.NoError(b.t, rows.Err())
	return types
}

func requireCode(t *testing.T, err error, kind ojs.ErrorKind) {
	t.Helper()
	var wire *ojs.Error
	require.ErrorAs(t, err, &wire)
	require.Equal(t, string(kind), wire.Type, wire.Message)
}

func TestLifecycle(t *testing.T) {
	t.Parallel()

	t.Run("EnqueueFetchComplete", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.enqueued(newJob("q"))[0]
		require.Equal(t, "available", job.State)

		got := b.fetched(5, "other", "q")
		require.Len(t, got, 1)
		require.Equal(t, job.ID, got[0].ID)
		require.Equal(t, int32(1), got[0].Attempt)
		require.Equal(t, "w1", got[0].WorkerID.String)
		require.Empty(t, b.fetched(5, "q"))

		done, err := b.Complete(t.Context(), store.Ack{JobID: job.ID, Attempt: -1, Result: []byte(`{"n":1.0}`)})
		require.NoError(t, err)
		require.Equal(t, "completed", done.State)
		require.Equal(t, `{"n":1.0}`, string(done.Result))
		require.Equal(t, ojs.StateCompleted, b.state(job.ID))
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.completed:active>completed"}, b.eventTypes(job.ID))

		_, err = b.Complete(t.Context(), store.Ack{JobID: job.ID, Attempt: -1})
		requireCode(t, err, ojs.KindInvalidStateTransition)
		_, err = b.Complete(t.Context(), store.Ack{JobID: store.NewID(), Attempt: -1})
		requireCode(t, err, ojs.KindNotFound)
	})

	t.Run("NackRetriesThenDiscards", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := newJob("q")
		in.MaxAttempts = 2
		job := b.enqueued(in)[0]
		b.fetched(1, "q")
		nack := store.Nack{JobID: job.ID, Attempt: -1, Error: decodeError(t, `{"code":"handler_error","message":"no"}`)}
		failed, err := b.Fail(t.Context(), nack)
		require.NoError(t, err)
		require.Equal(t, "retryable", failed.State)
		require.True(t, failed.NextAttemptAt.Valid)
		require.Contains(t, string(failed.Error), `"occurred_at":"`)

		b.exec(`UPDATE ojs.jobs SET due_at = now(), next_attempt_at = now()`)
		moved, err := b.PromoteDue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Equal(t, 1, moved)
		got := b.fetched(1, "q")
		require.Len(t, got, 1)
		require.Equal(t, int32(2), got[0].Attempt)
		failed, err = b.Fail(t.Context(), nack)
		require.NoError(t, err)
		require.Equal(t, "discarded", failed.State)
		require.Len(t, failed.Errors, 2)
		require.Equal(t, []string{
			"job.enqueued>available", "job.started:available>active", "job.failed", "job.retrying:active>retryable",
			"job.state_changed:retryable>available", "job.started:available>active", "job.failed", "job.discarded:active>discarded",
		}, b.eventTypes(job.ID))
	})

	t.Run("RequeueGivesTheAttemptBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.enqueued(newJob("q"))[0]
		b.fetched(1, "q")
		back, err := b.Fail(t.Context(), store.Nack{JobID: job.ID, Attempt: 1, WorkerID: "w1", Requeue: true})
		require.NoError(t, err)
		require.Equal(t, "available", back.State)
		require.Zero(t, back.Attempt)
		require.Nil(t, back.Error)
		require.Empty(t, back.Errors)
		require.Len(t, b.fetched(1, "q"), 1)
	})

	t.Run("CancelFromEveryLiveState", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		pending, scheduled := newJob("p"), newJob("s")
		pending.Pending = true
		scheduled.ScheduledAt = envelope.When{Set: true, Relative: true, In: time.Hour}
		jobs := b.enqueued(newJob("q"), pending, scheduled, newJob("a"))
		b.fetched(1, "a")
		for i, was := range []string{"available", "pending", "scheduled", "active"} {
			job, err := b.Cancel(t.Context(), jobs[i].ID, store.Cancel{By: "test", Reason: "x"})
			require.NoError(t, err)
			require.Equal(t, "cancelled", job.State)
			require.Equal(t, was, job.PreviousState.String)
			_, err = b.Cancel(t.Context(), jobs[i].ID, store.Cancel{By: "test"})
			requireCode(t, err, ojs.KindInvalidStateTransition)
		}
		late, err := b.Complete(t.Context(), store.Ack{JobID: jobs[3].ID, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
		require.Equal(t, "cancelled", late.State)
		_, err = b.Complete(t.Context(), store.Ack{JobID: jobs[3].ID, WorkerID: "w2", Attempt: -1})
		requireCode(t, err, ojs.KindInvalidStateTransition)
		_, err = b.Complete(t.Context(), store.Ack{JobID: jobs[0].ID, Attempt: -1})
		requireCode(t, err, ojs.KindInvalidStateTransition)
	})

	t.Run("RefusesOthersAndOldAttempts", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.enqueued(newJob("q"))[0]
		b.fetched(1, "q")
		_, err := b.Complete(t.Context(), store.Ack{JobID: job.ID, WorkerID: "w2", Attempt: -1})
		requireCode(t, err, ojs.KindNotOwner)
		_, err = b.Complete(t.Context(), store.Ack{JobID: job.ID, WorkerID: "w1", Attempt: 2})
		requireCode(t, err, ojs.KindStaleAttempt)
		_, err = b.Fail(t.Context(), store.Nack{JobID: job.ID, WorkerID: "w2", Attempt: -1, Requeue: true})
		requireCode(t, err, ojs.KindNotOwner)
		require.Equal(t, ojs.StateActive, b.state(job.ID))
	})

	t.Run("ActivatePending", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := newJob("q")
		in.Pending = true
		job := b.enqueued(in)[0]
		require.Empty(t, b.fetched(1, "q"))
		job, err := b.Activate(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "available", job.State)
		require.Len(t, b.fetched(1, "q"), 1)
		_, err = b.Activate(t.Context(), job.ID)
		requireCode(t, err, ojs.KindInvalidStateTransition)
	})

	t.Run("ExpiredIsNeverDelivered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := newJob("q")
		in.ExpiresAt = envelope.When{Set: true, At: time.Now().Add(-time.Hour)}
		job := b.enqueued(in)[0]
		require.Empty(t, b.fetched(1, "q"))
		_, err := b.PromoteDue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		got, err := b.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "discarded", got.State)
		require.False(t, got.Failed)
		require.Contains(t, string(got.Error), `"code":"expired"`)
		require.Equal(t, []string{"job.enqueued>available", "job.expired:available>discarded"}, b.eventTypes(job.ID))
	})

	t.Run("LostLeaseGoesBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		job := b.enqueued(newJob("q"))[0]
		b.fetched(1, "q")
		found, failed, err := b.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Zero(t, found+failed)
		b.exec(`UPDATE ojs.jobs SET due_at = now(), lease_until = now()`)
		_, failed, err = b.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		got, err := b.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "available", got.State)
		require.Equal(t, int32(1), got.Attempt)
		require.Len(t, got.Errors, 1)
		require.Contains(t, string(got.Error), "visibility_timeout")
		require.Len(t, b.fetched(1, "q"), 1)
		require.Equal(t, []string{
			"job.enqueued>available", "job.started:available>active", "job.failed", "job.state_changed:active>available", "job.started:available>active",
		}, b.eventTypes(job.ID))
	})

	t.Run("ExecutionTimeoutRetries", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		in := newJob("q")
		in.TimeoutMS = 1000
		job := b.enqueued(in)[0]
		b.fetched(1, "q")
		b.exec(`UPDATE ojs.jobs SET due_at = now(), started_at = started_at - interval '2 s'`)
		_, failed, err := b.FailOverdue(t.Context(), store.FromTheStart)
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
		jobs := b.enqueued(newJob("q"), newJob("q"), newJob("q"))
		b.fetched(2, "q")
		_, err := b.Cancel(t.Context(), jobs[1].ID, store.Cancel{By: "x"})
		require.NoError(t, err)
		unknown := store.NewID()
		res, err := b.Heartbeat(t.Context(), store.Beat{WorkerID: "w1", JobIDs: [][16]byte{jobs[0].ID, jobs[1].ID, jobs[2].ID, unknown}})
		require.NoError(t, err)
		require.Equal(t, "running", res.State)
		require.Equal(t, [][16]byte{jobs[0].ID}, res.Extended)
		require.Equal(t, [][16]byte{jobs[1].ID}, res.Cancelled)
		require.Equal(t, [][16]byte{jobs[2].ID, unknown}, res.Lost)
		res, err = b.Heartbeat(t.Context(), store.Beat{WorkerID: "w2", State: "quiet", JobIDs: [][16]byte{jobs[0].ID}})
		require.NoError(t, err)
		require.Equal(t, "quiet", res.State)
		require.Empty(t, res.Extended)
	})
}

func TestClientIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := newJob("q")
	in.ID, in.ClientID = store.NewID(), true
	_, err := b.Enqueue(t.Context(), in)
	require.NoError(t, err)
	for range 2 { // live, then finished
		again := newJob("z")
		again.ID, again.ClientID = in.ID, true
		_, err = b.Enqueue(t.Context(), again)
		requireCode(t, err, ojs.KindDuplicateJob)

		_, at, err := b.EnqueueAll(t.Context(), []*envelope.Job{newJob("z"), again})
		requireCode(t, err, ojs.KindDuplicateJob)
		require.Equal(t, 1, at)
		require.Empty(t, b.fetched(1, "z"), "nothing of a refused batch is stored")

		stored, errs := b.EnqueueEach(t.Context(), []*envelope.Job{newJob("y"), again, newJob("y")})
		requireCode(t, errs[1], ojs.KindDuplicateJob)
		require.NotNil(t, stored[0])
		require.NotNil(t, stored[2])

		if got := b.fetched(1, "q"); len(got) == 1 {
			_, err = b.Complete(t.Context(), store.Ack{JobID: in.ID, Attempt: -1})
			require.NoError(t, err)
		}
	}
}

func decodeError(t *testing.T, text string) envelope.WorkerError {
	t.Helper()
	n, err := envelope.DecodeNack([]byte(`{"job_id":"x","error":`+text+`}`), envelope.Limits{})
	require.Nil(t, err)
	return n.Error
}
