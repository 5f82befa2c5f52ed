package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// database is a session on the server's own database. Its SQL stands here and not in queries/, because the server never
// runs it. One goroutine uses it at a time; the sessions that pin and listen have connections of their own.
type database struct {
	url  string
	conn *pgx.Conn
}

func openDatabase(ctx context.Context, url string) (*database, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to --database-url: %w", err)
	}
	return &database{url: url, conn: conn}, nil
}

// openSession opens another session and runs statements in it.
func (d *database) openSession(ctx context.Context, statements ...string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, err
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			closeConn(conn)
			return nil, err
		}
	}
	return conn, nil
}

// closeConn closes a connection, also when the run was cancelled.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server ends the session in any case
}

// settings are the PostgreSQL settings that decide about the figures: a run without fsync must not be compared with one
// that has it.
func (d *database) settings(ctx context.Context) (string, error) {
	var parts []string
	for _, name := range []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"} {
		var value string
		if err := d.conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return "", fmt.Errorf("read settings: %w", err)
		}
		parts = append(parts, name+"="+value)
	}
	return strings.Join(parts, " "), nil
}

// enqueueChunk is how many jobs one transaction of enqueue and schedule makes. The server publishes them when it commits.
const enqueueChunk = 10_000

// enqueue fills a queue with ojs.enqueue(), which is faster than batches over HTTP. It commits once per chunk, as a program
// that imports jobs would do.
func (d *database) enqueue(ctx context.Context, b bodies, n int) ([]jobID, error) {
	ids := make([]jobID, 0, n)
	for len(ids) < n {
		rows, err := d.conn.Query(ctx, "SELECT ojs.enqueue($1, $2::json, $3) FROM generate_series(1, $4::int)",
			jobType, b.args, b.queue, min(enqueueChunk, n-len(ids)))
		if err != nil {
			return nil, err
		}
		if ids, err = pgx.AppendRows(ids, rows, scanID); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func scanID(row pgx.CollectableRow) (id jobID, err error) {
	err = row.Scan((*[16]byte)(&id))
	return id, err
}

// isUndefinedFunction says that the database has no ojs.enqueue().
func isUndefinedFunction(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "42883" || pgErr.Code == "3F000")
}

// schedule is n jobs, due at even distances over the time that begins with first.
type schedule struct {
	n     int
	first time.Time
	over  time.Duration
}

// schedule enqueues jobs for later.
func (d *database) schedule(ctx context.Context, b bodies, s schedule) (ids []jobID, err error) {
	for len(ids) < s.n {
		rows, err := d.conn.Query(ctx, `SELECT ojs.enqueue($1, $2::json, $3, ('{"scheduled_at":"'
				|| to_char($4::timestamptz AT TIME ZONE 'UTC' + i * $5::float8 * interval '1 s', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
				|| '"}')::json)
			FROM generate_series($6::int, $7::int) i`,
			jobType, b.args, b.queue, s.first, s.over.Seconds()/float64(s.n), len(ids), min(len(ids)+enqueueChunk, s.n)-1)
		if err == nil {
			ids, err = pgx.AppendRows(ids, rows, scanID)
		}
		if err != nil {
			return nil, fmt.Errorf("schedule by SQL: %w", err)
		}
	}
	return ids, nil
}

// lateness is how long after their due time the jobs of a queue became available, by the database's clock.
type lateness struct{ last, median float64 }

// lateness waits, up to limit, until all jobs of the queue are available.
func (d *database) lateness(ctx context.Context, queue string, limit time.Duration) (late lateness, err error) {
	for end := time.Now().Add(limit); ; sleep(ctx, 100*time.Millisecond) {
		var waiting int
		err = d.conn.QueryRow(ctx, `SELECT COALESCE(max(ms), 0), COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), 0), count(*) - count(ms)
			FROM (SELECT date_part('epoch', enqueued_at - scheduled_at) * 1000 AS ms FROM ojs.job WHERE queue = $1) j`, queue).
			Scan(&late.last, &late.median, &waiting)
		switch {
		case err != nil:
			return late, fmt.Errorf("read lateness: %w", err)
		case waiting == 0:
			return late, nil
		case time.Now().After(end):
			return late, fmt.Errorf("%d scheduled jobs of queue %s are not available yet", waiting, queue)
		}
	}
}

// cancelAll cancels the jobs of a queue that would become due after the scenario. Its errors are ignored: jobs that
// remain use space, and nothing else.
func (d *database) cancelAll(ctx context.Context, queue string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	_, _ = d.conn.Exec(ctx, `SELECT count(ojs.cancel(id)) FROM ojs.job WHERE queue = $1 AND state IN ('scheduled', 'available')`, queue)
}

// waitPublished waits until the server has published the events written so far, because that would slow down what is
// measured next. It waits one minute at most, in which a server publishes about five million events. If a minute is not enough,
// the measurement begins anyway: its figures are then worse, not wrong.
func (d *database) waitPublished(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); sleep(ctx, 100*time.Millisecond) {
		var done bool
		err := d.conn.QueryRow(ctx, "SELECT watermark >= (SELECT last_value FROM ojs.event_seq) FROM ojs.event_relay").Scan(&done)
		if err != nil {
			return fmt.Errorf("read watermark: %w", err)
		}
		if done {
			return nil
		}
	}
	return nil
}

