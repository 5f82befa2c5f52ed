package sweep_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/internal/sweep"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

type bundle struct {
	t       *testing.T
	pool    *pgxpool.Pool
	store   *store.Store
	sweeper *sweep.Sweeper
}

func archetype() *baseservice.Archetype {
	return baseservice.NewArchetype(slog.New(slog.DiscardHandler))
}

// setup is a node whose sweeper is not started.
func setup(t *testing.T, pool *pgxpool.Pool) *bundle {
	t.Helper()
	c := store.FromConfig(config.Default())
	c.Logger, c.DefaultVisibility = slog.New(slog.DiscardHandler), 300*time.Millisecond
	s := store.New(pool, c)
	b := &bundle{t, pool, s, sweep.NewSweeper(archetype(), s)}
	s.OnCommit(b.sweeper.Stir)
	return b
}

func (b *bundle) start() {
	b.t.Helper()
	require.NoError(b.t, b.sweeper.Start(b.t.Context()))
	b.t.Cleanup(b.sweeper.Stop)
}

func (b *bundle) enqueue(in time.Duration) [16]byte {
	b.t.Helper()
	job := &envelope.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`)}
	if in > 0 {
		job.ScheduledAt = envelope.When{Set: true, Relative: true, In: in}
	}
	stored, err := b.store.Enqueue(b.t.Context(), job)
	require.NoError(b.t, err)
	return stored.ID
}

// lateness waits until the job is available and returns by how much that was after its due time.
func (b *bundle) lateness(id [16]byte) time.Duration {
	b.t.Helper()
	var late time.Duration
	require.Eventually(b.t, func() bool {
		job, err := b.store.Get(b.t.Context(), id)
		require.NoError(b.t, err)
		if job.State != "available" {
			return false
		}
		late = job.EnqueuedAt.Time.Sub(job.ScheduledAt.Time)
		return true
	}, 20*time.Second, 2*time.Millisecond)
	return late
}

func TestSweeper(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		startstoptest.Stress(t.Context(), t, b.sweeper)
	})

	t.Run("PromotesAtTheDueTime", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		b.start()
		far := b.enqueue(time.Hour)
		for range 3 {
			late := b.lateness(b.enqueue(150 * time.Millisecond))
			require.GreaterOrEqual(t, late, time.Duration(0), "never earlier")
			require.Less(t, late, 500*time.Millisecond)
		}
		job, err := b.store.Get(t.Context(), far)
		require.NoError(t, err)
		require.Equal(t, "scheduled", job.State)
	})

	t.Run("TakesOverTheTimersOfALostNode", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		lost, here := setup(t, pool), setup(t, pool)
		here.start()
		here.enqueue(0) // jobs move here
		late := here.lateness(lost.enqueue(50 * time.Millisecond))
		require.Less(t, late, 6*time.Second)
	})

	t.Run("FindsWhatBecameDueWhileNobodyRan", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		id := setup(t, pool).enqueue(time.Millisecond)
		b := setup(t, pool)
		b.sweeper.TestSignals.Init(t)
		b.start()
		b.sweeper.TestSignals.Swept.WaitOrTimeout()
		b.lateness(id)
	})

	t.Run("AFetchHasDueJobsAppliedFirst", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t)) // no loop runs: only the fetch can have swept
		b.enqueue(20 * time.Millisecond)
		require.Eventually(t, func() bool {
			jobs, err := b.store.Fetch(t.Context(), store.Fetch{Queues: []string{"q"}, Count: 1})
			require.NoError(t, err)
			return len(jobs) == 1
		}, 10*time.Second, 5*time.Millisecond)
	})

	t.Run("FindsWhatBecameVisibleLate", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		b.start()
		late := b.enqueue(time.Hour)
		b.lateness(b.enqueue(20 * time.Millisecond)) // looks leave out what is older from here on
		_, err := b.pool.Exec(t.Context(), `UPDATE ojs.jobs SET due_at = now() - interval '1 minute', scheduled_at = now() WHERE id = $1`, late)
		require.NoError(t, err)
		b.sweeper.Stir()
		require.Less(t, b.lateness(late), 8*time.Second)
	})

	t.Run("GivesLostLeasesBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		b.start()
		id := b.enqueue(0)
		jobs, err := b.store.Fetch(t.Context(), store.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "dies"})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		jobs, err = b.store.Fetch(t.Context(), store.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "lives", Wait: 10 * time.Second})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.Equal(t, id, jobs[0].ID)
		require.Equal(t, int32(2), jobs[0].Attempt)
		require.Contains(t, string(jobs[0].Error), "visibility_timeout")
	})

	t.Run("TwoNodesSweepEachJobOnce", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		a, b := setup(t, pool), setup(t, pool)
		var jobs []*envelope.Job
		for range 3000 {
			jobs = append(jobs, &envelope.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`),
				ScheduledAt: envelope.When{Set: true, Relative: true, In: time.Second}})
		}
		_, _, err := a.store.EnqueueAll(t.Context(), jobs)
		require.NoError(t, err)
		a.start()
		b.start()
		var promoted, events int
		require.Eventually(t, func() bool {
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.jobs WHERE state = 'available'`).Scan(&promoted))
			return promoted == len(jobs)
		}, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.events WHERE to_state = 'available'`).Scan(&events))
		require.Equal(t, len(jobs), events)
	})
}

func TestProber(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		startstoptest.Stress(t.Context(), t, sweep.NewProber(archetype(), b.store))
	})

	t.Run("FindsAJobThatNobodyAnnounced", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		b, silent := setup(t, pool), setup(t, pool)
		prober := sweep.NewProber(archetype(), b.store)
		require.NoError(t, prober.Start(t.Context()))
		t.Cleanup(prober.Stop)
		got := make(chan int, 1)
		go func() {
			jobs, _ := b.store.Fetch(t.Context(), store.Fetch{Queues: []string{"q"}, Count: 1, Wait: 15 * time.Second})
			got <- len(jobs)
		}()
		require.Eventually(t, func() bool { return b.store.Parked() == 1 }, 10*time.Second, time.Millisecond)
		silent.enqueue(0)
		require.Equal(t, 1, <-got)
	})
}
