package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// A claim has as many jobs as it wants if there are so many, in few statements.
func TestSpareLanes(t *testing.T) {
	t.Parallel()

	t.Run("LanesWithFewerJobsThanTheirWeight", func(t *testing.T) {
		t.Parallel()
		for _, tenants := range []bool{false, true} {
			m := newModel()
			m.weights = weights{ofTenants: tenants, of: map[string]int64{}}
			for n := range 500 {
				name := fmt.Sprint("n", n)
				m.weights.of[name] = 1000
				at := place{"/" + name, 0}
				if tenants {
					at.lane = name
				}
				m.add(at, 1, true)
			}
			for _, slots := range []int{1, 7, 300} {
				require.Len(t, m.claim(slots, ""), slots)
				require.LessOrEqual(t, m.statements, 4, "slots %d, tenants %t", slots, tenants)
			}
			require.Len(t, m.claim(1000, ""), 192)
		}
	})

	t.Run("ATenantWithManyLanesFillsTheClaim", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.add(place{"few", 0}, 1, true)
		for n := range 40 {
			m.add(place{job.Lane("many", fmt.Sprint(n)), 0}, 1, true)
		}
		require.Len(t, m.claim(20, ""), 20)
		require.LessOrEqual(t, m.statements, 2)
		require.Len(t, m.claim(20, "many"), 20)
		require.Equal(t, 1, m.statements)
	})

	// Each of two tenants has more lanes than its share of a claim, and the third one has no jobs although the node thinks so.
	t.Run("SpareLanesAreThoseOfAllTenantsInTurn", func(t *testing.T) {
		t.Parallel()
		for slots := 1; slots <= minLookahead; slots++ {
			m := newModel()
			m.weights = weights{ofTenants: true, of: map[string]int64{"gold": 3, "empty": 1000}}
			m.add(place{"empty", 0}, 1, true)
			m.jobs[place{"empty", 0}] = nil
			for n := range 50 {
				m.add(place{job.Lane("gold", fmt.Sprint(n)), 0}, 1, true)
				m.add(place{job.Lane("basic", fmt.Sprint(n)), 0}, 1, true)
			}
			var got []string
			for _, lane := range lanes(m.claim(slots, "")) {
				got = append(got, job.TenantOf(lane))
			}
			require.Equal(t, []int{slots - slots/4, slots / 4}, []int{count(got, "gold"), count(got, "basic")})
			require.Equal(t, 1, m.statements)
		}
	})

	t.Run("ASpareLaneThatGaveAJobHasHadItsTurn", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.add(place{"empty", 0}, 1, true)
		m.jobs[place{"empty", 0}] = nil
		for _, lane := range []string{"a", "b", "c"} {
			m.add(place{lane, 0}, 10, true)
		}
		var got []string
		for range 6 {
			got = append(got, lanes(m.claim(1, ""))...)
		}
		require.Equal(t, []string{"a", "b", "c", "a", "b", "c"}, got)
	})
}
