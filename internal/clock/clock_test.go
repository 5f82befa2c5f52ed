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
	clock.Set(database)
	first := clock.Now()
	require.WithinDuration(t, database, first, time.Minute)
	require.False(t, clock.Now().Before(first))

	clock.Set(database.Add(2 * time.Hour)) // another database
	require.WithinDuration(t, database.Add(2*time.Hour), clock.Now(), time.Minute)
}

func TestRunning(t *testing.T) {
	t.Parallel()
	first := clock.Running()
	require.Positive(t, first)
	require.GreaterOrEqual(t, clock.Running(), first)
}
