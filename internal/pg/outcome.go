package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// After a connection has broken, a client of Postgres cannot know whether its last statement has committed. The functions of
// this file tell that case from errors after which nothing has changed, and find out.

// Unknown is the error of a write that was sent and whose outcome did not arrive. DB.EndSession makes sure that the write
// cannot commit any more; what the database holds then is the outcome.
// Several callers of a flush share one.
type Unknown struct {
	err error
	// Behind a pooler it is one that the pooler has invented. A backend of the server may have got the same pid since:
	// SystemEndSession compares its age.
	pid  uint32 // of the backend
	sent time.Time
}

// Error shows the error of the connection.
func (u *Unknown) Error() string { return "outcome unknown: " + u.err.Error() }

// Unwrap returns the error of the connection.
func (u *Unknown) Unwrap() error { return u.err }

// Age is the time since the write was sent, at least.
func (u *Unknown) Age() time.Duration { return time.Since(u.sent) }

// Write runs do, which changes something, on one connection. If the outcome did not arrive the error is an *Unknown.
// do runs once; whoever repeats it does so outside. The wait for a connection is bounded by ctx.
func (d *DB) Write(ctx context.Context, do func(conn *pgxpool.Conn) error) error {
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return err // nothing was sent
	}
	defer conn.Release()
	pid, sent := conn.Conn().PgConn().PID(), time.Now()
	if err = do(conn); IsOutcomeUnknown(err) {
		return &Unknown{err: err, pid: pid, sent: sent}
	}
	return err
}

// InTx runs do in a transaction. Before the commit is sent, every error means that nothing has changed.
// An error of the commit itself may be an *Unknown.
func (d *DB) InTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return d.Write(ctx, func(conn *pgxpool.Conn) error { return InTx(ctx, conn, do) })
}

// notCommitted is an error of a transaction whose commit was not sent.
type notCommitted struct{ err error }

func (e *notCommitted) Error() string { return e.err.Error() }
func (e *notCommitted) Unwrap() error { return e.err }

// IsOutcomeUnknown reports whether a statement with this error was sent and may have committed. An error of severity ERROR has
// rolled it back; with FATAL and PANIC the session ends, perhaps after the commit.
func IsOutcomeUnknown(err error) bool {
	if _, known := errors.AsType[*notCommitted](err); err == nil || known || connecting(err) {
		return false
	}
	// pgx says so, and that the statement is safe to retry, also if the connection broke before the answer to a commit.
	if errors.Is(err, pgconn.ErrConnClosed) {
		return true
	}
	if pgconn.SafeToRetry(err) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC"
	}
	// A deadline that pgconn does not report comes from the pool, which had no free connection.
	if pgconn.Timeout(err) {
		return true
	}
	var network net.Error
	return !errors.Is(err, context.DeadlineExceeded) &&
		(errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed))
}

// endSessionWait is how long Postgres waits for a session to end, in milliseconds.
const endSessionWait = 2000

// EndSession makes sure that the transaction of a write can no longer commit: its backend may still run the statement, or find
// it in its socket when a network recovers. It returns an error while that is not certain. Behind a pooler it never is, because
// the pid that a pooler shows is its own.
func (d *DB) EndSession(ctx context.Context, u *Unknown) error {
	if d.Pooler {
		return errors.New("the session behind a pooler is not known")
	}
	ended, err := d.Q.SystemEndSession(ctx, dbsqlc.SystemEndSessionParams{Backend: int32(u.pid), AgeS: u.Age().Seconds(), WaitMs: endSessionWait})
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	if !ended {
		return fmt.Errorf("backend %d does not end", u.pid)
	}
	return nil
}
