package queueadmin_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/workflow"

	"github.com/ojsd/ojsd/internal/dbtest"
)

const discardedRows = `INSERT INTO ojs.jobs (id, type, queue, state, created_at, finished_at, dead_lettered_at, args)
	SELECT gen_random_uuid(), 't', 'q', 'discarded', now(), now() - g * interval '1 hour', CASE WHEN $1 THEN now() - g * interval '1 hour' END, '[]'
	FROM generate_series(1, 10) g`

func (b *bundle) pruner(c config.Config) *queueadmin.Pruner {
	return queueadmin.NewPruner(b.Archetype, queueadmin.PrunerDeps{
		DB: b.DB, Commits: b.Commits, Queues: b.Configured, DeadLetters: b.DeadLetters.Prune, Workflows: b.Workflows.Prune,
	}, c)
}

func TestPruner(t *testing.T) {
	t.Parallel()

	// started is a pruner with its first run done.
	started := func(t *testing.T, b *bundle, c config.Config) (*queueadmin.Pruner, queueadmin.Pruned) {
		t.Helper()
		p := b.pruner(c)
		p.TestSignals.Init(t)
		require.NoError(t, p.Start(t.Context()))
		t.Cleanup(p.Stop)
		return p, domaintest.Await(t, p.TestSignals.Pruned.WaitC())
	}
	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		startstoptest.Stress(t.Context(), t, b.pruner(config.Config{Retention: config.Retention{PruneInterval: time.Minute}}))
	})

	t.Run("EachKindHasItsRetention", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(discardedRows, true)
		b.Exec(discardedRows, false)
		c := config.Config{Retention: config.Retention{PruneInterval: time.Minute, Discarded: 8*time.Hour + 30*time.Minute}, DeadLetter: config.DeadLetter{MaxAge: 5*time.Hour + 30*time.Minute, MaxCount: 3}}
		_, pruned := started(t, b, c)
		require.Equal(t, queueadmin.Pruned{DeadLetters: 7, Discarded: 2}, pruned)
		_, again := started(t, b, c)
		require.Equal(t, queueadmin.Pruned{}, again)
	})

	t.Run("WakesTheRelayIfItHasDeletedJobs", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		var commits atomic.Int32
		b := setup(t, func(c *domaintest.Config) { c.Committed = func() { commits.Add(1) } })
		c := config.Config{Retention: config.Retention{PruneInterval: time.Minute, Discarded: 8*time.Hour + 30*time.Minute}}
		for _, deleted := range []int{0, 2} {
			if deleted > 0 {
				b.Exec(discardedRows, false)
			}
			_, pruned := started(t, b, c)
			require.EqualValues(t, deleted, pruned.Discarded)
			require.EqualValues(t, min(deleted, 1), commits.Load())
		}
	})

	t.Run("EndedWorkflows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for i := range 3 {
			j := domaintest.NewJob("q")
			w, err := b.Workflows.Create(t.Context(), &workflow.Definition{Type: workflow.Group, Leaves: 1, Members: []workflow.Member{{ID: "a", Job: j, Template: []byte(`{"type":"t","args":[]}`)}}})
			require.NoError(t, err)
			if i > 0 {
				_, _, err = b.Workflows.Cancel(t.Context(), w.ID, false, "test")
				require.NoError(t, err)
			}
		}
		b.Exec(`UPDATE ojs.workflows SET ended_at = ended_at - interval '2 days' WHERE id = (SELECT id FROM ojs.workflows WHERE ended_at IS NOT NULL ORDER BY id LIMIT 1)`)
		_, pruned := started(t, b, config.Config{Retention: config.Retention{PruneInterval: time.Minute, Completed: 24 * time.Hour}})
		require.Equal(t, queueadmin.Pruned{Workflows: 1}, pruned)
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.workflows`))
	})

	t.Run("ZeroMeansForEver", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(discardedRows, true)
		b.Exec(discardedRows, false)
		_, pruned := started(t, b, config.Config{Retention: config.Retention{PruneInterval: time.Minute}})
		require.Equal(t, queueadmin.Pruned{}, pruned)
	})

	t.Run("ReportsEachStatementThatFails", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"retention":{"completed":"1s"}}`)
		statements := &domaintest.Failing{}
		pool := domaintest.Traced(t, b.Pool, statements)
		var all []string
		for i, failed := 0, "none yet"; failed != ""; i++ {
			var log bytes.Buffer
			sick := &bundle{domaintest.On(t, pool, func(c *domaintest.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })}
			statements.FailAt(i)
			p, _ := started(t, sick, config.Config{Retention: config.Retention{PruneInterval: time.Minute, Completed: time.Hour, Discarded: time.Hour}})
			failed = statements.Heal()
			p.Stop()
			require.Equal(t, failed != "", strings.Contains(log.String(), "level=ERROR"), "%s: %s", failed, log.String())
			all = append(all, failed)
		}
		require.Subset(t, all, []string{"JobDiscardedPrune", "JobListForRetention", "LimitPrune"})
	})

	t.Run("RunsAgainWhenJobsMoved", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		p, pruned := started(t, b, config.Config{Retention: config.Retention{PruneInterval: 50 * time.Millisecond}, DeadLetter: config.DeadLetter{MaxCount: 4}})
		require.Equal(t, queueadmin.Pruned{}, pruned)
		require.Greater(t, p.NextIn(), 9*time.Minute, "nothing moves")
		b.Exec(discardedRows, true)
		p.Notify()
		require.LessOrEqual(t, p.NextIn(), 50*time.Millisecond)
		require.Equal(t, queueadmin.Pruned{DeadLetters: 6}, domaintest.Await(t, p.TestSignals.Pruned.WaitC()))
	})

	// A call that retries a job has locked it, and the job stays.
	t.Run("LeavesLockedJobs", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(discardedRows, false)
		b.Exec(discardedRows, true)
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `UPDATE ojs.jobs SET state = 'available', finished_at = NULL, dead_lettered_at = NULL WHERE finished_at < now() - interval '9 hours 30 minutes'`)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, pruned := started(t, b, config.Config{
			Retention: config.Retention{PruneInterval: time.Minute, Discarded: 8*time.Hour + 30*time.Minute}, DeadLetter: config.DeadLetter{MaxAge: 8*time.Hour + 30*time.Minute},
		})
		require.Equal(t, queueadmin.Pruned{DeadLetters: 1, Discarded: 1}, pruned)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, 18, b.Number(`SELECT count(*) FROM ojs.jobs`))
	})

	t.Run("DiscardedJobsThatAreNotDeadLetters", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(3000)
		b.Exec(`UPDATE ojs.jobs SET dead_lettered_at = NULL WHERE queue <> 'q0'`)
		_, pruned := started(t, b, config.Config{Retention: config.Retention{PruneInterval: time.Minute, Discarded: time.Hour}})
		require.Equal(t, queueadmin.Pruned{}, pruned)
		_, pruned = started(t, b, config.Config{Retention: config.Retention{PruneInterval: time.Minute, Discarded: time.Minute}})
		require.Equal(t, queueadmin.Pruned{Discarded: 2000}, pruned)
		require.EqualValues(t, 1000, b.Number(`SELECT count(*) FROM ojs.jobs`))
		b.RequireCounts()
	})
}