// analyze makes fresh statistics, as autovacuum does from time to time.
func (d *database) analyze(ctx context.Context) error {
	if _, err := d.conn.Exec(ctx, "ANALYZE"); err != nil {
		return fmt.Errorf("analyze: %w", err)
	}
	return nil
}

// pin opens a transaction. While it is open, PostgreSQL keeps all rows that were deleted or replaced after it began. It takes a
// snapshot and a transaction id, because both keep rows from being removed.
func (d *database) pin(ctx context.Context) (*pgx.Conn, error) {
	conn, err := d.openSession(ctx, "SET idle_in_transaction_session_timeout = 0", "BEGIN ISOLATION LEVEL REPEATABLE READ",
		"SELECT txid_current()")
	if err != nil {
		return nil, fmt.Errorf("open the transaction that keeps dead rows: %w", err)
	}
	return conn, nil
}

// unpin ends the transaction. An error says that it had ended before, so the figures are not those of pinned.
func unpin(ctx context.Context, pin *pgx.Conn) error {
	if _, err := pin.Exec(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("the transaction that kept dead rows was lost: %w", err)
	}
	return nil
}

// counters are totals that the database keeps. Only the difference of two readings means anything.
type counters struct {
	writes, wal, commits int64
	statements           *int64 // nil: pg_stat_statements is not installed, or we may not read it
}

func (d *database) readCounters(ctx context.Context) (c counters, err error) {
	err = d.conn.QueryRow(ctx, `
		SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
		       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
		       (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())`,
	).Scan(&c.writes, &c.wal, &c.commits)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	var calls int64
	err = d.conn.QueryRow(ctx, `
		SELECT sum(calls)::bigint FROM pg_stat_statements
		WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&calls)
	if err == nil { // the figure is useful without it
		c.statements = &calls
	}
	return c, nil
}

// perJob includes work that the server does by itself in this time, such as heartbeats and passes of the relay.
func (c counters) perJob(before counters, jobs int) []metric {
	per := func(now, then int64) float64 { return float64(now-then) / float64(max(1, jobs)) }
	metrics := []metric{
		{"write_transactions_per_job", per(c.writes, before.writes)},
		{"commits_per_job", per(c.commits, before.commits)},
		{"wal_bytes_per_job", per(c.wal, before.wal)},
	}
	if c.statements != nil && before.statements != nil {
		metrics = append(metrics, metric{"statements_per_job", per(*c.statements, *before.statements)})
	}
	return metrics
}
