package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
)

// A stream takes a quarter of a second's events at a time, and at least one.
func TestStreamsBatch(t *testing.T) {
	t.Parallel()
	for rate, want := range map[int]int{0: 256, 1: 1, 3: 1, 8: 2, 1000: 250, 10_000: 256} {
		require.Equal(t, want, api.NewStreams(config.Realtime{RateLimitPerSecond: rate}).Batch(), rate)
	}
}

func TestStreamsAdmit(t *testing.T) {
	t.Parallel()
	s := api.NewStreams(config.Realtime{MaxConnections: 3, MaxConnectionsPerClient: 2})
	admit := func(client string) (leave func()) {
		leave, err := s.Admit(client)
		require.NoError(t, err)
		return leave
	}
	refused := func(client, because string) {
		_, err := s.Admit(client)
		require.ErrorContains(t, err, because)
	}
	first := admit("a")
	admit("a")
	refused("a", "This client has 2 open streams")
	other := admit("b")
	refused("c", "This node has 3 open streams")
	first()
	second := admit("a")
	other()
	refused("a", "This client has 2 open streams")
	second()
	admit("a")
	require.Equal(t, 2, s.Count())
}
