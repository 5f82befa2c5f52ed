package queue

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
)

// model is a queue in memory, claimed from by the rules of JobFetch.
type model struct {
	*cursors

	jobs       map[place][]int64 // available, by lane and priority, in order
	seq        int64
	weights    weights
	statements int // of the latest claim
}

type place struct {
	lane     string
	priority int16
}

func newModel() *model { return &model{cursors: knowing("q"), jobs: map[place][]int64{}} }

// add makes jobs available. The node hears of them if announced.
func (m *model) add(at place, n int, announced bool) {
	for range n {
		m.seq++
		m.jobs[at] = append(m.jobs[at], m.seq)
		if announced {
			m.lower(Place{"q", at.lane, at.priority, m.seq})
		}
	}
}

// took is one claimed job.
type took struct {
	place
	seq int64
}

// claim does what flushFetch does.
func (m *model) claim(slots int, tenant string) (all []took) {
	m.statements = 0
	for spare := minLookahead; m.statements < maxRounds; spare = min(4*spare, maxLookahead) {
		reads, last := m.begin(claimRequest{[]string{"q"}, tenant, slots - len(all), spare, func(string) weights { return m.weights }})
		if len(reads) == 0 {
			return all
		}
		m.statements++
		jobs := m.fetch(reads, slots-len(all))
		all = append(all, jobs...)
		m.end(reads, len(all) == slots)
		if !last || len(all) == slots {
			return all
		}
	}
	return all
}

// fetch does what JobFetch does, and tally.
func (m *model) fetch(reads []*cursorRead, slots int) (jobs []took) {
	for _, p := range reads {
		at := place{p.cursor.lane, p.cursor.tenantRing.priorityRing.priority}
		for i := 0; i < len(m.jobs[at]) && p.got < p.want && len(jobs) < slots; {
			seq := m.jobs[at][i]
			if seq < p.low {
				i++
				continue
			}
			m.jobs[at] = slices.Delete(m.jobs[at], i, i+1)
			p.got, p.last = p.got+1, seq
			jobs = append(jobs, took{at, seq})
		}
	}
	return jobs
}

// rescan does what Store.rescan does.
func (m *model) rescan(tenant string) {
	for due := []scope{{"q", tenant}}; len(due) > 0; {
		ranges := m.ranges(due)
		var found []dbsqlc.JobFetchRescanRow
		for n := range ranges.Queues {
			from, before := place{ranges.Lanes[n], ranges.Priorities[n]}, ranges.Befores[n]
			for _, at := range slices.SortedFunc(maps.Keys(m.jobs), inOrder) {
				if len(m.jobs[at]) > 0 && inOrder(from, at) < 0 && (at.lane < before || at.lane == from.lane) && len(found) < int(ranges.MaxRows) {
					found = append(found, dbsqlc.JobFetchRescanRow{Scope: ranges.Scopes[n], Queue: "q", Lane: at.lane, Priority: at.priority, ReadySeq: m.jobs[at][0]})
				}
			}
		}
		due = m.endRescan(due, found, len(found) == int(ranges.MaxRows), time.Millisecond)
	}
}

func inOrder(a, b place) int {
	return cmp.Or(cmp.Compare(a.lane, b.lane), int(b.priority)-int(a.priority))
}

// lanes are those of the claimed jobs.
func lanes(jobs []took) (names []string) {
	for _, j := range jobs {
		names = append(names, j.lane)
	}
	return names
}

