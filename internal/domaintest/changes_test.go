package domaintest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
)

func TestChanges(t *testing.T) {
	t.Parallel()

	t.Run("SayWhatAFailureMeans", func(t *testing.T) {
		t.Parallel()
		b := domaintest.New(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET started_at = started_at - interval '26 hours 1.0005 s', lease_until = now(), due_at = now()`)
		_, failed, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		emitted := b.Emitted()
		require.Len(t, emitted, 4)
		require.Equal(t, "job.failed", emitted[2].Type)
		require.Equal(t, job.Timeout, emitted[2].Reason)
		require.Equal(t, job.Timeout, emitted[2].Error.Code)
		require.Equal(t, "w1", emitted[2].WorkerID)
		require.Equal(t, j.ID, emitted[2].JobID)
		require.Greater(t, emitted[2].Took, 26*time.Hour)
		require.Equal(t, "job.retrying", emitted[3].Type)
		require.Equal(t, "retryable", emitted[3].Job.State)
		b.RequireEmitted()
	})

	t.Run("NameALostLease", func(t *testing.T) {
		t.Parallel()
		b := domaintest.New(t)
		b.Enqueued(domaintest.NewJob("q"))
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET lease_until = now(), due_at = now()`)
		_, _, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		emitted := b.Emitted()
		require.Len(t, emitted, 4)
		require.Equal(t, job.VisibilityTimeout, emitted[2].Reason)
		require.Equal(t, "job.state_changed", emitted[3].Type)
		require.Equal(t, job.VisibilityTimeout, emitted[3].Reason)
	})

	t.Run("AreNotEmittedAfterARollback", func(t *testing.T) {
		t.Parallel()
		b := domaintest.New(t)
		err := b.InTx(t.Context(), func(tx *queue.Tx) error {
			_, _, err := tx.Enqueue(t.Context(), []*job.Job{domaintest.NewJob("q")}, true)
			require.NoError(t, err)
			return context.Canceled
		})
		require.Error(t, err)
		require.Empty(t, b.Emitted())
	})

	t.Run("AreEmittedBeforeTheCallReturns", func(t *testing.T) {
		t.Parallel()
		b := domaintest.New(t)
		for n := range 5 {
			b.Enqueued(domaintest.NewJob("q"))
			require.Len(t, b.Emitted(), n+1)
		}
	})
}
