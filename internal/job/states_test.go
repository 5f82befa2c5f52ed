package job

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// TestStatesAreThoseOfSQL: statements and functions that name the states of waiting or live jobs name all of them.
func TestStatesAreThoseOfSQL(t *testing.T) {
	t.Parallel()
	sorted := func(states []ojs.JobState) []ojs.JobState { return slices.Sorted(slices.Values(states)) }
	waiting, live := sorted(WaitingStates), sorted(LiveStates)
	list := regexp.MustCompile(`\('[a-z]+'(?:, '[a-z]+')+\)|'\{[a-z]+(?:,[a-z]+)+\}'`)
	found := map[string]int{}
	for _, pattern := range []string{"../../queries/*.sql", "../../migrations/*.sql"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, words := range list.FindAllString(string(text), -1) {
				var states []ojs.JobState
				for _, word := range regexp.MustCompile(`[a-z]+`).FindAllString(words, -1) {
					states = append(states, ojs.JobState(word))
				}
				known := slices.IndexFunc(states, func(s ojs.JobState) bool { return !s.Valid() }) < 0
				switch states = sorted(states); {
				case !known, len(states) < 3, len(states) == 8: // of something else, two states, or all
				case slices.Equal(states, waiting):
					found["waiting"]++
				case slices.Equal(states, live):
					found["live"]++
				default: // why a job waits (ojs.explain): not for a worker, which is told of available ones
					require.Equal(t, []ojs.JobState{ojs.StatePending, ojs.StateRetryable, ojs.StateScheduled}, states, "%s: %s", file, words)
					require.True(t, strings.HasSuffix(file, "administration.sql"), "%s: %s", file, words)
				}
			}
		}
	}
	require.Equal(t, map[string]int{"waiting": 7, "live": 6}, found)
}
