package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/clock"
)

func TestNow(t *testing.T) {
	t.Parallel()
	require.WithinDuration(t, time.Now(), clock.Now(), time.Minute) // nothing is known of a database

	database := time.Now().Add(-time.Hour)
	clock.Set(database, time.Now().Add(-2*time.Second))
	first := clock.Now()
	require.WithinRange(t, first, database.Add(time.Second), time.Now().Add(time.Second-time.Hour), "in the middle of the round trip")
	require.False(t, clock.Now().Before(first))

	clock.Set(first.Add(-2*time.Second), time.Now().Add(-10*time.Second)) // an answer that was read late
	require.False(t, clock.Now().Before(first))
	second := clock.Now()
	clock.Set(second.Add(-time.Second), time.Now().Add(-500*time.Millisecond)) // one that shows that the clock is ahead
	require.True(t, clock.Now().Before(second))

	clock.Set(time.Now(), time.Now()) // another database
	require.WithinDuration(t, time.Now(), clock.Now(), time.Minute)
}

func TestRunning(t *testing.T) {
	t.Parallel()
	first := clock.Running()
	require.Positive(t, first)
	require.GreaterOrEqual(t, clock.Running(), first)
}
