package queueadmin

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	require.Zero(t, Durations(nil).Percentile(0.5))
	require.Zero(t, make(Durations, 18).Percentile(0.5))
	d := make(Durations, 18)
	d[3] = 10 // from 5 to 10 ms
	require.InDelta(t, 7.5, d.Percentile(0.5), 1e-9)
	require.InDelta(t, 10, d.Percentile(1), 1e-9)
	d[17] = 10
	require.InDelta(t, 10, d.Percentile(0.5), 1e-9)
	require.InDelta(t, 1_800_000, d.Percentile(0.99), 1e-9, "the last range has no end")

	// An estimate is in the range of the true value.
	for range 200 {
		values, counts := make([]float64, 1+rand.IntN(300)), make(Durations, 18)
		for i := range values {
			values[i] = float64(rand.IntN(1 << (1 + rand.IntN(20))))
			counts[bucket(values[i])]++
		}
		slices.Sort(values)
		for _, share := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
			rank := max(0, int(share*float64(len(values))+0.9999)-1)
			i := bucket(values[rank])
			estimate := counts.Percentile(share)
			low, high := 0.0, bounds[len(bounds)-1]
			if i > 0 {
				low = bounds[i-1]
			}
			if i < len(bounds) {
				high = bounds[i]
			}
			require.True(t, estimate >= low && estimate <= high, "%v of %v: %v is not in %v to %v", share, values, estimate, low, high)
		}
	}
}

func bucket(ms float64) int {
	for i, bound := range bounds {
		if ms < bound {
			return i
		}
	}
	return len(bounds)
}

// The ranges of the database are those of Percentile.
func TestBucketsOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	for _, bound := range bounds {
		for _, ms := range []int64{int64(bound) - 1, int64(bound), int64(bound) + 1} {
			var n int
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT ojs.duration_bucket($1)`, ms).Scan(&n))
			require.Equal(t, bucket(float64(ms))+1, n, ms)
		}
	}
	var sum []int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT ojs.durations_add(array_agg(i), array_agg(2 * i)) FROM generate_series(1::bigint, $1) i`, len(bounds)+1).Scan(&sum))
	for i, n := range sum {
		require.EqualValues(t, 3*(i+1), n)
	}
	require.Len(t, sum, len(bounds)+1)
}
