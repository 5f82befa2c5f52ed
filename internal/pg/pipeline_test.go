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

func TestPipeline(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	insert := func(name string) pg.Step {
		return func(db dbsqlc.DBTX) error { return dbsqlc.New(db).QueueInsert(ctx, []string{name}) }
	}
	fail := func(db dbsqlc.DBTX) error {
		_, err := db.Exec(ctx, "SELECT 1/0")
		return err
	}

	t.Run("CommitsAllSteps", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		var queues []string
		require.NoError(t, pg.Pipeline(ctx, pool, insert("a"), insert("b"), func(db dbsqlc.DBTX) error {
			rows, err := db.Query(ctx, "SELECT name FROM ojs.queues ORDER BY name")
			if err != nil {
				return err
			}
			queues, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		}))
		require.Equal(t, []string{"a", "b"}, queues)
		require.Equal(t, 2, count(t, pool))
	})

	t.Run("CommitsNothingAfterAnError", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		require.ErrorContains(t, pg.Pipeline(ctx, pool, insert("a"), fail, insert("b")), "division by zero")
		require.ErrorContains(t, pg.Pipeline(ctx, pool, insert("a"), insert("b"), fail), "division by zero")
		require.Zero(t, count(t, pool))
	})

	t.Run("SpansATransaction", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		conn, err := pool.Acquire(ctx)
		require.NoError(t, err)
		defer conn.Release()
		require.NoError(t, pg.Pipeline(ctx, conn.Conn(), pg.Begin, insert("a")))
		require.Zero(t, count(t, pool))
		require.NoError(t, pg.Pipeline(ctx, conn.Conn(), insert("b"), pg.Commit))
		require.Equal(t, 2, count(t, pool))

		require.NoError(t, pg.Pipeline(ctx, conn.Conn(), pg.Begin, insert("c")))
		require.Error(t, pg.Pipeline(ctx, conn.Conn(), fail, pg.Commit))
		require.EqualValues(t, 'E', conn.Conn().PgConn().TxStatus(), "the caller rolls back")
		require.Equal(t, 2, count(t, pool))
		_, err = conn.Exec(ctx, "rollback")
		require.NoError(t, err)
	})

	t.Run("RefusesAStepWithoutStatement", func(t *testing.T) {
		t.Parallel()
		require.ErrorContains(t, pg.Pipeline(ctx, dbtest.New(t), func(dbsqlc.DBTX) error { return nil }), "sent no statement")
	})
}

func count(t *testing.T, db dbsqlc.DBTX) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(context.Background(), "SELECT count(*) FROM ojs.queues").Scan(&n))
	return n
}
