package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOpenLoop(t *testing.T) {
	t.Parallel()
	next := openLoop(100, 50*time.Millisecond)
	first, ok := next()
	require.True(t, ok)
	for n := 1; n < 5; n++ {
		due, ok := next()
		require.True(t, ok)
		require.Equal(t, time.Duration(n)*10*time.Millisecond, due.Sub(first), "the rate does not depend on how long an enqueue takes")
		require.False(t, time.Now().Before(due))
		time.Sleep(15 * time.Millisecond)
	}
	_, ok = next()
	require.False(t, ok)
}

func TestElapsed(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	from := map[jobID]time.Time{{1}: at(10), {2}: at(10), {3}: at(10)}
	to := map[jobID]time.Time{{1}: at(25), {2}: at(5), {4}: at(30)}
	require.ElementsMatch(t, []time.Duration{15 * time.Millisecond, 0}, elapsed(from, to))
	tl := &timeline{answered: map[jobID]time.Time{{1}: at(500), {2}: at(0), {3}: at(2000)}}
	require.InDelta(t, 2, tl.enqueueSeconds(), 1e-9)
	require.Equal(t, []string{"1 jobs are missing, e.g. " + jobID{3}.String()}, problemOfMissing(from, to, "are missing"))
}

// TestLatencyBeginsWhenAnEnqueueIsDue has a server that takes long before it stores a job.
func TestLatencyBeginsWhenAnEnqueueIsDue(t *testing.T) {
	t.Parallel()
	_, url := startFake(t, faults{slowPush: 80 * time.Millisecond})
	cfg := tiny(url, "latency")
	cfg.Rate = 50
	r := measure(t, cfg)
	require.NoError(t, r.err)
	require.GreaterOrEqual(t, r.figures[0].Metrics["p50_ms"].Median, 80.0)
	require.GreaterOrEqual(t, r.figures[0].Metrics["enqueue_p50_ms"].Median, 80.0)
	require.NotContains(t, r.figures[1].Metrics, "enqueue_p50_ms")
}
