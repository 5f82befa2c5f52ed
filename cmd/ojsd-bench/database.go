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
// runs it. One goroutine uses it at a time; pins and listeners have connections of their own.
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

// closeConn closes a connection, also when the run was cancelled.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server ends the session in any case
}

func (d *database) close() { closeConn(d.conn) }

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

// enqueueChunk is how many jobs one transaction of enqueue makes. The server publishes them when it commits.
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
		chunk, err := collectIDs(rows)
		if err != nil {
			return nil, err
		}
		ids = append(ids, chunk...)
	}
	return ids, nil
}

func collectIDs(rows pgx.Rows) ([]jobID, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (id jobID, err error) {
		err = row.Scan((*[16]byte)(&id))
		return id, err
	})
}

// isUndefinedFunction says that the database has no ojs.enqueue().
func isUndefinedFunction(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "42883" || pgErr.Code == "3F000")
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

// pin is an open transaction. While it is open, PostgreSQL keeps all rows that were deleted or replaced after it began.
type pin struct{ conn *pgx.Conn }

// pin opens the transaction. It takes a snapshot and a transaction id, because both keep rows from being removed.
func (d *database) pin(ctx context.Context) (*pin, error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, fmt.Errorf("open the transaction that keeps dead rows: %w", err)
	}
	for _, statement := range []string{
		"SET idle_in_transaction_session_timeout = 0",
		"BEGIN ISOLATION LEVEL REPEATABLE READ",
		"SELECT txid_current()",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			closeConn(conn)
			return nil, fmt.Errorf("open the transaction that keeps dead rows: %w", err)
		}
	}
	return &pin{conn}, nil
}

// release ends the transaction. An error says that it had ended before, so the figures are not those of pinned.
func (p *pin) release(ctx context.Context) error {
	if _, err := p.conn.Exec(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("the transaction that kept dead rows was lost: %w", err)
	}
	return nil
}

func (p *pin) close() { closeConn(p.conn) }

// notifications is a session that listens on the channel ojs_events.
type notifications struct{ conn *pgx.Conn }

func (d *database) listen(ctx context.Context) (*notifications, error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN ojs_events"); err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &notifications{conn}, nil
}

// each calls fn for every notification until ctx ends, which is no error.
func (n *notifications) each(ctx context.Context, fn func(payload string) error) error {
	defer closeConn(n.conn)
	for {
		notification, err := n.conn.WaitForNotification(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = fn(notification.Payload)
		}
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
}
