package queue

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
)

func TestWakes(t *testing.T) {
	t.Parallel()
	park := func(c *cursors, tenant string) *waiter {
		return c.park(job.Fetch{Queues: []string{"q"}, Tenant: tenant}, 1000)
	}

	t.Run("OneThatIsNotUsedGoesToTheNextWaiter", func(t *testing.T) {
		t.Parallel()
		c := newCursors()
		first, second := park(c, ""), park(c, "")
		c.wake(scope{"q", ""}, 1)
		require.Len(t, first.wake, 1)
		require.Empty(t, second.wake)
		c.leave(first) // its time was up
		require.Len(t, second.wake, 1)
	})

	t.Run("OfAJobOfATenantReachFetchesOfAllJobs", func(t *testing.T) {
		t.Parallel()
		c := newCursors()
		other, all, own := park(c, "b"), park(c, ""), park(c, "a")
		c.wake(scope{"q", "a"}, 1)
		require.Len(t, own.wake, 1)
		require.Empty(t, all.wake)
		c.wake(scope{"q", "a"}, 1)
		require.Len(t, all.wake, 1)
		require.Empty(t, other.wake)
	})
}

// A blocked enqueue is told of a job that leaves the waiting states. That it looks every second hides a wake that is missing.
func TestBlockedCallIsWoken(t *testing.T) {
	t.Parallel()
	var s Store
	w := s.roomWaiters.park("q")
	s.WakeRoomWaiters(context.Background(), []eventlog.Change{
		{Queue: "other", From: "available", To: "active"}, {Queue: "q", To: "available"}, {Queue: "q", From: "retryable", To: "available"}, {Queue: "q", From: "active", To: "completed"},
	})
	require.Empty(t, w.left)
	s.WakeRoomWaiters(context.Background(), []eventlog.Change{{Queue: "q", From: "scheduled", To: "cancelled"}})
	require.Len(t, w.left, 1)
}
