package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestDatabase(t *testing.T) {
	t.Parallel()

	t.Run("ListensPinsAndCounts", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{})
		cfg := tiny(url, "latency", "cost", "pinned")
		cfg.DatabaseURL = dbtest.EmptyURL(t)
		fake.notify = notifier(t, cfg.DatabaseURL)
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"latency.fetch", "latency.event_poll", "latency.event_listen", "cost", "pinned", "pinned", "pinned.rest",
		}, r.names())
		require.Contains(t, r.text, "synchronous_commit=on")
		require.Contains(t, r.text, "by batch enqueue")
		// The fake server writes one transaction for each job, its NOTIFY. Others write as well: the counter is that of the
		// whole cluster, which is shared with the other tests.
		require.GreaterOrEqual(t, r.figures[3].Metrics["write_transactions_per_job"].Median, 1.0)
		require.Positive(t, r.figures[3].Metrics["wal_bytes_per_job"].Median)
	})

	t.Run("MissesAnEventThatWasNotNotified", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{loseEvent: 125}) // the third measurement has jobs 121 to 180
		cfg := tiny(url, "latency")
		cfg.DatabaseURL = dbtest.EmptyURL(t)
		fake.notify = notifier(t, cfg.DatabaseURL)
		r := measure(t, cfg)
		require.ErrorIs(t, r.err, errInvalid)
		require.True(t, r.figures[1].OK)
		require.Equal(t, "latency.event_listen", r.figures[2].Figure)
		require.Contains(t, r.figures[2].Problems[0], "never arrived")
	})
}

func TestEnqueueBySQL(t *testing.T) {
	t.Parallel()
	url := dbtest.EmptyURL(t)
	db, err := openDatabase(t.Context(), url)
	require.NoError(t, err)
	defer closeConn(db.conn)
	_, err = db.enqueue(t.Context(), newBodies("q", 50, 0), 1)
	require.True(t, isUndefinedFunction(err), err)
	_, err = db.conn.Exec(t.Context(), `
		CREATE SCHEMA ojs;
		CREATE TABLE ojs.got (id uuid DEFAULT gen_random_uuid(), type text, args json, queue text);
		CREATE FUNCTION ojs.enqueue(type text, args json, queue text DEFAULT 'default', options json DEFAULT NULL) RETURNS uuid
		LANGUAGE sql AS 'INSERT INTO ojs.got (type, args, queue) VALUES ($1, $2, $3) RETURNING id';`)
	require.NoError(t, err)
	ids, err := db.enqueue(t.Context(), newBodies("q", 50, 0), enqueueChunk+5)
	require.NoError(t, err)
	require.Len(t, ids, enqueueChunk+5)
	var n int
	require.NoError(t, db.conn.QueryRow(t.Context(),
		`SELECT count(*) FROM ojs.got WHERE queue = 'q' AND type = $1 AND json_array_length(args) = 1`, jobType).Scan(&n))
	require.Equal(t, enqueueChunk+5, n)
	require.Empty(t, (&jobLists{enqueued: ids, fetched: ids, acked: ids}).problems(0))
}

// TestPin looks at the session from outside: it has a snapshot and a transaction id.
func TestPin(t *testing.T) {
	t.Parallel()
	db, err := openDatabase(t.Context(), dbtest.EmptyURL(t))
	require.NoError(t, err)
	defer closeConn(db.conn)
	p, err := db.pin(t.Context())
	require.NoError(t, err)
	defer closeConn(p)
	var state string
	require.NoError(t, db.conn.QueryRow(t.Context(), `SELECT state FROM pg_stat_activity
		WHERE pid = $1 AND backend_xid IS NOT NULL AND backend_xmin IS NOT NULL`, p.PgConn().PID()).Scan(&state))
	require.Equal(t, "idle in transaction", state)
	_, err = db.conn.Exec(t.Context(), "SELECT pg_terminate_backend($1, 60000)", p.PgConn().PID())
	require.NoError(t, err)
	require.ErrorContains(t, unpin(t.Context(), p), "was lost")
}

// notifier sends notifications like those of the server.
func notifier(t *testing.T, url string) func(string) {
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return func(payload string) {
		_, err := pool.Exec(context.Background(), "SELECT pg_notify('ojs_events', $1)", payload)
		if err != nil {
			t.Error(err)
		}
	}
}

// TestReadCounters compares two readings with numbers that PostgreSQL gives right before and right after each of them, so
// that it does not matter what else runs on the cluster.
func TestReadCounters(t *testing.T) {
	t.Parallel()
	url := dbtest.EmptyURL(t)
	db, err := openDatabase(t.Context(), url)
	require.NoError(t, err)
	defer closeConn(db.conn)
	writer, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer closeConn(writer)
	number := func(sql string) (n int64) {
		require.NoError(t, writer.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	write := func() int64 { return number("SELECT txid_current()") } // takes the next transaction id
	position := func() int64 { return number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") }

	read := func() counters {
		position, transaction := position(), write()
		c, err := db.readCounters(t.Context())
		require.NoError(t, err)
		require.Greater(t, c.writes, transaction)
		require.LessOrEqual(t, c.writes, write())
		require.GreaterOrEqual(t, c.wal, position)
		return c
	}
	before := read()
	require.LessOrEqual(t, before.wal, position())
	const transactions = 20
	for range transactions {
		write()
	}
	number("SELECT 1 FROM (SELECT pg_stat_force_next_flush()) f") // else commits are counted up to 10 s later
	number("SELECT 1")
	after := read()
	require.GreaterOrEqual(t, after.writes-before.writes, int64(transactions))
	require.GreaterOrEqual(t, after.commits-before.commits, int64(transactions))
	require.Greater(t, after.wal, before.wal)
}

func TestCountersPerJob(t *testing.T) {
	t.Parallel()
	ten, fifty := int64(10), int64(50)
	before := counters{writes: 100, commits: 1000, wal: 5000, statements: &ten}
	after := counters{writes: 120, commits: 1060, wal: 9000, statements: &fifty}
	require.Equal(t, []metric{
		{"write_transactions_per_job", 5}, {"commits_per_job", 15}, {"wal_bytes_per_job", 1000}, {"statements_per_job", 10},
	}, after.perJob(before, 4))
	after.statements = nil
	require.Len(t, after.perJob(before, 4), 3)
	require.Equal(t, metric{"write_transactions_per_job", 20}, after.perJob(before, 0)[0], "no division by zero")
}
