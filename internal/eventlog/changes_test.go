package eventlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// requireTold compares what the store has told with every event row of its node.
func (b *bundle) requireTold() {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(), `
		SELECT type || ' ' || COALESCE(subject, job_id::text) || ' ' || COALESCE(job_type, '') || ' ' || COALESCE(queue, '') || ' '
			|| COALESCE(from_state, '') || '>' || COALESCE(to_state, '') || ' ' || COALESCE(duration_ms::text, '-')
		FROM ojs.events WHERE node = $1 ORDER BY seq, sub`, b.Commits.Node)
	require.NoError(b.T, err)
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.T, err)
	var told []string
	for _, c := range b.Emitted() {
		told = append(told, line(c))
	}
	require.ElementsMatch(b.T, events, told)
}

func TestChanges(t *testing.T) {
	t.Parallel()

	t.Run("TellWhatAFailureMeans", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET started_at = started_at - interval '26 hours 1.0005 s', lease_until = now(), due_at = now()`)
		_, failed, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		told := b.Emitted()
		require.Len(t, told, 4)
		require.Equal(t, "job.failed", told[2].Type)
		require.Equal(t, job.Timeout, told[2].Reason)
		require.Equal(t, job.Timeout, told[2].Error.Code)
		require.Equal(t, "w1", told[2].WorkerID)
		require.Equal(t, j.ID, told[2].JobID)
		require.Greater(t, told[2].Took, 26*time.Hour)
		require.Equal(t, "job.retrying", told[3].Type)
		require.Equal(t, "retryable", told[3].Job.State)
		b.RequireEmitted()
	})

	t.Run("TellALostLease", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET lease_until = now(), due_at = now()`)
		_, _, err := b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		told := b.Emitted()
		require.Len(t, told, 4)
		require.Equal(t, job.VisibilityTimeout, told[2].Reason)
		require.Equal(t, "job.state_changed", told[3].Type)
		require.Equal(t, job.VisibilityTimeout, told[3].Reason)
	})

	t.Run("TellNothingOfARollback", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		err := b.InTx(t.Context(), func(tx *queue.Tx) error {
			_, _, err := tx.Enqueue(t.Context(), []*job.Job{domaintest.NewJob("q")}, true)
			require.NoError(t, err)
			return context.Canceled
		})
		require.Error(t, err)
		require.Empty(t, b.Emitted())
	})

	t.Run("TellBeforeTheCallerIsAnswered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for n := range 5 {
			b.Enqueued(domaintest.NewJob("q"))
			require.Len(t, b.Emitted(), n+1)
		}
	})
}
