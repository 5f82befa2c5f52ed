package queue_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	first := queue.IdempotencyKey{Holder: "h", Operation: "o", Key: "k", Hash: []byte("body")}

	t.Run("PerHolderOperationKeyAndBody", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var runs int
		once := func(k queue.IdempotencyKey, keep bool) (queue.Answer, error) {
			return b.Once(t.Context(), k, func(*queue.Tx) (queue.Answer, bool, error) {
				runs++
				return queue.Answer{Status: 200 + runs, Body: []byte(`1`)}, keep, nil
			})
		}
		another := func(change func(k *queue.IdempotencyKey)) queue.IdempotencyKey {
			k := first
			change(&k)
			return k
		}
		for want, k := range []queue.IdempotencyKey{
			first,
			another(func(k *queue.IdempotencyKey) { k.Holder = "" }),
			another(func(k *queue.IdempotencyKey) { k.Operation = "p" }),
			another(func(k *queue.IdempotencyKey) { k.Key = "l" }),
		} {
			for _, replayed := range []bool{false, true} {
				answer, err := once(k, true)
				require.NoError(t, err)
				require.Equal(t, queue.Answer{Status: 201 + want, Body: []byte(`1`), Replayed: replayed}, answer)
			}
		}
		_, err := once(another(func(k *queue.IdempotencyKey) { k.Hash = []byte("ydob") }), true)
		domaintest.RequireCode(t, err, ojs.ErrIdempotencyConflict)
		require.Equal(t, 4, runs)

		refused := another(func(k *queue.IdempotencyKey) { k.Key = "refused" })
		for range 2 {
			answer, err := once(refused, false)
			require.NoError(t, err)
			require.False(t, answer.Replayed, "what changed nothing may be tried again")
		}
		require.Equal(t, 6, runs)
	})

	t.Run("AtTheSameTime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		nodes := []*bundle{b, b.node()}
		var runs, replays atomic.Int32
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				answer, err := nodes[i%2].Once(context.Background(), first, func(*queue.Tx) (queue.Answer, bool, error) {
					runs.Add(1)
					return queue.Answer{Status: 201, Body: []byte(`1`)}, true, nil
				})
				assert.NoError(t, err)
				assert.Equal(t, 201, answer.Status)
				if answer.Replayed {
					replays.Add(1)
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 1, runs.Load())
		require.EqualValues(t, 7, replays.Load())
	})
}
