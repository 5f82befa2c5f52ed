package embedpg

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStandby(t *testing.T) {
	t.Parallel()
	primary := start(t, Config{DataDir: newDir(t)})
	standby, err := primary.StartStandby(t.Context(), Config{DataDir: newDir(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Stop(context.Background())) })
	require.True(t, query[bool](t, standby.URL("postgres"), "SELECT pg_is_in_recovery()"))

	keep(t, primary.URL("postgres"), 7)
	require.Eventually(t, func() bool {
		return query[bool](t, standby.URL("postgres"), "SELECT to_regclass('kept') IS NOT NULL")
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, primary.Kill())
	require.True(t, query[bool](t, standby.URL("postgres"), "SELECT pg_promote()"))
	require.Equal(t, 7, query[int](t, standby.URL("postgres"), "UPDATE kept SET n = n RETURNING n"))

	require.NoError(t, standby.Restart(t.Context()))
	require.False(t, query[bool](t, standby.URL("postgres"), "SELECT pg_is_in_recovery()"))
}
