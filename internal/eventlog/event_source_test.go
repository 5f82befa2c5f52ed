package eventlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorkerSource compares the two places that name a worker as the source of an event: a worker whose id they encode differently
// would have two sources, and a filter would find a part of its events.
func TestWorkerSource(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	for _, id := range []string{"", "w-1", "Host_2.example~x", "host:1", "a@b", "a/b", "a b", "100%", "$&+=,;?#", "Wörker", "\u65e5"} {
		var inSQL string
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT ojs.worker_source($1)", id).Scan(&inSQL))
		require.Equal(t, inSQL, WorkerSource(id), id)
	}
	require.Equal(t, "workers/host%3A1", WorkerSource("host:1"))
}
