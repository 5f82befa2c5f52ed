package sweep_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/sweep"
)

const discardedRows = `INSERT INTO ojs.jobs (id, type, queue, state, created_at, finished_at, dead_lettered_at, args)
	SELECT gen_random_uuid(), 't', 'q', 'discarded', now(), now() - g * interval '1 hour', CASE WHEN $1 THEN now() - g * interval '1 hour' END, '[]'
	FROM generate_series(1, 10) g`

// Contract 20 §8.4.
func TestPruner(t *testing.T) {
	t.Parallel()

	// started is a pruner with its first run done.
	started := func(t *testing.T, b *bundle, config sweep.PrunerConfig) (*sweep.Pruner, sweep.Pruned) {
		t.Helper()
		p := sweep.NewPruner(archetype(), b.store, config)
		p.TestSignals.Init(t)
		require.NoError(t, p.Start(t.Context()))
		t.Cleanup(p.Stop)
		return p, p.TestSignals.Pruned.WaitOrTimeout()
	}
	exec := func(b *bundle, sql string, args ...any) {
		b.t.Helper()
		_, err := b.pool.Exec(b.t.Context(), sql, args...)
		require.NoError(b.t, err)
	}

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		startstoptest.Stress(t.Context(), t, sweep.NewPruner(archetype(), b.store, sweep.PrunerConfig{}))
	})

	t.Run("EachKindHasItsRetention", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		exec(b, discardedRows, true)
		exec(b, discardedRows, false)
		exec(b, `CREATE TABLE ojs.jobs_done_p20260101 PARTITION OF ojs.jobs_done FOR VALUES FROM ('2026-01-01 00:00Z') TO ('2026-01-02 00:00Z')`)
		exec(b, `INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args)
			SELECT gen_random_uuid(), 't', 'q', s, now(), '2026-01-01 12:00Z', '[]' FROM unnest(ARRAY['completed', 'completed', 'cancelled']) s`)
		config := sweep.PrunerConfig{
			DeadLetterMaxAge: 5*time.Hour + 30*time.Minute, DeadLetterMaxCount: 3, Discarded: 8*time.Hour + 30*time.Minute, Completed: time.Hour, Cancelled: -1,
		}
		require.EqualValues(t, -1, config.Longest())
		_, pruned := started(t, b, config)
		require.Equal(t, sweep.Pruned{DeadLetters: 7, Discarded: 2, Done: 2}, pruned)
		_, again := started(t, b, config)
		require.Equal(t, sweep.Pruned{}, again)
	})

	t.Run("NegativeMeansForEver", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		exec(b, discardedRows, true)
		exec(b, discardedRows, false)
		_, pruned := started(t, b, sweep.PrunerConfig{DeadLetterMaxAge: -1, DeadLetterMaxCount: -1, Discarded: -1})
		require.Equal(t, sweep.Pruned{}, pruned)
	})

	t.Run("LooksAgainWhenJobsMoved", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		p, pruned := started(t, b, sweep.PrunerConfig{Interval: 50 * time.Millisecond, DeadLetterMaxCount: 4})
		require.Equal(t, sweep.Pruned{}, pruned)
		require.Greater(t, p.NextIn(), 9*time.Minute, "nothing moves")
		exec(b, discardedRows, true)
		p.Stir()
		require.LessOrEqual(t, p.NextIn(), 50*time.Millisecond)
		require.Equal(t, sweep.Pruned{DeadLetters: 6}, p.TestSignals.Pruned.WaitOrTimeout())
	})
}

func TestRetentionOfFinishedJobs(t *testing.T) {
	t.Parallel()
	require.Equal(t, 7*24*time.Hour, sweep.PrunerConfig{}.WithDefaults().Longest())
	require.Equal(t, 9*time.Hour, sweep.PrunerConfig{Completed: time.Hour, Cancelled: 9 * time.Hour}.WithDefaults().Longest())
	require.EqualValues(t, -1, sweep.PrunerConfig{Cancelled: -5}.WithDefaults().Longest())
}
