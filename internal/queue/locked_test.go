package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// A locked row delays the calls for its own job only.
func TestLockedJobs(t *testing.T) {
	t.Parallel()

	domaintest.TestLocked(t, map[string]domaintest.LockedCall{
		"Ack": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			_, err := b.Complete(ctx, job.Ack{JobID: id, WorkerID: "w1", Attempt: -1})
			return err
		}, Then: ojs.StateCompleted},
		"AckBatch": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			_, errs := b.CompleteEach(ctx, []job.Ack{{JobID: id, WorkerID: "w1", Attempt: -1}})
			if errs != nil {
				return errs[0]
			}
			return nil
		}, Then: ojs.StateCompleted},
		"Nack": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			_, err := b.Fail(ctx, job.Nack{JobID: id, Attempt: -1, Error: job.WorkerError{Code: "x", Type: "x", Message: "x", Retryable: true}})
			return err
		}, Then: ojs.StateRetryable},
		"Cancel": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			_, err := b.Cancel(ctx, id, queue.Cancel{By: "api"})
			return err
		}, Then: ojs.StateCancelled},
	})

	t.Run("GivesUpWithATimeout", func(t *testing.T) {
		t.Parallel()
		b := setup(t, func(c *domaintest.Config) { c.StatementTimeout = 3 * time.Second })
		b.Enqueued(domaintest.NewJob("q"))
		id := b.Fetched(1, "q")[0].ID
		b.Lock(id)
		_, err := b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1})
		require.ErrorIs(t, err, ojs.ErrTimeout())
		require.ErrorContains(t, err, "another transaction has locked the row of the job")
		_, errs := b.CompleteEach(t.Context(), []job.Ack{{JobID: id, Attempt: -1}})
		require.ErrorIs(t, errs[0], ojs.ErrTimeout())
		require.Equal(t, ojs.StateActive, b.State(id))
	})
}

// An application that has enqueued a job with a client-chosen id, and keeps its transaction open, delays only enqueues of the
// same id.
func TestLockedIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := job.NewID()
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', json_build_object('id', $1::text))`, ojs.FormatID(id))
	require.NoError(t, err)

	same := domaintest.NewJob("q")
	same.ID, same.ClientID = id, true
	locked := make(chan error, 1)
	go func() {
		_, err := b.Enqueue(t.Context(), same)
		locked <- err
	}()
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
	require.Empty(t, locked, "jobs without client-chosen ids do not wait")
	other := domaintest.NewJob("q")
	other.ID, other.ClientID = job.NewID(), true
	b.Enqueued(other)
	require.ErrorIs(t, <-locked, ojs.ErrTimeout())

	require.NoError(t, tx.Commit(t.Context()))
	_, err = b.Enqueue(t.Context(), same)
	require.ErrorIs(t, err, ojs.ErrDuplicateID(""))
}