func TestTurns(t *testing.T) {
	t.Parallel()

	t.Run("ALaneWithFewJobsDoesNotWaitForOneWithMany", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.add(place{"big", 0}, 1000, true)
		m.add(place{"small", 0}, 10, true)
		var got []string
		for range 20 {
			got = append(got, lanes(m.claim(1, ""))...)
		}
		require.Equal(t, 10, count(got, "small"))
		require.Equal(t, []string{"big", "big", "big"}, lanes(m.claim(3, "")))
	})

	t.Run("OneClaimDividesItsJobs", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for _, lane := range []string{"a", "b", "c"} {
			m.add(place{lane, 0}, 100, true)
		}
		got := lanes(m.claim(12, ""))
		for _, lane := range []string{"a", "b", "c"} {
			require.Equal(t, 4, count(got, lane))
		}
	})

	t.Run("WhatIsLeftOverGoesToOtherLanes", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.add(place{"a", 0}, 2, true)
		m.add(place{"b", 0}, 100, true)
		m.add(place{"c", 0}, 1, true)
		require.Len(t, m.claim(50, ""), 50)
		require.Len(t, m.claim(100, ""), 53)
		require.Empty(t, m.claim(1, ""))
	})

	t.Run("PriorityComesBeforeTurns", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.add(place{"a", 5}, 6, true)
		m.add(place{"b", 5}, 1, true)
		m.add(place{"c", 0}, 9, true)
		require.NotContains(t, lanes(m.claim(7, "")), "c")
		require.Equal(t, []string{"c"}, lanes(m.claim(1, "")))
	})

	t.Run("TenantsTakeTurnsBeforeTheirLanes", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for n := range 50 {
			m.add(place{job.Lane("many", fmt.Sprint(n)), 0}, 10, true)
		}
		m.add(place{job.Lane("one", "x"), 0}, 100, true)
		var got []string
		for range 40 {
			got = append(got, lanes(m.claim(1, ""))...)
		}
		require.Equal(t, 20, count(got, "one/x"))
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(got))), 21, "each other lane once")
	})

	t.Run("AClaimThatFailsCostsNoTurn", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for _, lane := range []string{"a", "b", "c"} {
			m.add(place{lane, 0}, 100, true)
		}
		for range 2 {
			reads, _ := m.begin(plainWant("q", 2))
			m.fail(reads)
		}
		require.Equal(t, []string{"a", "b"}, lanes(m.claim(2, "")))
		require.Equal(t, []string{"c", "a"}, lanes(m.claim(2, "")))
	})

	t.Run("LanesBehindACutHaveTheNextTurns", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for _, lane := range []string{"a", "b", "c", "d"} {
			m.add(place{lane, 0}, 100, true)
		}
		reads, _ := m.begin(plainWant("q", 3))
		require.Equal(t, []string{"a"}, lanes(m.fetch(reads, 1))) // a large job, and there is no room for the bytes of another
		m.end(reads, true)
		require.Equal(t, []string{"b", "c", "d"}, lanes(m.claim(3, "")))
	})

	t.Run("Weights", func(t *testing.T) {
		t.Parallel()
		for _, slots := range []int{1, 2, 8} {
			m := newModel()
			m.weights = weights{of: map[string]int64{"gold": 3}}
			m.add(place{"/gold", 0}, 1000, true)
			m.add(place{"/basic", 0}, 1000, true)
			var got []string
			for len(got) < 400 {
				got = append(got, lanes(m.claim(slots, ""))...)
			}
			require.InDelta(t, 300, count(got, "/gold"), 8, "slots %d", slots)

			m = newModel()
			m.weights = weights{ofTenants: true, of: map[string]int64{"gold": 3}}
			m.add(place{"gold", 0}, 1000, true)
			m.add(place{"basic", 0}, 1000, true)
			got = nil
			for len(got) < 400 {
				got = append(got, lanes(m.claim(slots, ""))...)
			}
			require.InDelta(t, 300, count(got, "gold"), 8, "slots %d", slots)
		}
	})

	t.Run("ATenantSeesItsLanesOnly", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for _, lane := range []string{"a", "a/x", "a/y", "a-b", "b", "", "/x"} {
			m.add(place{lane, 0}, 2, false)
		}
		m.rescan("a")
		require.ElementsMatch(t, []string{"a", "a", "a/x", "a/x", "a/y", "a/y"}, lanes(m.claim(100, "a")))
		require.Empty(t, m.claim(1, "b"))
		m.rescan("")
		require.Len(t, m.claim(100, ""), 8)
	})

	t.Run("IdleLanesAreForgotten", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for n := range 1000 {
			m.add(place{fmt.Sprint("t", n), int16(n % 3)}, 1, true)
		}
		require.Len(t, m.claim(1000, ""), 1000)
		require.Empty(t, m.claim(1, ""))
		q := m.queues["q"]
		require.Zero(t, q.lanes)
		for _, r := range q.rings {
			require.Zero(t, r.turns.Len()+r.ready+len(r.tenants))
		}
	})

	t.Run("AQueueWithoutLanesIsOneProbePerPriority", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.add(place{"", 1}, 5, true)
		m.add(place{"", 0}, 5, true)
		reads, last := m.begin(plainWant("q", 1000))
		require.Len(t, reads, 2)
		require.False(t, last)
		require.Equal(t, []int{1000, 1000}, []int{reads[0].want, reads[1].want})
		m.fail(reads)
	})
}

