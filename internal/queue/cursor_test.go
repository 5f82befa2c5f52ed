package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A job that becomes available while a statement runs may be outside of its snapshot: whatever the statement has found, the
// cursor stays at or below that job.
func TestCursorStaysBelowWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	const announced = 5
	for name, finish := range map[string]func(c *cursors, probes []*probe){
		"FullClaim":   func(c *cursors, probes []*probe) { c.end(probes, map[*probe]int64{probes[0]: 9}, true) },
		"EmptyClaim":  func(c *cursors, probes []*probe) { c.end(probes, nil, false) },
		"FailedClaim": func(c *cursors, probes []*probe) { c.fail(probes) },
		"EmptySurvey": func(c *cursors, probes []*probe) { c.endSurvey(survey{[]string{"q"}, probes, time.Time{}}, nil) },
		"LateSurvey": func(c *cursors, probes []*probe) {
			c.endSurvey(survey{[]string{"q"}, probes, time.Time{}}, []Place{{"q", "", 0, 9}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cursors{queues: map[string]*queueCursor{"q": {surveyed: true}}}
			l := c.queues["q"].level("", 0)
			l.low = announced + 1
			probes := c.begin([]string{"q"})
			c.lower(Place{"q", "", 0, announced})
			finish(c, probes)
			require.EqualValues(t, announced, l.low)
			require.Empty(t, l.probes)
		})
	}

	// A claim skips the jobs that another one has locked. If that one fails, they are available below the cursor.
	t.Run("AFailedClaimMovesItBack", func(t *testing.T) {
		t.Parallel()
		c := &cursors{queues: map[string]*queueCursor{"q": {surveyed: true}}}
		l := c.queues["q"].level("", 0)
		l.low = 1
		locking := c.begin([]string{"q"})
		c.end(c.begin([]string{"q"}), nil, false)
		c.fail(locking)
		require.EqualValues(t, 1, l.low)
	})

	t.Run("RisesOtherwise", func(t *testing.T) {
		t.Parallel()
		c := &cursors{queues: map[string]*queueCursor{"q": {surveyed: true}}}
		l := c.queues["q"].level("", 0)
		l.low = 1
		probes := c.begin([]string{"q"})
		c.end(probes, map[*probe]int64{probes[0]: 9}, true)
		require.EqualValues(t, 10, l.low)
		c.end(c.begin([]string{"q"}), nil, false)
		require.EqualValues(t, noJobs, l.low)
	})
}

// A worker that became quiet after its fetch began gets no job of the claim that it shares.
func TestAssignSlots(t *testing.T) {
	t.Parallel()
	claimants := []claimant{{worker: "a", count: 2}, {worker: "quiet", count: 2}, {worker: "b", count: 1}}
	require.Equal(t, []int{0, 2, 0}, assignSlots(claimants, func(worker string) bool { return worker == "quiet" }))
	require.Equal(t, []int{0, 1, 2, 0, 1}, assignSlots(claimants, func(string) bool { return false }))
}
