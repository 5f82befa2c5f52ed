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
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/spec"
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

const (
	// settleTimeout bounds the wait for a database that is away, while the outcome of a write is unknown: clients give up soon after.
	// It is shorter than the statement timeout (15 s), so an answer still comes before most clients and proxies have given up.
	settleTimeout = 8 * time.Second

	// settlePause is the time between two tries.
	settlePause = 100 * time.Millisecond
)

// Found is what the database holds of a write whose outcome did not arrive.
type Found int

// The findings of a look-up.
const (
	Absent      Found = iota // what the write changes is as it was before
	Present                  // what the write changes is there
	Overwritten              // others have changed the same since, so the write has left no trace either way
)

// Settle finds out what became of a write that failed with err, by what look finds in the database: it returns nil for a write
// that is done, and the error of one without effect (NotDone) otherwise. Another err than an *Unknown is returned as it is, and so
// is an *Unknown while the database stays away, or if others have overwritten the change.
//
// The session of the write is ended before the look, so what is absent stays absent. Behind a pooler that is not possible, and
// an absent change stays unknown. It tries again while the database is away, because it is away in most cases: the connection
// has just broken. It goes on without the caller, whose next steps follow from the answer.
func (d *DB) Settle(ctx context.Context, err error, look func(ctx context.Context) (Found, error)) error {
	u, ok := errors.AsType[*Unknown](err)
	if !ok {
		return err
	}
	var found Found
	var final bool
	failed := d.WhileAway(context.WithoutCancel(ctx), func(ctx context.Context) (err error) {
		found, final, err = d.lookUp(ctx, u, look)
		return err
	})
	switch {
	case failed != nil:
		return errors.Join(err, failed)
	case found == Present:
		return nil
	case found == Absent && final:
		return NotDone(err)
	}
	return err
}

// WhileAway calls try again and again while the database is away, within the time in which the outcome of a write has to be found.
func (d *DB) WhileAway(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, min(settleTimeout, d.StatementTimeout))
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || ctx.Err() != nil || !IsUnavailable(err) && !IsTimeout(err) {
			return err
		}
		serviceutil.CancellableSleep(ctx, settlePause)
		if ctx.Err() != nil {
			return err
		}
	}
}

// lookUp ends the session before it looks. final is false if the write may still commit after the look.
func (d *DB) lookUp(ctx context.Context, u *Unknown, look func(ctx context.Context) (Found, error)) (found Found, final bool, err error) {
	ended := d.EndSession(ctx, u)
	if ended != nil && IsUnavailable(ended) {
		return Absent, false, ended
	}
	if found, err = look(ctx); err != nil {
		return Absent, false, fmt.Errorf("look up the outcome of a write: %w", err)
	}
	return found, ended == nil, nil
}

// NotDone is the error of a write that certainly had no effect. It hides the error of the connection, which means unknown.
func NotDone(err error) error {
	shown := spec.Unavailable()
	if IsTimeout(err) {
		shown = spec.Timeout()
	}
	return errors.Join(shown, fmt.Errorf("not carried out: %s", err.Error()))
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
	ended, err := d.Q.SystemEndSession(ctx, dbsqlc.SystemEndSessionParams{Backend: int32(u.pid), AgeS: u.Age().Seconds(),
		WaitMs: endSessionWait})
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	if !ended {
		return fmt.Errorf("backend %d does not end", u.pid)
	}
	return nil
}
