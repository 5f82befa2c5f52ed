package queue_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/job"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
)

// One waiter per job and node: woken by the end of its job here, by a notification for ends elsewhere.
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
	other.Published()
	wg.Wait()
	require.Zero(t, b.Awaited()+other.Awaited())
}
