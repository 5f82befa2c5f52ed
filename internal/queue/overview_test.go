package queue_test

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A connection keeps the plan that it made on an empty database until the tables are analysed. That plan must not read the
// history of all queues.
func TestOverviewReadsTwoMinutes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text, err := os.ReadFile("../../queries/queues.sql")
	require.NoError(t, err)
	_, statement, found := strings.Cut(string(text), "-- name: StatsMinuteGetLatest :one\n")
	require.True(t, found)
	statement, _, _ = strings.Cut(statement, ";")
	statement = strings.ReplaceAll(statement, "@queue", "''")
	rows, err := b.Pool.Query(t.Context(), "EXPLAIN "+statement)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	shown := strings.Join(plan, "\n")
	require.Contains(t, shown, "Scan using stats_minute_pkey on stats_minute", shown)
	require.Contains(t, shown, "Index Cond: ((queue = ''::text) AND (minute = ", shown)
}
