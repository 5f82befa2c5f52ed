package loop_test

import (
	"context"
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// start starts the timer.
func (b *bundle) start() {
	b.T.Helper()
	require.NoError(b.T, b.Timer.Start(b.T.Context()))
	b.T.Cleanup(b.Timer.Stop)
}

func (b *bundle) enqueue(in time.Duration) [16]byte {
	b.T.Helper()
	j := &job.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`)}
	if in > 0 {
		j.ScheduledAt = job.When{Set: true, Relative: true, In: in}
	}
	stored, err := b.Enqueue(b.T.Context(), j)
	require.NoError(b.T, err)
	return stored.ID
}

// lateness waits until the job is available and returns by how much that was after its due time.
func (b *bundle) lateness(id [16]byte) time.Duration {
	b.T.Helper()
	var late time.Duration
	require.Eventually(b.T, func() bool {
		stored, err := b.Get(b.T.Context(), id)
		require.NoError(b.T, err)
		if stored.State != "available" {
			return false
		}
		late = stored.EnqueuedAt.Time.Sub(stored.ScheduledAt.Time)
		return true
	}, domaintest.WaitFor, 2*time.Millisecond)
	return late
}

func TestTimer(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		startstoptest.Stress(t.Context(), t, b.Timer)
	})

	// The bundle checks at the end that the change was emitted.
	t.Run("AStopLetsABatchFinish", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		other := domaintest.On(t, pool)
		lossy, network := domaintest.NewLossy(t, pool)
		b := connected(t, lossy)
		_, err := b.PromoteDue(t.Context(), pg.Beginning) // prepares the statement
		require.NoError(t, err)
		id := other.Enqueued(domaintest.With(func(j *job.Job) {
			j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Millisecond}
		}))[0].ID
		held := network.Hold("name: JobPromoteDue ")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		require.NoError(t, b.Timer.Start(ctx))
		<-held.Arrived
		require.Equal(t, "available", string(other.State(id)))
		stop()
		select {
		case <-held.Abandoned:
		case <-time.After(200 * time.Millisecond): // enough for a statement that ends with the node
		}
		held.Release()
		b.Timer.Stop()
	})

	t.Run("PromotesAtTheDueTime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Timer.Intervals = loop.TimerIntervals{Busy: time.Hour, Idle: time.Hour, Full: time.Hour} // only the due times wake it
		b.start()
		far := b.enqueue(time.Hour)
		for range 3 {
			require.GreaterOrEqual(t, b.lateness(b.enqueue(150*time.Millisecond)), time.Duration(0), "never earlier")
		}
		stored, err := b.Get(t.Context(), far)
		require.NoError(t, err)
		require.Equal(t, "scheduled", stored.State)
	})

	t.Run("FindsDueTimesOfAStoppedNode", func(t *testing.T) {
		t.Parallel()
		lost := setup(t)
		here := lost.node()
		here.Timer.Intervals = loop.TimerIntervals{Busy: 50 * time.Millisecond, Idle: 50 * time.Millisecond, Full: time.Hour}
		here.start()
		here.enqueue(0) // jobs move here
		require.GreaterOrEqual(t, here.lateness(lost.enqueue(50*time.Millisecond)), time.Duration(0))
	})

	t.Run("LooksRarelyWhileNothingChanges", func(t *testing.T) {
		t.Parallel()
		idle := setup(t)
		often := idle.node()
		idle.Timer.Intervals = loop.TimerIntervals{Busy: time.Millisecond, Idle: time.Hour, Full: time.Hour}
		often.Timer.Intervals = loop.TimerIntervals{Busy: time.Millisecond, Idle: time.Millisecond, Full: time.Hour}
		idle.Timer.TestSignals.Init(t)
		often.Timer.TestSignals.Init(t)
		idle.start()
		domaintest.Await(t, idle.Timer.TestSignals.Swept.WaitC())
		often.start()
		for range 20 {
			domaintest.Await(t, often.Timer.TestSignals.Swept.WaitC())
		}
		often.Timer.Stop()
		idle.Timer.TestSignals.Swept.RequireEmpty()
	})

	t.Run("FindsWhatBecameDueWhileNoNodeRan", func(t *testing.T) {
		t.Parallel()
		away := setup(t)
		id := away.enqueue(time.Millisecond)
		b := away.node()
		b.Timer.TestSignals.Init(t)
		b.start()
		domaintest.Await(t, b.Timer.TestSignals.Swept.WaitC())
		b.lateness(id)
	})

	t.Run("AFetchSweepsFirst", func(t *testing.T) {
		t.Parallel()
		b := setup(t) // no loop runs: only the fetch can have swept
		b.enqueue(20 * time.Millisecond)
		require.Eventually(t, func() bool {
			jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1})
			require.NoError(t, err)
			return len(jobs) == 1
		}, domaintest.WaitFor, 5*time.Millisecond)
	})

	t.Run("FindsWhatBecameVisibleLate", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Timer.Intervals = loop.TimerIntervals{Busy: 20 * time.Millisecond, Idle: 20 * time.Millisecond, Full: 200 * time.Millisecond}
		b.start()
		late := b.enqueue(time.Hour)
		b.lateness(b.enqueue(20 * time.Millisecond)) // from here on, sweeps leave out earlier due times
		_, err := b.Pool.Exec(t.Context(), `UPDATE ojs.jobs SET due_at = now() - interval '1 minute', scheduled_at = now() WHERE id = $1`, late)
		require.NoError(t, err)
		b.Timer.Notify()
		require.Eventually(t, func() bool { // by the next full sweep
			b.Timer.Notify()
			return b.State(late) == ojs.StateAvailable
		}, domaintest.WaitFor, 20*time.Millisecond)
	})

	t.Run("EndsLostLeases", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.start()
		id := b.enqueue(0)
		jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "silent"})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		jobs, err = b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "next", Wait: domaintest.WaitFor})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.Equal(t, id, jobs[0].ID)
		require.Equal(t, int32(2), jobs[0].Attempt)
		require.Contains(t, string(jobs[0].Error), "visibility_timeout")
	})

	t.Run("TwoNodesPromoteEachJobOnce", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		b := a.node()
		var jobs []*job.Job
		for range 3000 {
			jobs = append(jobs, &job.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`),
				ScheduledAt: job.When{Set: true, Relative: true, In: time.Second}})
		}
		_, _, err := a.EnqueueAll(t.Context(), jobs)
		require.NoError(t, err)
		a.start()
		b.start()
		var promoted, events int
		require.Eventually(t, func() bool {
			require.NoError(t, a.Pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.jobs WHERE state = 'available'`).Scan(&promoted))
			return promoted == len(jobs)
		}, domaintest.WaitFor, 20*time.Millisecond)
		require.NoError(t, a.Pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.events WHERE to_state = 'available'`).Scan(&events))
		require.Equal(t, len(jobs), events)
		// A sweep whose answer has not arrived when its timer stops emits nothing.
		require.Eventually(t, func() bool { return len(a.Emitted())+len(b.Emitted()) >= 2*len(jobs) }, domaintest.WaitFor, time.Millisecond)
	})
}
