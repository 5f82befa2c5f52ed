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