// More lanes than a node remembers: each is served, by rescan after rescan.
func TestMoreLanesThanAreRemembered(t *testing.T) {
	t.Parallel()
	m := newModel()
	m.cursors.maxLanes = 2000
	m.queues = map[string]*queueCursor{}
	m.rescans(scope{"q", ""})
	const all = 7000
	for n := range all {
		m.add(place{fmt.Sprintf("t%06d", n), 0}, 1, true)
	}
	require.LessOrEqual(t, m.queues["q"].lanes, 2000)
	require.True(t, m.queues["q"].crowded)
	got := map[string]bool{}
	for idle := 0; idle < 5; {
		jobs := m.claim(1000, "")
		for _, j := range jobs {
			got[j.lane] = true
		}
		if idle++; len(jobs) > 0 {
			idle = 0
			continue
		}
		m.rescan("")
	}
	require.Len(t, got, all)
}

// Lanes beyond those of one rescan, and beyond those that are remembered, are found although the others never run out of jobs.
func TestLanesBehindFullOnes(t *testing.T) {
	t.Parallel()

	t.Run("OfOneSurvey", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		for n := range maxRescanned + 500 {
			m.add(place{fmt.Sprintf("t%06d", n), 0}, 2, false)
		}
		m.rescan("")
		require.Equal(t, maxRescanned, m.queues["q"].lanes)
		m.rescan("")
		require.Equal(t, maxRescanned+500, m.queues["q"].lanes)
	})

	t.Run("OfTheMemory", func(t *testing.T) {
		t.Parallel()
		m := newModel()
		m.cursors.maxLanes = maxRescanned + 500
		m.queues = map[string]*queueCursor{}
		m.rescans(scope{"q", ""})
		const all = 2*maxRescanned + 500
		for n := range all {
			m.add(place{fmt.Sprintf("t%06d", n), 0}, 50, false)
		}
		got := map[string]bool{}
		for range 40 {
			m.rescan("")
			for _, j := range m.claim(500, "") {
				got[j.lane] = true
			}
		}
		require.Greater(t, len(got), m.cursors.maxLanes, "lanes that were served give up their place")
	})
}

// Random jobs, claims, failures and late commits: everything is claimed once, in the order of its lane and priority, and a
// lane waits for no other longer than that has its turn.
func TestTurnsProperty(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newModel()
		if r.IntN(2) == 0 {
			m.weights = weights{ofTenants: r.IntN(2) == 0, of: map[string]int64{"t1": 3, "k1": 4}}
		}
		tenants, keys, priorities := 1+r.IntN(4), 1+r.IntN(4), 1+r.IntN(3)
		random := func() place {
			return place{job.Lane(pickName(r, "t", tenants), pickName(r, "k", keys)), int16(r.IntN(priorities))}
		}
		latest, total := map[place]int64{}, 0
		check := func(jobs []took) {
			for _, j := range jobs {
				require.Greater(t, j.seq, latest[j.place], "seed %d: order in lane", seed)
				latest[j.place] = j.seq
			}
			total += len(jobs)
		}
		added := 0
		for range 200 {
			switch n := 1 + r.IntN(5); r.IntN(8) {
			case 0, 1, 2:
				m.add(random(), n, true)
				added += n
			case 3: // another node's, whose notification comes late: the rescan finds them
				m.add(random(), n, false)
				added += n
			case 4:
				reads, _ := m.begin(claimRequest{[]string{"q"}, "", n, minLookahead, func(string) weights { return m.weights }})
				m.add(random(), 1, true)
				added++
				m.fail(reads)
			case 5:
				m.rescan(pickName(r, "t", tenants))
				m.rescan("")
			case 6:
				m.rescan("")
				available := 0
				for _, left := range m.jobs {
					available += len(left)
				}
				jobs := m.claim(n, "")
				require.Len(t, jobs, min(n, available), "seed %d", seed)
				check(jobs)
				m.requireStrict(t, jobs, seed)
			case 7:
				m.rescan("")
				tenant := pickName(r, "t", tenants)
				jobs := m.claim(n, tenant)
				check(jobs)
				for _, j := range jobs {
					if tenant != "" {
						require.Equal(t, tenant, job.TenantOf(j.lane), "seed %d", seed)
					}
				}
			}
		}
		m.rescan("")
		for jobs := m.claim(7, ""); len(jobs) > 0; jobs = m.claim(7, "") {
			check(jobs)
		}
		require.Equal(t, added, total, "seed %d: jobs claimed", seed)
		require.Zero(t, m.queues["q"].lanes, "seed %d: idle lanes", seed)
	}
}

