package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// An atomic change is made to all jobs or to none.
func TestAtomicBulkChange(t *testing.T) {
	t.Parallel()
	cancel := func(b *bundle, atomic bool, ids ...[16]byte) (res queue.BulkResult, err error) {
		err = b.InTx(t.Context(), func(tx *queue.Tx) (err error) {
			res, err = tx.Bulk(t.Context(), queue.BulkChange{Op: job.BulkCancel, IDs: ids, States: queue.Eligible(job.BulkCancel), Atomic: atomic})
			return err
		})
		return res, err
	}

	t.Run("IsNotMadeIfOneIsSkipped", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		done, waiting := b.add("q", 0, "1")[0].ID, b.add("q", 0, "2")[0].ID
		b.Fetched(1, "q")
		_, err := b.Complete(t.Context(), job.Ack{JobID: done, Attempt: -1})
		require.NoError(t, err)
		want := queue.BulkResult{
			Eligible: map[[16]byte]bool{waiting: true}, Skipped: map[[16]byte]ojs.JobState{done: ojs.StateCompleted},
		}
		res, err := cancel(b, true, done, waiting)
		require.NoError(t, err)
		require.Equal(t, want, res)
		require.Equal(t, ojs.StateAvailable, b.State(waiting))

		want.Changed = want.Eligible
		res, err = cancel(b, false, done, waiting)
		require.NoError(t, err)
		require.Equal(t, want, res)
		require.Equal(t, ojs.StateCancelled, b.State(waiting))
	})

	t.Run("IsMadeIfNoneIs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs := b.add("q", 0, "1", "2")
		res, err := cancel(b, true, jobs[0].ID, jobs[1].ID)
		require.NoError(t, err)
		require.Len(t, res.Changed, 2)
		require.Empty(t, res.Skipped)
		require.Equal(t, ojs.StateCancelled, b.State(jobs[1].ID))
	})

	t.Run("ThatFailsIsAnError", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.add("q", 0, "1")[0].ID
		b.Exec(`ALTER TABLE ojs.jobs_done ADD CONSTRAINT no_cancel CHECK (state <> 'cancelled')`)
		_, err := cancel(b, true, id)
		require.ErrorContains(t, err, "no_cancel")
		require.Equal(t, ojs.StateAvailable, b.State(id))
	})
}

// A bulk call without a valid item enqueues nothing.
func TestEnqueueOfNoJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)

	for key, atomic := range map[string]bool{"partial": false, "atomic": true} {
		call := func() queue.Answer {
			answer, err := b.Once(t.Context(), queue.IdempotencyKey{Operation: "bulk", Key: key, Hash: []byte("h")}, func(tx *queue.Tx) (queue.Answer, bool, error) {
				stored, errs, err := tx.Enqueue(t.Context(), nil, atomic)
				require.NoError(t, err)
				require.Empty(t, stored)
				require.Empty(t, errs)
				return queue.Answer{Status: 200, Body: []byte(`[]`)}, true, nil
			})
			require.NoError(t, err)
			return answer
		}
		require.Equal(t, queue.Answer{Status: 200, Body: []byte(`[]`)}, call())
		require.True(t, call().Replayed)
	}

	stored, errs := b.EnqueueEach(t.Context(), nil)
	require.Empty(t, stored)
	require.Empty(t, errs)
	stored, at, err := b.EnqueueAll(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, stored)
	require.Equal(t, -1, at)
	require.Zero(t, b.Number(`SELECT (SELECT count(*) FROM ojs.jobs) + (SELECT count(*) FROM ojs.events)`))
}
