package queue_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
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
	require.Contains(t, shown, "Index Cond: ((ROW(queue, minute) >= ROW(''", shown)
}

// An overview has the first queues by name and the latest workers. It counts all workers.
func TestOverviewIsBounded(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) SELECT 'q' || i, s, i FROM generate_series(1000, 2000) i, unnest('{available,active,scheduled,retryable,completed}'::text[]) s`)
	b.Exec(`INSERT INTO ojs.workers (id, state, started_at, last_beat_at) SELECT 'w' || i, 'running', now(), now() - i * interval '1 s' FROM generate_series(1000, 2000) i`)
	o, err := b.Overview(t.Context())
	require.NoError(t, err)
	require.Equal(t, [2]int{1000, 1000}, [2]int{len(o.Queues), len(o.Workers)})
	for i := range 1000 {
		n := int64(1000 + i)
		require.Equal(t, dbsqlc.QueueCountListRow{Queue: fmt.Sprint("q", n), Available: n, Active: n, Scheduled: n, Retryable: n}, o.Queues[i])
		require.Equal(t, fmt.Sprint("w", n), o.Workers[i].ID)
		require.EqualValues(t, 1001, o.Workers[i].Total)
	}
}
