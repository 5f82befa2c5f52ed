package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/queue"
)

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
