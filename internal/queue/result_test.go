package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// The end of a job wakes the waiters on the same node directly, and those on other nodes by a notification.
func TestAwaitResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.node()
	b.Enqueued(domaintest.NewJob("q"))
	id := b.Fetched(1, "q")[0].ID
	var wg sync.WaitGroup
	for _, node := range []*bundle{b, other} {
		for range 5 {
			wg.Go(func() {
				res, err := node.AwaitResult(t.Context(), id, domaintest.WaitFor)
				require.NoError(t, err)
				require.Equal(t, "completed", res.State)
				require.Equal(t, `7`, string(res.Result))
			})
		}
	}
	require.Eventually(t, func() bool { return b.Awaited() == 5 && other.Awaited() == 5 }, domaintest.WaitFor, time.Millisecond)
	_, err := b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1, Result: []byte(`7`)})
	require.NoError(t, err)
	other.NotifyPublished()
	wg.Wait()
	require.Zero(t, b.Awaited()+other.Awaited())
}

// A bulk cancel wakes the calls of its own node at its commit, before the relay has published anything.
func TestBulkCancelEndsTheWaitForAResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Enqueued(domaintest.NewJob("q"))[0].ID
	ended := make(chan string, 1)
	go func() {
		res, err := b.AwaitResult(t.Context(), id, domaintest.WaitFor)
		if err != nil {
			ended <- err.Error()
			return
		}
		ended <- res.State
	}()
	require.Eventually(t, func() bool { return b.Awaited() == 1 }, domaintest.WaitFor, time.Millisecond)
	_, err := b.Once(t.Context(), queue.IdempotencyKey{}, func(tx *queue.Tx) (queue.Answer, bool, error) {
		res, err := tx.Bulk(t.Context(), queue.BulkChange{Op: job.BulkCancel, IDs: [][16]byte{id}, States: queue.Eligible(job.BulkCancel)})
		return queue.Answer{Status: 200}, len(res.Changed) > 0, err
	})
	require.NoError(t, err)
	require.Equal(t, "cancelled", <-ended)
}

// The results of many jobs have a bound together; a single one is always read.
// Results takes a place among the slow reads, for which it waits as long as its caller.
func TestResultsWithoutAPlace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Enqueued(domaintest.NewJob("q"))[0].ID
	for range max(1, b.Pool.Config().MaxConns/2) {
		_, done, err := b.DB.Reading(t.Context())
		require.NoError(t, err)
		defer done()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := b.Results(ctx, [][16]byte{id})
	require.Error(t, err)
}

func TestResultsAreBounded(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	b.Exec(`INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args, result)
		SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 't', 'q', 'completed', now(), now(), '[]', to_json(repeat('x', 1048576))
		FROM generate_series(1, 12) i`)
	var ids [][16]byte
	for i := range byte(12) {
		ids = append(ids, [16]byte{0: 1, 1: 0x90, 6: 0x70, 8: 0x80, 15: i + 1})
	}
	results, err := b.Results(t.Context(), ids)
	require.NoError(t, err)
	bytes, cut := 0, 0
	for _, r := range results {
		require.Equal(t, "completed", r.State)
		require.Equal(t, r.Cut, r.Result == nil)
		if bytes += len(r.Result); r.Cut {
			cut++
		}
	}
	require.Equal(t, 4, cut)
	require.Less(t, bytes, job.MaxBytes+2<<20)
	one, err := b.AwaitResult(t.Context(), ids[11], 0)
	require.NoError(t, err)
	require.False(t, one.Cut)
	require.Greater(t, len(one.Result), 1<<20)
}
