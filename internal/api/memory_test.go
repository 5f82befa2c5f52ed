package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	const all = 128 << 20
	var m api.Memory
	require.NoError(t, m.Take(all-10))
	require.Error(t, m.Take(11))
	require.NoError(t, m.Take(10), "what was refused takes no room")
	require.Error(t, m.Take(1))
	m.Free(all - 10)
	require.NoError(t, m.Take(all-10))
	require.Error(t, m.Take(1))
}
