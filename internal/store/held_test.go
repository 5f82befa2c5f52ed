package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// hold locks the row of a job as an application does that has called ojs.cancel in a transaction it keeps open.
func (b *bundle) hold(id [16]byte) pgx.Tx {
	b.t.Helper()
	tx, err := b.pool.Begin(b.t.Context())
	require.NoError(b.t, err)
	_, err = tx.Exec(b.t.Context(), `SELECT FROM ojs.jobs WHERE id = $1 FOR UPDATE`, id)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// A job whose row another transaction holds keeps its own caller waiting, and nobody else.
func TestHeldJobs(t *testing.T) {
	t.Parallel()

	calls := map[string]struct {
		do   func(ctx context.Context, b *bundle, id [16]byte) error
		then ojs.JobState
	}{
		"Ack": {func(ctx context.Context, b *bundle, id [16]byte) error {
			_, err := b.Complete(ctx, store.Ack{JobID: id, WorkerID: "w1", Attempt: -1})
			return err
		}, ojs.StateCompleted},
		"AckBatch": {func(ctx context.Context, b *bundle, id [16]byte) error {
			_, errs := b.CompleteEach(ctx, []store.Ack{{JobID: id, WorkerID: "w1", Attempt: -1}})
			if errs != nil {
				return errs[0]
			}
			return nil
		}, ojs.StateCompleted},
		"Nack": {func(ctx context.Context, b *bundle, id [16]byte) error {
			_, err := b.Fail(ctx, store.Nack{JobID: id, Attempt: -1, Error: envelope.WorkerError{Code: "x", Type: "x", Message: "x", Retryable: true}})
			return err
		}, ojs.StateRetryable},
		"Cancel": {func(ctx context.Context, b *bundle, id [16]byte) error {
			_, err := b.Cancel(ctx, id, store.Cancel{By: "api"})
			return err
		}, ojs.StateCancelled},
		"Heartbeat": {func(ctx context.Context, b *bundle, id [16]byte) error {
			res, err := b.Heartbeat(ctx, store.Beat{WorkerID: "w1", JobIDs: [][16]byte{id}})
			if err == nil {
				require.Equal(b.t, [][16]byte{id}, res.Extended)
				require.Empty(b.t, res.Lost)
			}
			return err
		}, ojs.StateActive},
		"Progress": {func(ctx context.Context, b *bundle, id [16]byte) error {
			half := 0.5
			p, err := b.ReportProgress(ctx, store.Report{JobID: id, WorkerID: "w1", Attempt: -1, Progress: &half})
			if err == nil {
				require.False(b.t, p.Refused)
				require.InDelta(b.t, half, p.Progress.Float64, 0)
			}
			return err
		}, ojs.StateActive},
		"Checkpoint": {func(ctx context.Context, b *bundle, id [16]byte) error {
			c, err := b.SaveCheckpoint(ctx, store.Save{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: store.NextSequence})
			if err == nil {
				require.Equal(b.t, int64(1), c.Sequence)
			}
			return err
		}, ojs.StateActive},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.enqueued(newJob("q"), newJob("q"))
			jobs := b.fetched(2, "q")
			require.Len(t, jobs, 2)
			tx := b.hold(jobs[0].ID)

			held := make(chan error, 1)
			go func() { held <- call.do(t.Context(), b, jobs[0].ID) }()
			free := make(chan error, 1)
			go func() { free <- call.do(t.Context(), b, jobs[1].ID) }()
			select {
			case err := <-free:
				require.NoError(t, err)
			case <-time.After(10 * time.Second):
				require.Fail(t, "waits for a row that is none of its business")
			}
			require.Equal(t, call.then, b.state(jobs[1].ID))
			require.Empty(t, held)

			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-held)
			require.Equal(t, call.then, b.state(jobs[0].ID))
		})
	}

	t.Run("GivesUpWithATimeout", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, dbtest.New(t), func(c *store.Config) { c.StatementTimeout = 3 * time.Second })
		b.enqueued(newJob("q"))
		id := b.fetched(1, "q")[0].ID
		b.hold(id)
		_, err := b.Complete(t.Context(), store.Ack{JobID: id, Attempt: -1})
		require.ErrorIs(t, err, ojs.ErrTimeout())
		require.ErrorContains(t, err, "another transaction holds the job")
		_, errs := b.CompleteEach(t.Context(), []store.Ack{{JobID: id, Attempt: -1}})
		require.ErrorIs(t, errs[0], ojs.ErrTimeout())
		require.Equal(t, ojs.StateActive, b.state(id))
	})

	t.Run("DeletesACheckpointWhenTheRowIsFree", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueued(newJob("q"))
		id := b.fetched(1, "q")[0].ID
		require.NoError(t, b.DeleteCheckpoint(t.Context(), id))
		_, err := b.SaveCheckpoint(t.Context(), store.Save{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: store.NextSequence})
		require.NoError(t, err)
		tx := b.hold(id)
		held := make(chan error, 1)
		go func() { held <- b.DeleteCheckpoint(t.Context(), id) }()
		require.Never(t, func() bool { return len(held) > 0 }, 50*time.Millisecond, 10*time.Millisecond)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, <-held)
		c, err := b.Checkpoint(t.Context(), id)
		require.NoError(t, err)
		require.Nil(t, c.Stored)
	})
}

// An application that has enqueued with an id of its own, and keeps its transaction open, holds up nobody but who uses the
// same id.
func TestHeldIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := store.NewID()
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', json_build_object('id', $1::text))`, ojs.FormatID(id))
	require.NoError(t, err)

	same := newJob("q")
	same.ID, same.ClientID = id, true
	held := make(chan error, 1)
	go func() {
		_, err := b.Enqueue(t.Context(), same)
		held <- err
	}()
	b.enqueued(newJob("q"), newJob("q"))
	require.Empty(t, held, "jobs without ids of their own wait for nobody")
	other := newJob("q")
	other.ID, other.ClientID = store.NewID(), true
	b.enqueued(other)
	require.ErrorIs(t, <-held, ojs.ErrTimeout())

	require.NoError(t, tx.Commit(t.Context()))
	_, err = b.Enqueue(t.Context(), same)
	require.ErrorIs(t, err, ojs.ErrDuplicateID(""))
}