// requireStrict: nothing with a higher priority is left.
func (m *model) requireStrict(t *testing.T, jobs []took, seed uint64) {
	t.Helper()
	lowest := int16(math.MaxInt16)
	for _, j := range jobs {
		lowest = min(lowest, j.priority)
	}
	for at, left := range m.jobs {
		require.False(t, len(left) > 0 && at.priority > lowest && len(jobs) > 0, "seed %d: priority %d left", seed, at.priority)
	}
}

// pickName is a name or, sometimes, none.
func pickName(r *rand.Rand, prefix string, n int) string {
	if k := r.IntN(n + 1); k > 0 {
		return fmt.Sprint(prefix, k)
	}
	return ""
}

// While other lanes always have jobs, none is served more than its share between two jobs of a lane.
func TestNoLaneStarves(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := newModel()
		n := 2 + r.IntN(60)
		for k := range n {
			m.add(place{fmt.Sprint("t", k), 0}, 1000, true)
		}
		since := map[string]int{}
		for range 200 {
			jobs := m.claim(1+r.IntN(9), "")
			for lane := range since {
				since[lane] += len(jobs)
			}
			for _, j := range jobs {
				since[j.lane] = 0
			}
			require.LessOrEqual(t, slices.Max(slices.Collect(maps.Values(since))), 2*n+9, "seed %d", seed)
		}
		require.Len(t, since, n)
	}
}

func count(names []string, name string) (n int) {
	for _, other := range names {
		if other == name {
			n++
		}
	}
	return n
}

// A claim that learns of a limit divides what it permits, and gives the other turns back.
func TestCut(t *testing.T) {
	t.Parallel()
	m := newModel()
	for _, lane := range []string{"a", "b", "c"} {
		m.add(place{lane, 0}, 100, true)
	}
	var got []string
	for range 6 {
		reads, _ := m.begin(claimRequest{[]string{"q"}, "", 12, minLookahead, func(string) weights { return m.weights }})
		m.cut(reads, 4)
		jobs := m.fetch(reads, 4)
		require.Len(t, jobs, 4)
		m.end(reads, true)
		got = append(got, lanes(jobs)...)
		for _, lane := range []string{"a", "b", "c"} {
			require.InDelta(t, float64(len(got))/3, count(got, lane), 1, got)
		}
	}
}

// A claim fails whose lanes were forgotten meanwhile: they are found again, and have their turn.
func TestFailedClaimOfForgottenLanes(t *testing.T) {
	t.Parallel()
	m := newModel()
	m.add(place{"a", 0}, 1, true)
	m.add(place{"b", 0}, 1, true)
	locking, _ := m.begin(plainWant("q", 2))
	other, _ := m.begin(plainWant("q", 2))
	m.end(other, false) // all are locked, so it finds none
	m.fail(locking)
	require.ElementsMatch(t, []string{"a", "b"}, lanes(m.claim(2, "")))
	require.Empty(t, m.claim(1, ""))
	require.Zero(t, m.queues["q"].lanes)
}
