package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
)

func TestDeferred(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := dbtest.New(t)
	begin := func(t *testing.T) (*pg.Deferred, *dbsqlc.Queries, pgx.Tx) {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(ctx) })
		d := pg.NewDeferred(tx)
		return d, dbsqlc.New(d), tx
	}

	t.Run("ExecutesBeforeTheNextQuery", func(t *testing.T) {
		d, q, tx := begin(t)
		require.NoError(t, q.QueueInsert(ctx, []string{"a"}))
		_, err := dbsqlc.New(tx).QueueGet(ctx, "a")
		require.ErrorIs(t, err, pgx.ErrNoRows, "it was sent at once")
		found, err := q.QueueGet(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "a", found.Name)
		require.NoError(t, q.QueueInsert(ctx, []string{"b"}))
		rows, err := q.QueueListAfter(ctx, "", 10)
		require.NoError(t, err)
		require.Len(t, rows, 2)
		require.NoError(t, q.QueueInsert(ctx, []string{"c"}))
		require.NoError(t, d.Flush(ctx))
		require.NoError(t, d.Flush(ctx), "nothing is left")
		_, err = dbsqlc.New(tx).QueueGet(ctx, "c")
		require.NoError(t, err)
	})

	t.Run("ReportsAnErrorWithTheNextStatement", func(t *testing.T) {
		for name, next := range map[string]func(d *pg.Deferred, q *dbsqlc.Queries) error{
			"Query":    func(_ *pg.Deferred, q *dbsqlc.Queries) error { _, err := q.QueueListAfter(ctx, "", 1); return err },
			"QueryRow": func(_ *pg.Deferred, q *dbsqlc.Queries) error { _, err := q.QueueExists(ctx, "a"); return err },
			"Flush":    func(d *pg.Deferred, _ *dbsqlc.Queries) error { return d.Flush(ctx) },
		} {
			t.Run(name, func(t *testing.T) {
				d, q, _ := begin(t)
				_, err := d.Exec(ctx, "SELECT 1/0")
				require.NoError(t, err)
				require.ErrorContains(t, next(d, q), "division by zero")
			})
		}
	})
}
