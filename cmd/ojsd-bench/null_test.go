package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNull(t *testing.T) {
	t.Parallel()

	t.Run("MeasuresAChildProcess", func(t *testing.T) {
		t.Parallel()
		r := measure(t, tiny("http://127.0.0.1:1", "null"))
		require.NoError(t, r.err)
		require.Equal(t, []string{"null", "null"}, r.names())
		require.Positive(t, r.figures[0].Metrics["requests_per_s"].Median)
		require.Positive(t, r.figures[0].Jobs)
	})

	t.Run("ReportsAServerThatDoesNotStart", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("http://127.0.0.1:1", "null")
		cfg.executable = "/bin/false"
		require.ErrorContains(t, measure(t, cfg).err, "no address: exit status 1")
	})
}
