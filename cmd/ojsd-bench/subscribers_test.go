package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStreamClient(t *testing.T) {
	t.Parallel()
	const frames = "retry: 3000\n\n" +
		"id: evt_00000000-0000-7000-8000-000000010000\nevent: job.enqueued\ndata: {\"subject\":\"019c0a11-1c02-7b11-9c22-0a1b2c3d4e5f\"}\n\n" +
		":heartbeat\n\n" +
		"id: evt_00000000-0000-7000-8000-000000020000\nevent: job.enqueued\ndata: {\"subject\":\"x\"}\n\n"
	read := func(text string, size int) *streamClient {
		c := &streamClient{keepsJobs: true, base: time.Now()}
		var buf []byte
		for i := 0; i < len(text); i += size {
			buf = c.consume(append(buf, text[i:min(i+size, len(text))]...), uint32(i))
		}
		return c
	}
	for size := 1; size < len(frames); size++ {
		c := read(frames, size)
		require.Len(t, c.at, 2)
		require.Zero(t, c.repeated)
		require.EqualValues(t, 0x20000, c.last)
		require.Equal(t, "019c0a11-1c02-7b11-9c22-0a1b2c3d4e5f", c.jobs[0].String())
		require.Equal(t, jobID{}, c.jobs[1])
	}
	twice := read(frames+frames, 50)
	require.Equal(t, 1, twice.repeated)
	one := read(frames, 50)
	tl := newTimeline()
	require.Contains(t, streamProblems([]*streamClient{one, twice}, tl), "1 streams got events twice or out of order")
	require.Contains(t, streamProblems([]*streamClient{one, twice}, tl), "1 streams got other events than the first one")
	one.jobs[1], tl.answered[one.jobs[0]], tl.answered[jobID{1}] = jobID{1}, time.Now(), time.Now()
	require.Empty(t, streamProblems([]*streamClient{one, one}, tl))
}

func TestStreamDelays(t *testing.T) {
	t.Parallel()
	base := time.Now()
	tl := newTimeline()
	tl.answered[jobID{1}], tl.answered[jobID{2}] = base.Add(2*time.Millisecond), base.Add(3*time.Millisecond)
	first := &streamClient{jobs: []jobID{{1}, {2}}, at: []uint32{1000, 8000}}
	other := &streamClient{at: []uint32{4000}}
	require.Equal(t, []time.Duration{0, 5 * time.Millisecond, 2 * time.Millisecond}, streamDelays([]*streamClient{first, other}, tl, base))
}

func TestWebhookOutcome(t *testing.T) {
	t.Parallel()
	base := time.Now()
	tl := newTimeline()
	tl.answered[jobID{1}], tl.answered[jobID{2}] = base, base.Add(time.Millisecond)
	e := &webhookEndpoint{received: []map[jobID]time.Time{
		{{1}: base.Add(4 * time.Millisecond), {2}: base.Add(3 * time.Millisecond)},
		{{1}: base.Add(9 * time.Millisecond)},
	}}
	delays, problems := e.outcome(tl)
	require.ElementsMatch(t, []time.Duration{4 * time.Millisecond, 2 * time.Millisecond, 9 * time.Millisecond}, delays)
	require.Equal(t, []string{"1 jobs whose event job.enqueued was never delivered, e.g. " + jobID{2}.String()}, problems)
}

func TestSteadyFigure(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	tl := newTimeline()
	for id, times := range map[jobID][2]int{{1}: {9, 18}, {2}: {10, 12}, {3}: {19, 25}, {4}: {20, 40}} {
		tl.due[id], tl.fetched[id] = at(times[0]), at(times[1])
	}
	tl.due[jobID{5}] = at(11) // never fetched
	from := sample{at: at(10), enqueued: 100, acked: 90, cpu: cpuTime{server: time.Second, postgres: 2 * time.Second, known: true}, deadRows: 7}
	to := sample{at: at(20), enqueued: 160, acked: 140, cpu: cpuTime{server: 2 * time.Second, postgres: 5 * time.Second, known: true}, deadRows: 9}
	f := tl.steadyFigure(from, to)
	require.Equal(t, 50, f.Jobs)
	require.Equal(t, []metric{
		{"p50_ms", 2000}, {"p99_ms", 6000}, {"max_ms", 6000}, {"jobs_per_s", 5}, {"backlog", 20}, {"dead_rows", 9},
		{"server_cpu_us_per_job", 20_000}, {"postgres_cpu_us_per_job", 60_000},
	}, f.Metrics)
}
