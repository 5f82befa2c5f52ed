package ojs

import (
	"testing"

	"github.com/ojsd/ojsd/ojs/internal/require"
)

func TestJobState(t *testing.T) {
	t.Parallel()
	for s, terminal := range map[JobState]bool{
		StateScheduled: false, StatePending: false, StateAvailable: false, StateActive: false, StateRetryable: false,
		StateCompleted: true, StateCancelled: true, StateDiscarded: true,
	} {
		require.True(t, s.Valid(), s)
		require.Equal(t, terminal, s.Terminal(), s)
	}
	for _, s := range []JobState{"", "Available", "running", "failed"} {
		require.False(t, s.Valid(), s)
		require.False(t, s.Terminal(), s)
	}
}
