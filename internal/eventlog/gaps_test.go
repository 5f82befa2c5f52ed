package eventlog

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestUncountedReadsWhatMayBeCommitted: exact counts beside large transactions of others cost no more than without them.
func TestUncountedReadsWhatMayBeCommitted(t *testing.T) {
	t.Parallel()
	const rows = 2000
	begin := func(t *testing.T, b *testBundle, n int, sql string) pgx.Tx {
		tx, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, err = tx.Exec(t.Context(), sql, n)
		require.NoError(t, err)
		return tx
	}
	const enqueue = `SELECT ojs.enqueue('t', '[]', 'other', '{"notify":false}') FROM generate_series(1, $1)`
	// reads is how many buffers the counts of queue q take, which has n jobs.
	reads := func(t *testing.T, db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}, queue string, n int) (buffers int) {
		t.Helper()
		var depth int
		require.NoError(t, db.QueryRow(t.Context(), `SELECT ojs.queue_depth($1)`, queue).Scan(&depth))
		require.Equal(t, n, depth)
		var plan []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		require.NoError(t, db.QueryRow(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ojs.queue_depth('`+queue+`')`).Scan(&plan))
		return plan[0].Plan.Hit + plan[0].Plan.Read
	}
	gaps := func(t *testing.T, b *testBundle, n int) {
		t.Helper()
		b.exec(t, `SELECT ojs.enqueue('t', '[]', 'q', '{"notify":false}')`)
		b.passUntil(t, func(pass) bool {
			var noted int
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.event_gaps`).Scan(&noted))
			return noted == n
		})
		b.passUntil(t, func(p pass) bool { return p.caughtUp() })
	}

	for name, end := range map[string]func(pgx.Tx) error{
		"Open":       func(pgx.Tx) error { return nil },
		"RolledBack": func(tx pgx.Tx) error { return tx.Rollback(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, RelayConfig{GapDelay: -1})
			tx := begin(t, b, rows, enqueue)
			gaps(t, b, rows)
			require.NoError(t, end(tx))
			// A transaction of another test that is older than the gaps may have committed since the pass.
			jobs := 1
			require.Eventually(t, func() bool {
				if reads(t, b.pool, "q", jobs) < 500 {
					return true
				}
				b.exec(t, `SELECT ojs.enqueue('t', '[]', 'q', '{"notify":false}')`)
				jobs++
				b.pass(t)
				return false
			}, waitFor, time.Millisecond)
		})
	}

	// Other transactions ended before; the one that has committed is older than what the relay has looked at since.
	t.Run("Committed", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		first, second := begin(t, b, 3, enqueue), begin(t, b, 4, enqueue)
		gaps(t, b, 7)
		third := begin(t, b, 5, enqueue)
		gaps(t, b, 12)
		require.Equal(t, 0, b.depth(t, "other"))
		require.NoError(t, second.Commit(t.Context()))
		require.Equal(t, 4, b.depth(t, "other"), "its rows are not moved yet")
		require.NoError(t, first.Rollback(t.Context()))
		require.Equal(t, 4, b.depth(t, "other"))
		b.publishAll(t)
		require.Equal(t, 4, b.depth(t, "other"))
		require.NoError(t, third.Commit(t.Context()))
		require.Equal(t, 9, b.depth(t, "other"))
		b.publishAll(t)
		require.Equal(t, 9, b.depth(t, "other"))
	})

	t.Run("OfTheTransactionItself", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		tx := begin(t, b, 3, enqueue)
		gaps(t, b, 3)
		reads(t, tx, "other", 3)
		_, err := tx.Exec(t.Context(), `SAVEPOINT s`)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), enqueue, 2)
		require.NoError(t, err)
		reads(t, tx, "other", 5)
		_, err = tx.Exec(t.Context(), `ROLLBACK TO s`)
		require.NoError(t, err)
		reads(t, tx, "other", 3)
	})

	// As in a dump of another server.
	t.Run("ForeignSnapshot", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		tx := begin(t, b, 3, enqueue)
		gaps(t, b, 3)
		require.NoError(t, tx.Commit(t.Context()))
		b.exec(t, `UPDATE ojs.event_relay SET scanned = '90000000001:90000000009:90000000001,90000000005'`)
		require.Equal(t, 3, b.depth(t, "other"))
		b.exec(t, `UPDATE ojs.event_relay SET scanned = NULL`) // a relay of the previous release does not store it
		require.Equal(t, 3, b.depth(t, "other"))
	})
}

// depth is how many jobs wait in the queue.
func (b *testBundle) depth(t *testing.T, queue string) (n int) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT ojs.queue_depth($1)`, queue).Scan(&n))
	return n
}
