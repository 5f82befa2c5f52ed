package eventlog

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTypePatterns(t *testing.T) {
	t.Parallel()

	t.Run("TranslatesExactAliases", func(t *testing.T) {
		t.Parallel()
		got, err := ParseTypePatterns("types", []string{"worker.registered", "worker.deregistered", "worker.stale", "job.retried", "job.dead", "job.dead*", ""})
		require.NoError(t, err)
		require.Equal(t, []string{"worker.started", "worker.stopped", "worker.stopped", "job.retrying", "job.discarded", "job.dead*"}, got)
	})

	t.Run("Accepts", func(t *testing.T) {
		t.Parallel()
		for _, p := range []string{"*", "job.*", "job.c*", "j*", "job.completed", "workflow.step_completed", "x.y2.z", strings.Repeat("a", 128)} {
			_, err := ParseTypePatterns("types", []string{p})
			require.NoError(t, err, p)
		}
	})

	t.Run("Refuses", func(t *testing.T) {
		t.Parallel()
		for _, p := range []string{
			"job:completed", "Job.completed", "job.", ".job", "job..x", "*.completed", "job.*.x", "**", "job.**", "2job", "_x", "job.2", ".*", "job-x", strings.Repeat("a", 129),
		} {
			_, err := ParseTypePatterns("event_types", []string{"job.*", p})
			var bad *PatternError
			require.ErrorAs(t, err, &bad, p)
			require.Equal(t, PatternError{"event_types", p}, *bad)
		}
	})
}

func TestParseSourcePatterns(t *testing.T) {
	t.Parallel()
	got, err := ParseSourcePatterns("sources", []string{"ojs://ojs/api", "", "ojs://ojs/workers/*", "*"})
	require.NoError(t, err)
	require.Equal(t, []string{"ojs://ojs/api", "ojs://ojs/workers/*", "*"}, got)
	_, err = ParseSourcePatterns("sources", []string{"ojs://*/api"})
	require.Error(t, err)
}

func TestMatchPattern(t *testing.T) {
	t.Parallel()
	require.True(t, MatchPattern("*", "anything"))
	require.True(t, MatchPattern("job.*", "job.completed"))
	require.False(t, MatchPattern("job.*", "jobx.completed"))
	require.True(t, MatchPattern("job.completed", "job.completed"))
	require.False(t, MatchPattern("job.complete", "job.completed"))
	require.Equal(t, []string{`workflow.step\_completed`, `100\%\\%`}, LikePatterns([]string{"workflow.step_completed", `100%\*`}))
}
