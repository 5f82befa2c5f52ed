package queueconfig_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

func TestFollower(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := domaintest.New(t)
		startstoptest.Stress(t.Context(), t, queueconfig.NewMaintenanceFollower(b.Archetype, b.Maintenance))
	})

	// A node that misses a notification learns of a change within a second, by the reads that its fetches ask for.
	t.Run("LooksWhileItIsAsked", func(t *testing.T) {
		t.Parallel()
		b := domaintest.New(t)
		ended := make(chan struct{}, 1)
		away := b.Node(func(c *domaintest.Config) {
			c.Listening, c.MaintenanceEnded = func() bool { return true }, func() { ended <- struct{}{} }
		})
		follower := queueconfig.NewMaintenanceFollower(away.Archetype, away.Maintenance)
		require.NoError(t, follower.Start(t.Context()))
		defer follower.Stop()
		become := func(on bool) {
			t.Helper()
			require.Eventually(t, func() bool { return away.Maintenance.On() == on }, domaintest.WaitFor, time.Millisecond)
		}
		_, err := b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{Reason: "upgrade", By: "jo"})
		require.NoError(t, err)
		require.True(t, b.Maintenance.On(), "at once on its node")
		become(true)
		require.NoError(t, b.Maintenance.End(t.Context(), "jo"))
		require.False(t, b.Maintenance.On())
		become(false)
		domaintest.Await(t, ended)

		_, err = b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{Lasts: 5 * time.Second})
		require.NoError(t, err)
		become(true) // from here on nobody asks
		domaintest.Await(t, ended)
		require.False(t, away.Maintenance.On())
		require.False(t, b.Maintenance.On())
		state, err := b.Maintenance.Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, queueconfig.MaintenanceState{}, state)
	})
}

// Whoever turned the switch on, and when, stays; one that has ended by itself begins anew.
func TestStartAgain(t *testing.T) {
	t.Parallel()
	b := domaintest.New(t)
	first, err := b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{Reason: "one", By: "jo", Lasts: time.Hour})
	require.NoError(t, err)
	require.Equal(t, time.Hour, first.EndsAt.Sub(first.StartedAt))
	second, err := b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{Reason: "two", By: "al"})
	require.NoError(t, err)
	require.Equal(t, first.StartedAt, second.StartedAt)
	require.Equal(t, "jo two", second.StartedBy+" "+second.Reason)
	require.True(t, second.EndsAt.IsZero())
	b.Exec(`UPDATE ojs.maintenance SET ends_at = now() - interval '1 second'`)
	third, err := b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{By: "al"})
	require.NoError(t, err)
	require.True(t, third.StartedAt.After(first.StartedAt))
	require.Equal(t, "al", third.StartedBy)
}
