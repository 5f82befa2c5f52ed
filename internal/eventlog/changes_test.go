package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// ledger holds what a store has told of its commits.
type ledger struct {
	mu   sync.Mutex
	told []store.Change
}

func (l *ledger) add(_ context.Context, changes []store.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, changes...)
}

func (l *ledger) all() []store.Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]store.Change(nil), l.told...)
}

// line is a change as requireTold reads it from the events.
func line(c store.Change) string {
	subject, ms := c.Subject, "-"
	if c.JobID != [16]byte{} {
		subject = ojs.FormatID(c.JobID)
	}
	if c.Timed {
		ms = fmt.Sprint(c.Milliseconds())
	}
	return fmt.Sprintf("%s %s %s %s %s>%s %s", c.Type, subject, c.JobType, c.Queue, c.From, c.To, ms)
}

// requireTold compares what the store has told with every event row of its node.
func (b *bundle) requireTold() {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), `
		SELECT type || ' ' || COALESCE(subject, job_id::text) || ' ' || COALESCE(job_type, '') || ' ' || COALESCE(queue, '') || ' '
			|| COALESCE(from_state, '') || '>' || COALESCE(to_state, '') || ' ' || COALESCE(duration_ms::text, '-')
		FROM ojs.events WHERE node = $1 ORDER BY seq, sub`, b.Node())
	require.NoError(b.t, err)
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	var told []string
	for _, c := range b.ledger.all() {
		told = append(told, line(c))
	}
	require.ElementsMatch(b.t, events, told)
}

func TestChanges(t *testing.T) {
	t.Parallel()

	t.Run("TellWhatAFailureMeans", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := b.enqueued(newJob("q"))[0]
		b.fetched(1, "q")
		b.exec(`UPDATE ojs.jobs SET started_at = started_at - interval '26 hours 1.0005 s', lease_until = now(), due_at = now()`)
		_, failed, err := b.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
		told := b.ledger.all()
		require.Len(t, told, 4)
		require.Equal(t, "job.failed", told[2].Type)
		require.Equal(t, job.Timeout, told[2].Reason)
		require.Equal(t, job.Timeout, told[2].Error.Code)
		require.Equal(t, "w1", told[2].WorkerID)
		require.Equal(t, j.ID, told[2].JobID)
		require.Greater(t, told[2].Took, 26*time.Hour)
		require.Equal(t, "job.retrying", told[3].Type)
		require.Equal(t, "retryable", told[3].Job.State)
		b.requireTold()
	})

	t.Run("TellALostLease", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueued(newJob("q"))
		b.fetched(1, "q")
		b.exec(`UPDATE ojs.jobs SET lease_until = now(), due_at = now()`)
		_, _, err := b.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		told := b.ledger.all()
		require.Len(t, told, 4)
		require.Equal(t, job.VisibilityTimeout, told[2].Reason)
		require.Equal(t, "job.state_changed", told[3].Type)
		require.Equal(t, job.VisibilityTimeout, told[3].Reason)
	})

	t.Run("TellNothingOfARollback", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		err := b.InTx(t.Context(), func(tx *store.Tx) error {
			_, _, err := tx.Enqueue(t.Context(), []*job.Job{newJob("q")}, true)
			require.NoError(t, err)
			return context.Canceled
		})
		require.Error(t, err)
		require.Empty(t, b.ledger.all())
	})

	t.Run("TellBeforeTheCallerIsAnswered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for n := range 5 {
			b.enqueued(newJob("q"))
			require.Len(t, b.ledger.all(), n+1)
		}
	})
}
