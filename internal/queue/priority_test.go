package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

func (b *bundle) prioritize(id [16]byte, priority int16) *job.Record {
	b.T.Helper()
	stored, _, err := b.SetPriority(b.T.Context(), id, priority)
	require.NoError(b.T, err)
	require.Equal(b.T, priority, stored.Priority)
	return stored
}

func TestSetPriority(t *testing.T) {
	t.Parallel()

	t.Run("HoldsForTheNextFetch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs := b.add("q", 0, "1", "2", "3", "4")
		require.Equal(t, []string{`["1"]`}, args(b.Fetched(1, "q"))) // the cursor has passed it
		stored, previous, err := b.SetPriority(t.Context(), jobs[2].ID, 10)
		require.NoError(t, err)
		require.Zero(t, previous)
		require.Equal(t, jobs[2].ReadySeq, stored.ReadySeq)
		require.Equal(t, []string{`["3"]`, `["2"]`}, args(b.Fetched(2, "q")))
		b.RequireCounts()
	})

	t.Run("KeepsThePlaceAmongThoseOfThePriority", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		old := b.add("q", -5, "old")[0]
		b.add("q", 0, "1", "2")
		require.Equal(t, []string{`["1"]`}, args(b.Fetched(1, "q")))
		b.prioritize(old.ID, 0)
		b.add("q", 0, "3")
		require.Equal(t, []string{`["old"]`, `["2"]`, `["3"]`}, args(b.Fetched(5, "q")))
	})

	t.Run("OnAnotherNodeWhenPublished", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		b := a.node()
		jobs := a.add("q", 0, "1", "2", "3")
		a.add("q", 7, "7")
		require.Equal(t, []string{`["7"]`}, args(b.Fetched(1, "q")))
		require.Equal(t, []string{`["1"]`}, args(b.Fetched(1, "q"))) // b knows now that priority 7 is empty
		a.prioritize(jobs[2].ID, 7)
		require.Equal(t, "7 priority.changed", a.One(`SELECT priority || ' ' || type FROM ojs.events WHERE ready_seq = $1 AND internal`, jobs[2].ReadySeq.Int64),
			"what the relay lists for other nodes")
		b.NotifyReady(queue.Place{Queue: "q", Priority: 7, Seq: jobs[2].ReadySeq.Int64})
		require.Equal(t, []string{`["3"]`}, args(b.Fetched(1, "q")))
	})

	t.Run("OfScheduledJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("q", 0, "1")
		later := domaintest.NewJob("q")
		later.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour}
		id := b.Enqueued(later)[0].ID
		require.Equal(t, "scheduled", b.prioritize(id, 3).State)
		b.Exec(`UPDATE ojs.jobs SET due_at = now() WHERE id = $1`, id)
		_, err := b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, id, b.Fetched(1, "q")[0].ID)
	})

	t.Run("WritesOneInternalEventForAChange", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.add("q", 0, "1")[0].ID
		b.prioritize(id, 4)
		_, previous, err := b.SetPriority(t.Context(), id, 4)
		require.NoError(t, err)
		require.EqualValues(t, 4, previous)
		require.Equal(t, []string{"job.enqueued>available", "priority.changed"}, b.EventTypes(id))
		require.Equal(t, `{"priority":4,"previous_priority":0}`, b.One(`SELECT data::text FROM ojs.events WHERE type = 'priority.changed'`))
	})

	t.Run("InOtherStatesIsAConflict", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.add("q", 0, "1")[0].ID
		b.Fetched(1, "q")
		_, _, err := b.SetPriority(t.Context(), id, 4)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		_, err = b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1})
		require.NoError(t, err)
		_, _, err = b.SetPriority(t.Context(), id, 4)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		_, _, err = b.SetPriority(t.Context(), job.NewID(), 4)
		domaintest.RequireCode(t, err, ojs.ErrNotFound)
		waiting := domaintest.NewJob("q")
		waiting.Pending = true
		_, _, err = b.SetPriority(t.Context(), b.Enqueued(waiting)[0].ID, 4)
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
	})

	t.Run("WaitsForALockedRow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs := b.add("q", 0, "1", "2")
		tx := b.Lock(jobs[0].ID)
		done := make(chan error, 1)
		go func() {
			_, _, err := b.SetPriority(context.Background(), jobs[0].ID, 4)
			done <- err
		}()
		b.prioritize(jobs[1].ID, 3)
		require.Empty(t, done)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, domaintest.Await(t, done))
		require.Equal(t, jobs[0].ID, b.Fetched(1, "q")[0].ID)
	})
}

// Two nodes fetch while a third changes priorities: each job is claimed once, and no change is made to a claimed one.
func TestSetPriorityBesideClaims(t *testing.T) {
	t.Parallel()
	a := setup(t)
	nodes := []*bundle{a, a.node()}
	var names []string
	for range 60 {
		names = append(names, "n")
	}
	jobs := a.add("q", 0, names...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	claimed := map[[16]byte]int16{}
	for _, n := range nodes {
		wg.Go(func() {
			for range 30 {
				got, err := n.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w"})
				mu.Lock()
				for _, j := range got {
					claimed[j.ID] = j.Priority
				}
				mu.Unlock()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	changed := map[[16]byte]int16{}
	third := a.node()
	for i, j := range jobs {
		if _, _, err := third.SetPriority(t.Context(), j.ID, int16(i%5)); err == nil {
			changed[j.ID] = int16(i % 5)
		}
	}
	wg.Wait()
	a.NotifyAll()
	for _, j := range a.Fetched(100, "q") {
		claimed[j.ID] = j.Priority
	}
	require.Len(t, claimed, len(jobs))
	for id, p := range changed {
		require.Equal(t, p, claimed[id])
	}
	a.RequireCounts()
}

func TestPriorityStats(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stats, err := b.PriorityStats(t.Context(), "q")
	require.NoError(t, err)
	require.Equal(t, queue.PriorityStats{Counts: []queue.PriorityCount{}}, stats)
	for priority := -100; priority <= 100; priority++ { // those of another queue are neither counted nor take room
		b.add("other", int16(priority), "1")
	}
	b.add("q2", 10, "1", "2", "3")
	b.add("q2", 0, "4", "5")
	b.add("q2", -100, "6")
	b.Fetched(1, "q2")
	require.Eventually(t, func() bool { // a reading that took long on a busy machine is shown again
		stats, err = b.PriorityStats(t.Context(), "q2")
		require.NoError(t, err)
		return stats.Total == 5
	}, domaintest.WaitFor, time.Millisecond)
	require.Equal(t, queue.PriorityStats{Counts: []queue.PriorityCount{{10, 2}, {0, 2}, {-100, 1}}, Total: 5}, stats)

	// Each lane is found, whatever the priorities of those before and behind it.
	var jobs []*job.Job
	for i, priority := range []int16{0, 7, -3, 5} {
		for _, p := range []int16{priority, priority - 20} {
			j := domaintest.NewJob("lanes")
			j.Lane, j.Priority = string(rune('a'+i)), p
			jobs = append(jobs, j)
		}
	}
	b.Enqueued(jobs...)
	stats, err = b.PriorityStats(t.Context(), "lanes")
	require.NoError(t, err)
	require.Equal(t, []queue.PriorityCount{{7, 1}, {5, 1}, {0, 1}, {-3, 1}, {-13, 1}, {-15, 1}, {-20, 1}, {-23, 1}}, stats.Counts)
	require.False(t, stats.Estimated)
}
