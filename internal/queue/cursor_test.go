package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
)

// knowing returns cursors of a queue whose lanes the node knows.
func knowing(name string) *cursors {
	c := newCursors()
	c.rescans(scope{name, ""}).done = true
	return c
}

// claimed ends a claim that got jobs of the first read.
func (c *cursors) claimed(reads []*cursorRead, got int, last int64, full bool) {
	reads[0].got, reads[0].last = got, last
	c.end(reads, full)
}

func plainWant(queue string, slots int) claimRequest {
	return claimRequest{queues: []string{queue}, slots: slots, weights: func(string) weights { return weights{} }}
}

// A job that becomes available while a statement runs may be outside of its snapshot: whatever the statement has found, the
// cursor stays at or below that job.
func TestCursorStaysBelowWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	const announced = 5
	all := []scope{{"q", ""}}
	for name, finish := range map[string]func(c *cursors, reads []*cursorRead){
		"FullClaim":   func(c *cursors, reads []*cursorRead) { c.claimed(reads, 1, 9, true) },
		"EmptyClaim":  func(c *cursors, reads []*cursorRead) { c.end(reads, false) },
		"FailedClaim": func(c *cursors, reads []*cursorRead) { c.fail(reads) },
		"EmptySurvey": func(c *cursors, reads []*cursorRead) { c.endRescan(all, nil, false, 0); c.end(reads, false) },
		"LateSurvey": func(c *cursors, reads []*cursorRead) {
			c.endRescan(all, []dbsqlc.JobFetchRescanRow{{Queue: "q", ReadySeq: 9}}, false, 0)
			c.end(reads, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := knowing("q")
			c.lower(Place{"q", "", 0, announced + 1})
			l := c.queues["q"].cursor("", 0)
			reads, _ := c.begin(plainWant("q", 1))
			c.lower(Place{"q", "", 0, announced})
			finish(c, reads)
			require.EqualValues(t, announced, l.low)
			require.Empty(t, l.reads)
		})
	}

	// A claim skips the jobs that another one has locked. If that one fails, they are available below the cursor.
	t.Run("AFailedClaimMovesItBack", func(t *testing.T) {
		t.Parallel()
		c := knowing("q")
		c.lower(Place{"q", "", 0, 1})
		locking, _ := c.begin(plainWant("q", 1))
		other, _ := c.begin(plainWant("q", 1))
		c.end(other, false)
		c.fail(locking)
		require.EqualValues(t, 1, c.queues["q"].cursor("", 0).low)
	})

	// A claim that began behind a job which committed late cannot raise the cursor over it again.
	t.Run("ASurveyMovesItBackForClaimsInFlight", func(t *testing.T) {
		t.Parallel()
		c := knowing("q")
		c.lower(Place{"q", "", 0, 20})
		reads, _ := c.begin(plainWant("q", 1))
		c.endRescan(all, []dbsqlc.JobFetchRescanRow{{Queue: "q", ReadySeq: 15}}, false, 0)
		c.claimed(reads, 1, 20, true)
		require.EqualValues(t, 15, c.queues["q"].cursor("", 0).low)
	})

	// The level of a lane is forgotten when it has no jobs, but not while a claim reads it: it may find some that another claim has locked.
	t.Run("ALaneStaysWhileAClaimReadsIt", func(t *testing.T) {
		t.Parallel()
		c := knowing("q")
		c.lower(Place{"q", "a", 0, 1})
		l := c.queues["q"].cursor("a", 0)
		locking, _ := c.begin(plainWant("q", 1))
		other, _ := c.begin(plainWant("q", 1))
		c.end(other, false)
		c.lower(Place{"q", "a", 0, 7})
		require.Same(t, l, c.queues["q"].cursor("a", 0))
		c.claimed(locking, 1, 9, true)
		require.EqualValues(t, 7, l.low)
		last, _ := c.begin(plainWant("q", 1))
		c.end(last, false)
		require.Zero(t, c.queues["q"].lanes)
	})

	t.Run("RisesOtherwise", func(t *testing.T) {
		t.Parallel()
		c := knowing("q")
		c.lower(Place{"q", "", 0, 1})
		l := c.queues["q"].cursor("", 0)
		reads, _ := c.begin(plainWant("q", 1))
		c.claimed(reads, 1, 9, true)
		require.EqualValues(t, 10, l.low)
		reads, _ = c.begin(plainWant("q", 1))
		c.end(reads, false)
		require.EqualValues(t, noJobs, l.low)
	})
}

// A claim in the transaction of an insert looks for jobs that nobody else can see yet.
func TestOnlyTheClaimOfAnInsertExpectsItsJobs(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]Place{"Plain": {Queue: "q"}, "Lane": {Queue: "q", Lane: "acme/k"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := knowing("q")
			c.newest = 7
			j := &job.Job{Queue: at.Queue, Lane: at.Lane, Priority: at.Priority}
			others := func() []*cursorRead { reads, _ := c.begin(plainWant("q", 1)); return reads }

			inserting := c.beginWith([]*job.Job{j}, plainWant("q", 1))
			require.Len(t, inserting, 1)
			require.EqualValues(t, 8, inserting[0].low)
			require.Empty(t, others(), "the insert is not committed")
			second := c.beginWith([]*job.Job{j}, plainWant("q", 1))
			require.Len(t, second, 1, "another insert expects its own")

			c.claimed(inserting, 1, 8, true)
			require.Empty(t, others(), "the claim took the job")
			at.Seq = 9
			c.lower(at) // the second insert has committed, and its claim took an older job
			c.claimed(second, 1, 5, true)
			left := others()
			require.Len(t, left, 1)
			require.EqualValues(t, 9, left[0].low)
		})
	}

	t.Run("LevelWithJobs", func(t *testing.T) {
		t.Parallel()
		c := knowing("q")
		c.lower(Place{"q", "", 0, 3})
		c.newest = 7
		reads := c.beginWith([]*job.Job{{Queue: "q"}}, plainWant("q", 1))
		require.EqualValues(t, 3, reads[0].low, "older jobs come first")
		c.fail(reads)
		later, _ := c.begin(plainWant("q", 1))
		require.Len(t, later, 1)
	})
}

// A worker that became quiet after its fetch began gets no job of the claim that it answers.
func TestAssignSlots(t *testing.T) {
	t.Parallel()
	claimants := []claimant{{worker: "a", count: 2}, {worker: "quiet", count: 2}, {worker: "b", count: 1}}
	require.Equal(t, []int{0, 2, 0}, assignSlots(claimants, func(worker string) bool { return worker == "quiet" }))
	require.Equal(t, []int{0, 1, 2, 0, 1}, assignSlots(claimants, func(string) bool { return false }))
}

// A waiter that got no jobs from the enqueue that took it claims for itself. A job that commits during that claim may be outside of
// its snapshot, and has to wake the waiter.
func TestWaiterThatWasTakenIsWokenDuringItsOwnClaim(t *testing.T) {
	t.Parallel()
	c := knowing("q")
	c.lower(Place{"q", "", 0, 1})
	w := c.park(job.Fetch{Queues: []string{"q"}}, 1)
	c.offer(w)
	taken := c.take([]*job.Job{{Queue: "q"}}, func([]string) bool { return false })
	require.Equal(t, []*waiter{w}, taken)
	c.wake(scope{"q", ""}, 1)
	require.Empty(t, w.wake, "it gets an answer in any case")
	hand(taken, nil)
	require.Nil(t, <-w.handed)
	require.True(t, c.withdraw(w))
	c.wake(scope{"q", ""}, 1)
	require.Len(t, w.wake, 1)
}
