package domaintest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// LockedCall is a call of worker w1 for an active job, and the state of the job after the call.
type LockedCall struct {
	Do   func(ctx context.Context, b *Bundle, id [16]byte) error
	Then ojs.JobState
}

// TestLocked runs a subtest for each call. While another transaction has locked the row of a job, the call for that job waits,
// and the same call for another job does not.
func TestLocked(t *testing.T, calls map[string]LockedCall) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := New(t)
			b.Enqueued(NewJob("q"), NewJob("q"))
			jobs := b.Fetched(2, "q")
			require.Len(t, jobs, 2)
			tx := b.Lock(jobs[0].ID)

			locked := make(chan error, 1)
			go func() { locked <- call.Do(t.Context(), b, jobs[0].ID) }()
			free := make(chan error, 1)
			go func() { free <- call.Do(t.Context(), b, jobs[1].ID) }()
			select {
			case err := <-free:
				require.NoError(t, err)
			case <-time.After(WaitFor):
				require.Fail(t, "the call waits for the row of another job")
			}
			require.Equal(t, call.Then, b.State(jobs[1].ID))
			require.Empty(t, locked)

			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-locked)
			require.Equal(t, call.Then, b.State(jobs[0].ID))
		})
	}
}
