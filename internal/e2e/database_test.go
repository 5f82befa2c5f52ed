package e2e_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// exec runs SQL on the node's database.
func (a *api) exec(sql string, args ...any) {
	a.t.Helper()
	a.query(sql, args...)
}

// one is the only value of the only row of a query.
func (a *api) one(sql string, args ...any) string {
	a.t.Helper()
	values := a.query(sql, args...)
	require.Len(a.t, values, 1)
	return values[0]
}

// query is the only column of each row.
func (a *api) query(sql string, args ...any) []string {
	a.t.Helper()
	conn, err := pgx.Connect(a.t.Context(), a.database)
	require.NoError(a.t, err)
	defer func() { require.NoError(a.t, conn.Close(context.Background())) }()
	rows, err := conn.Query(a.t.Context(), sql, args...)
	require.NoError(a.t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(a.t, err)
	return values
}

func execute(t testing.TB, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// lockJobs keeps everybody else from the table until released.
func lockJobs(t *testing.T, url string) (release func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "BEGIN; LOCK TABLE ojs.jobs IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	return func() { _ = conn.Close(context.Background()) }
}

// waitForLock returns when somebody waits for a lock.
func waitForLock(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	eventually(t, func() bool {
		var n int
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'ojs.jobs'::regclass").Scan(&n))
		return n > 0
	})
}
