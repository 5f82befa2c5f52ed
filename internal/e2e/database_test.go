package e2e_test

import (
	"context"

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
