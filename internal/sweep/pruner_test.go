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
		startstoptest.Stress(t.Context(), t, sweep.NewPruner(archetype(), b.store, sweep.PrunerConfig{Interval: sweep.PruneInterval}))
	})

	t.Run("EachKindHasItsRetention", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		exec(b, discardedRows, true)
		exec(b, discardedRows, false)
		config := sweep.PrunerConfig{
			Interval: sweep.PruneInterval, DeadLetterMaxAge: 5*time.Hour + 30*time.Minute, DeadLetterMaxCount: 3, Discarded: 8*time.Hour + 30*time.Minute,
		}
		_, pruned := started(t, b, config)
		require.Equal(t, sweep.Pruned{DeadLetters: 7, Discarded: 2}, pruned)
		_, again := started(t, b, config)
		require.Equal(t, sweep.Pruned{}, again)
	})

	t.Run("ZeroMeansForEver", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		exec(b, discardedRows, true)
		exec(b, discardedRows, false)
		_, pruned := started(t, b, sweep.PrunerConfig{Interval: sweep.PruneInterval})
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
