package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// database is the server's own database, looked at from outside.
type database struct {
	url  string
	conn *pgx.Conn
}

func openDatabase(ctx context.Context, url string) (*database, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	return &database{url: url, conn: conn}, nil
}

// endConn closes a connection that is not needed any more, also when the run was cancelled.
func endConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server ends the session in any case
}

func (d *database) close() { endConn(d.conn) }

// settings names what decides about the figures: nobody should compare runs with and without fsync.
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

// enqueueChunk is how many jobs one transaction of enqueue makes; the server publishes them at its commit.
const enqueueChunk = 10_000

// enqueue fills a queue by ojs.enqueue(), which spares the HTTP round trips.
func (d *database) enqueue(ctx context.Context, queue, args string, n int) ([]jobID, error) {
	ids := make([]jobID, 0, n)
	for len(ids) < n {
		rows, err := d.conn.Query(ctx, "SELECT ojs.enqueue($1, $2::json, $3) FROM generate_series(1, $4::int)",
			jobType, args, queue, min(enqueueChunk, n-len(ids)))
		if err != nil {
			return nil, err
		}
		chunk, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
		if err != nil {
			return nil, err
		}
		for _, id := range chunk {
			ids = append(ids, jobID(id))
		}
	}
	return ids, nil
}

// isUndefinedFunction recognises a database without the SQL interface.
func isUndefinedFunction(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "42883" || pgErr.Code == "3F000")
}

// waitPublished waits until the relay has published what was written so far: it would share the machine with what is
// measured next. One minute is enough for five million events; after that it goes on.
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

// pin is an open transaction that holds xmin back.
type pin struct{ conn *pgx.Conn }

// pin opens the transaction. It has an xid of its own besides its snapshot, so that both horizons stay.
func (d *database) pin(ctx context.Context) (*pin, error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, fmt.Errorf("pin xmin: %w", err)
	}
	for _, statement := range []string{
		"SET idle_in_transaction_session_timeout = 0",
		"BEGIN ISOLATION LEVEL REPEATABLE READ",
		"SELECT txid_current()",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			endConn(conn)
			return nil, fmt.Errorf("pin xmin: %w", err)
		}
	}
	return &pin{conn}, nil
}

// release ends the transaction. An error says that it did not last until now, so nothing was pinned.
func (p *pin) release(ctx context.Context) error {
	if _, err := p.conn.Exec(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("the transaction that pins xmin was lost: %w", err)
	}
	return nil
}

func (p *pin) close() { endConn(p.conn) }

// notifications is a session that listens to ojs_events.
type notifications struct{ conn *pgx.Conn }

func (d *database) listen(ctx context.Context) (*notifications, error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN ojs_events"); err != nil {
		endConn(conn)
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &notifications{conn}, nil
}

// each calls fn for every notification until ctx ends, which is no error.
func (n *notifications) each(ctx context.Context, fn func(payload string) error) error {
	defer endConn(n.conn)
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
