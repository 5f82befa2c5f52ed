package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSidesTakeTurns(t *testing.T) {
	t.Parallel()
	alone := &runner{}
	require.Equal(t, []*runner{alone}, alone.sides(0))
	require.Equal(t, []*runner{alone}, alone.sides(1))

	this := &runner{other: alone}
	require.Equal(t, []*runner{this, alone}, this.sides(0))
	require.Equal(t, []*runner{alone, this}, this.sides(1))
	require.Equal(t, []*runner{this, alone}, this.sides(2))
}

func TestRatios(t *testing.T) {
	t.Parallel()
	side := func(name string, rates, left [2]float64) (rounds []figure) {
		for i := range rates {
			rounds = append(rounds, figure{
				Name: "mixed", Params: []param{{"server", name}, {"workers", 8}}, Jobs: 10,
				Metrics: []metric{{"jobs_per_s", rates[i]}, {"left", left[i]}},
			})
		}
		return rounds
	}
	s := summarize(ratios(side("this", [2]float64{300, 500}, [2]float64{1, 1}), side("against", [2]float64{200, 250}, [2]float64{1, 0})))
	require.Equal(t, "mixed.ratio", s.Figure)
	require.Equal(t, map[string]any{"workers": 8}, s.Params)
	require.Equal(t, map[string]spread{"jobs_per_s_ratio": {Median: 1.75, Min: 1.5, Max: 2}}, s.Metrics, "nothing is divided by 0")
	require.Equal(t, 40, s.Jobs)
	require.Contains(t, s.text(), "jobs per s ×1.75 [1.50 … 2] ")
}

func TestCPUTime(t *testing.T) {
	t.Parallel()
	var none *processes
	require.Empty(t, none.cpuTime().perJob(10))
	require.Empty(t, (&processes{servers: []int{-1}, postmaster: -1}).cpuTime().perJob(10))
	require.Len(t, cpuTime{known: true}.perJob(1), 2, "every round has the same metrics")
	require.Empty(t, cpuTime{server: time.Second, known: true}.perJob(0))
	require.Equal(t, []metric{{"server_cpu_us_per_job", 200}, {"postgres_cpu_us_per_job", 50}},
		cpuTime{2 * time.Millisecond, 500 * time.Microsecond, true}.perJob(10))

	// This process is a child of its parent, so the parent's family has used at least as much.
	self := &processes{servers: []int{os.Getpid()}, postmaster: os.Getppid()}
	for start := time.Now(); time.Since(start) < 10*time.Second && self.cpuTime().server < 100*time.Millisecond; {
	}
	used := self.cpuTime()
	require.GreaterOrEqual(t, used.server, 100*time.Millisecond)
	require.GreaterOrEqual(t, used.postgres, used.server)
}

func TestSyncTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	median, err := syncTime(dir, 20*time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, median)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = syncTime(dir+"/absent", time.Millisecond)
	require.Error(t, err)
}
