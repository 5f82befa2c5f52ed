package ojs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJobState(t *testing.T) {
	t.Parallel()
	for s, terminal := range map[JobState]bool{
		StateScheduled: false, StatePending: false, StateAvailable: false, StateActive: false, StateRetryable: false,
		StateCompleted: true, StateCancelled: true, StateDiscarded: true,
	} {
		require.True(t, s.Valid(), s)
		require.Equal(t, terminal, s.Terminal(), s)
	}
	for _, s := range []JobState{"", "Available", "running", "failed"} {
		require.False(t, s.Valid(), s)
		require.False(t, s.Terminal(), s)
	}
}

func TestParseID(t *testing.T) {
	t.Parallel()
	const text = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"
	id, ok := ParseID(text)
	require.True(t, ok)
	require.Equal(t, text, FormatID(id))
	for _, prefix := range []string{"job_", "wf_"} {
		again, ok := ParseID(prefix + text)
		require.True(t, ok)
		require.Equal(t, id, again)
	}
	for _, bad := range []string{
		"", "x", "job_", "job_job_" + text, "job_wf_" + text, "019A3C10-5A00-7B11-9C22-0A1B2C3D4E5F", "019a3c10-5a00-4b11-9c22-0a1b2c3d4e5f",
		"019a3c10-5a00-7b11-7c22-0a1b2c3d4e5f", "019a3c10-5a00-7b11-cc22-0a1b2c3d4e5f", "019a3c105a007b119c220a1b2c3d4e5f", text + "0", text[:35],
		"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5g", "019a3c10_5a00-7b11-9c22-0a1b2c3d4e5f", " " + text[1:],
	} {
		_, ok := ParseID(bad)
		require.False(t, ok, bad)
	}
	_, ok = ParseUUIDv7("job_" + text)
	require.False(t, ok)
}

func TestFormatTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 5, 2, 1, 120_999_999, time.FixedZone("", 7200))
	require.Equal(t, "2026-05-04T03:02:01.120Z", FormatTime(at))
}
