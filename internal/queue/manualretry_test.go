package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestRetry(t *testing.T) {
	t.Parallel()

	t.Run("RestartsTheTotalTimeout", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 3_600_000, 60_000 })
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '3 days', total_due_at = total_due_at - interval '3 days'`)
		for range 2 {
			got, err := b.Retry(t.Context(), stored.ID, nil)
			require.NoError(t, err)
			require.InDelta(t, time.Hour, got.TotalDueAt.Time.Sub(got.ReEnqueuedAt.Time), 1e6)
			require.Equal(t, got.TotalDueAt, got.DueAt)
			require.Len(t, b.Fetched(1, "q"), 1)
			b.Exec(`UPDATE ojs.jobs SET total_due_at = re_enqueued_at + interval '1 hour', due_at = now()`)
			b.Exec(`UPDATE ojs.jobs SET re_enqueued_at = re_enqueued_at - interval '1 hour', total_due_at = total_due_at - interval '1 hour'`)
			failed := b.ApplyDueUntilLeft(stored.ID, ojs.StateActive)
			require.Equal(t, "discarded", failed.State)
			require.InDelta(t, 3600, domaintest.ErrorOf(t, failed).Limit, 0.01, "counted from the retry, not from the creation")
			require.InDelta(t, 3600, domaintest.ErrorOf(t, failed).Elapsed, 10)
		}
	})

	t.Run("AWaitingJobOfARetryTimesOut", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 3_600_000, 60_000 })
		_, err := b.Retry(t.Context(), stored.ID, nil)
		require.NoError(t, err)
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '3 days', re_enqueued_at = now() - interval '1 hour', total_due_at = now(), due_at = now()`)
		dead := b.ApplyDueUntilLeft(stored.ID, ojs.StateAvailable)
		require.Equal(t, "total_timeout", domaintest.ErrorOf(t, dead).Code)
		require.InDelta(t, 3600, domaintest.ErrorOf(t, dead).Limit, 0.01)
	})

	t.Run("ClearsTheColumnsOfTheOldRun", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter()
		b.Exec(`UPDATE ojs.jobs SET progress = 0.5, progress_message = 'm', progress_data = '{}', progress_at = now(), checkpoint = '{}', checkpoint_seq = 1, checkpoint_at = now(), ttl_due_at = now()`)
		got, err := b.Retry(t.Context(), stored.ID, nil)
		require.NoError(t, err)
		require.Zero(t, got.Attempt, "it has all its attempts again")
		require.Nil(t, got.ProgressData)
		require.Nil(t, got.Checkpoint)
		require.False(t, got.Progress.Valid || got.ProgressMessage.Valid || got.ProgressAt.Valid || got.CheckpointSeq.Valid || got.CheckpointAt.Valid || got.TtlDueAt.Valid)
		require.False(t, got.DeadLetteredAt.Valid || got.FinishedAt.Valid || got.PreviousState.Valid || got.WorkerID.Valid || got.Failed)
		require.Equal(t, "job.enqueued:discarded>available", b.EventTypes(stored.ID)[4])
	})

	t.Run("KeepsTheNewestFiftyErrors", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter()
		b.Exec(`UPDATE ojs.jobs SET errors = ARRAY(SELECT to_json(g) FROM generate_series(31, 60) g), previous_errors = ARRAY(SELECT to_json(g) FROM generate_series(1, 30) g)`)
		got, err := b.Retry(t.Context(), stored.ID, nil)
		require.NoError(t, err)
		require.Len(t, got.PreviousErrors, 50)
		require.Equal(t, "11", string(got.PreviousErrors[0]))
		require.Equal(t, "60", string(got.PreviousErrors[49]))
		require.Empty(t, got.Errors)
	})

	t.Run("MovesQueuesWithExactCounts", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter()
		override, wire := job.DecodeRetry([]byte(`{"override":{"queue":"other","meta":{"trace_id":"abc"}}}`), job.Limits{})
		require.Nil(t, wire)
		require.Empty(t, b.Fetched(1, "other"), "the cursor of this node knows the queue")
		got, err := b.Retry(t.Context(), stored.ID, override)
		require.NoError(t, err)
		require.Equal(t, "abc", got.TraceID.String)
		require.Equal(t, []string{"job.state_changed:discarded", "job.state_changed>discarded", "job.enqueued:discarded>available"}, b.EventTypes(stored.ID)[4:])
		require.EqualValues(t, 1, b.Number(`SELECT count(*) FROM ojs.queues WHERE name = 'other'`))
		require.Len(t, b.Fetched(1, "other"), 1)
		b.RequireCounts()
	})

	t.Run("KeepsOrTakesTheDeadLetterPolicy", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		stored := b.DeadLetter(func(j *job.Job) { j.OnExhaustion = "dead_letter" })
		for _, c := range []struct{ override, want string }{
			{`{}`, "dead_letter"}, {`{"override":{"retry":{"on_exhaustion":"discard"}}}`, "discard"}, {`{"override":{"priority":5}}`, "discard"},
		} {
			override, wire := job.DecodeRetry([]byte(c.override), job.Limits{})
			require.Nil(t, wire)
			got, err := b.Retry(t.Context(), stored.ID, override)
			require.NoError(t, err)
			require.Equal(t, c.want, got.OnExhaustion.String, c.override)
			b.Exec(`UPDATE ojs.jobs SET state = 'discarded', ready_seq = NULL, finished_at = now() WHERE id = $1`, stored.ID)
		}
	})

	t.Run("BackoffKeepsItsDeadlines", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.Enqueued(domaintest.With(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 7_200_000, 1000 }))[0]
		b.Fetched(1, "q")
		_, err := b.Fail(t.Context(), job.Nack{JobID: stored.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{}`)})
		require.NoError(t, err)
		require.NoError(t, b.InTx(t.Context(), func(tx *queue.Tx) error {
			res, err := tx.Bulk(t.Context(), queue.BulkChange{Op: job.BulkRetry, IDs: [][16]byte{stored.ID}, States: queue.Eligible(job.BulkRetry)})
			require.Len(t, res.Changed, 1)
			return err
		}))
		got, err := b.Get(t.Context(), stored.ID)
		require.NoError(t, err)
		require.Equal(t, got.TotalDueAt, got.DueAt)
		require.Equal(t, int32(1), got.Attempt)
		require.Zero(t, got.ReplayCount)
		require.Len(t, got.Errors, 1)
	})

	t.Run("RefusesOtherStates", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.Enqueued(domaintest.NewJob("q"))[0]
		_, err := b.Retry(t.Context(), stored.ID, nil)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		_, err = b.Retry(t.Context(), job.NewID(), nil)
		domaintest.RequireCode(t, err, ojs.ErrNotFound)
	})
}

// The newest 50 failures of a job are kept.
func TestErrorHistory(t *testing.T) {
	t.Parallel()
	const failures, kept = 53, 50
	b := setup(t)
	stored := b.Enqueued(domaintest.With(func(j *job.Job) { j.MaxAttempts = 100 }))[0]
	for range failures {
		require.Len(t, b.Fetched(1, "q"), 1)
		_, err := b.Fail(t.Context(), job.Nack{JobID: stored.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{}`)})
		require.NoError(t, err)
		b.Exec(`UPDATE ojs.jobs SET due_at = now()`)
		_, err = b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
	}
	got, err := b.Get(t.Context(), stored.ID)
	require.NoError(t, err)
	require.Len(t, got.Errors, kept)
	require.Contains(t, string(got.Errors[0]), fmt.Sprintf(`{"attempt":%d,`, failures-kept+1))
	require.Contains(t, string(got.Errors[kept-1]), fmt.Sprintf(`{"attempt":%d,`, failures))
}
