package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
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
		b := setup(t, func(c *domaintest.Config) { c.Database.StatementTimeout = 3 * time.Second })
		b.Enqueued(domaintest.NewJob("q"))
		id := b.Fetched(1, "q")[0].ID
		b.Lock(id)
		_, err := b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1})
		require.ErrorIs(t, err, spec.Timeout())
		require.ErrorContains(t, err, "another transaction has locked the row of the job")
		_, errs := b.CompleteEach(t.Context(), []job.Ack{{JobID: id, Attempt: -1}})
		require.ErrorIs(t, errs[0], spec.Timeout())
		require.Equal(t, ojs.StateActive, b.State(id))
	})
}

// More locked jobs than a sweep reads at a time do not hide those behind them.
func TestLockedOverdueJobs(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	for name, c := range map[string]struct{ change, then string }{
		"Waiting": {`UPDATE ojs.jobs SET state = 'scheduled', ready_seq = NULL, due_at = created_at, scheduled_at = created_at`, "available"},
		"Active":  {`UPDATE ojs.jobs SET state = 'active', ready_seq = NULL, attempt = 1, started_at = created_at, lease_until = created_at, due_at = created_at`, "available"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, unchecked)
			var jobs []*job.Job
			for range 2300 {
				jobs = append(jobs, domaintest.NewJob("q"))
			}
			b.Enqueued(jobs...)
			b.Exec(c.change)
			b.Exec(`UPDATE ojs.jobs SET due_at = now() - interval '1 second' WHERE id IN (SELECT id FROM ojs.jobs ORDER BY id LIMIT 1200)`)
			tx, err := b.Pool.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = tx.Exec(t.Context(), `SELECT FROM ojs.jobs ORDER BY due_at, id LIMIT 1200 FOR UPDATE`)
			require.NoError(t, err)
			for moved := 1; moved > 0; {
				moved, err = b.ApplyDue(t.Context(), pg.Beginning)
				require.NoError(t, err)
			}
			require.Equal(t, 1100, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = $1`, c.then))
		})
	}
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
	_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', json_build_object('id', $1::text))`, spec.FormatID(id))
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
	require.ErrorIs(t, <-locked, spec.Timeout())

	require.NoError(t, tx.Commit(t.Context()))
	_, err = b.Enqueue(t.Context(), same)
	require.ErrorIs(t, err, spec.DuplicateID(""))
}
