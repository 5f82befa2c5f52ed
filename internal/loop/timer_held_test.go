package loop_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/ojs"
)

// A transaction that locks what is due, and stays open, neither makes the timer spin nor delays what else becomes due.
func TestHeldRows(t *testing.T) {
	t.Parallel()
	rarely := loop.TimerIntervals{Busy: time.Hour, Idle: time.Hour, Full: time.Hour}

	for name, hold := range map[string]func(b *bundle) (applied func() bool){
		"WaitingJob": func(b *bundle) func() bool {
			id := b.enqueue(time.Millisecond)
			b.hold(`SELECT FROM ojs.jobs WHERE id = $1 FOR UPDATE`, id)
			return func() bool { return b.State(id) == ojs.StateAvailable }
		},
		"CancelledJob": func(b *bundle) func() bool {
			id := b.enqueue(time.Millisecond)
			b.hold(`SELECT ojs.cancel($1)`, id)
			return func() bool { return b.State(id) == ojs.StateAvailable }
		},
		"ActiveJob": func(b *bundle) func() bool {
			id := b.enqueue(0)
			require.Len(b.T, b.Fetched(1, "q"), 1)
			b.Exec(`UPDATE ojs.jobs SET lease_until = now(), due_at = now() WHERE id = $1`, id)
			b.hold(`SELECT FROM ojs.jobs WHERE id = $1 FOR UPDATE`, id)
			return func() bool { return b.State(id) == ojs.StateAvailable }
		},
		"Worker": func(b *bundle) func() bool {
			b.Beat("w")
			b.Silent(61, "w")
			b.hold(`SELECT FROM ojs.workers FOR UPDATE`)
			return func() bool { return b.One(`SELECT state FROM ojs.workers`) == "stale" }
		},
		"Cron": func(b *bundle) func() bool {
			b.Exec(`INSERT INTO ojs.crons (id, name, expression, type, queue, args, next_run_at)
				VALUES (gen_random_uuid(), 'c', '@hourly', 'test.job', 'q', '[]', now())`)
			b.hold(`SELECT FROM ojs.crons FOR UPDATE`)
			return func() bool { return b.Number(`SELECT count(*) FROM ojs.cron_runs`) == 1 }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var statements domaintest.Statements
			b := connected(t, domaintest.Traced(t, dbtest.New(t), &statements), short)
			b.Timer.Intervals = rarely
			applied := hold(b)
			b.Timer.TestSignals.Init(t)
			before := statements.Total()
			began := time.Now()
			b.start()
			const sweeps = 8
			for range sweeps {
				domaintest.Await(t, b.Timer.TestSignals.Swept.WaitC())
			}
			require.Greater(t, time.Since(began), 500*time.Millisecond, "the pauses grow")
			require.Less(t, statements.Total()-before, 10*sweeps)

			// Another node has scheduled these; only the database knows when they are due. If they waited for the next try of what is
			// locked, every second, the third earliest would be 320 ms late, in each round. A busy machine may need several.
			away := b.node()
			for round := 1; ; round++ {
				var ids [][16]byte
				for i := range 6 {
					ids = append(ids, away.enqueue(1500*time.Millisecond+time.Duration(i)*170*time.Millisecond))
				}
				b.Timer.Poll() // as after a notification: the tries are rare if they are slow
				var late []time.Duration
				for _, id := range ids {
					late = append(late, b.lateness(id))
				}
				slices.Sort(late)
				if late[2] < 300*time.Millisecond {
					break
				}
				require.Less(t, round, 10, "%s", late)
			}
			require.False(t, applied(), "it is locked")
		})
	}

	for name, first := range map[string]bool{"AreFoundSoonAfterTheLock": true, "AreFoundSoonAfterTheLockIfTheyBecameDueLater": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Timer.Intervals = rarely
			b.Timer.TestSignals.Init(t)
			swept := func(n int) {
				for range n {
					domaintest.Await(t, b.Timer.TestSignals.Swept.WaitC())
				}
			}
			if !first {
				b.start()
				swept(1)
			}
			id := b.node().enqueue(time.Millisecond)
			tx := b.hold(`SELECT FROM ojs.jobs WHERE id = $1 FOR UPDATE`, id)
			if first {
				b.start()
				swept(6)
			} else {
				b.Timer.Poll()
				swept(1)
			}
			require.NoError(t, tx.Rollback(t.Context()))
			began := time.Now()
			b.lateness(id)
			require.Less(t, time.Since(began), 30*time.Second)
		})
	}
}

// hold runs a statement in a transaction that stays open.
func (b *bundle) hold(sql string, args ...any) pgx.Tx {
	b.T.Helper()
	tx, err := b.Pool.Begin(b.T.Context())
	require.NoError(b.T, err)
	_, err = tx.Exec(b.T.Context(), sql, args...)
	require.NoError(b.T, err)
	b.T.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}
