package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
)

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
