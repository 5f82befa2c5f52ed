// Package pg owns the access to Postgres that all domains share: the pool, the time limit of statements, transactions that
// are tried again, missing partitions, and the meaning of SQLSTATEs. It must never use a table of a domain.
package pg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// DB is the database of a node. Use New.
type DB struct {
	Pool *pgxpool.Pool
	// It takes a connection of the pool for each statement. A caller in a transaction must use dbsqlc.New(tx): all connections
	// could be in transactions that wait for a second one.
	Q *dbsqlc.Queries

	// StatementTimeout bounds every statement, including the wait for a connection.
	StatementTimeout time.Duration

	// Pooler says that the pool leads to a transaction-mode pooler.
	Pooler bool

	reads chan struct{} // an element for each read of Reading
}

// MaxLooked bounds the rows that a statement looks at for a list with filters, which takes 40 to 100 ms. Without a bound, a filter
// that matches nothing reads the whole table. A client gets what was found and a cursor behind what was looked at. A client that goes
// on from the last event that it got, and not from the cursor, stands still behind so many events that it does not want: hence the
// large number.
const MaxLooked = 100_000

// New returns the database of the pool.
func New(pool *pgxpool.Pool, statementTimeout time.Duration) *DB {
	pooler := pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe // see Connect
	return &DB{
		Pool: pool, Q: dbsqlc.New(pool), StatementTimeout: statementTimeout, Pooler: pooler,
		reads: make(chan struct{}, max(1, pool.Config().MaxConns/2)),
	}
}

// Conn is a pool or a transaction. Begin of a transaction makes a savepoint.
type Conn interface {
	dbsqlc.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Bounded returns the context for one statement.
func (d *DB) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.StatementTimeout)
}

// Reading is Bounded for what clients read of lists, logs and results, which may take long. Such reads have half of the pool: slow
// ones must not keep claims and acks waiting for a connection. The time limit includes the wait for a place.
func (d *DB) Reading(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ctx, cancel := d.Bounded(ctx)
	select {
	case d.reads <- struct{}{}:
		return ctx, func() { cancel(); <-d.reads }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, ctx.Err()
	}
}

// Now reads the clock of the database.
func (d *DB) Now(ctx context.Context) (time.Time, error) {
	now, err := d.Q.SystemPing(ctx)
	return now.Time, err
}

// Probe reads the clock of the database, and whether it is read-only. If it is, the connections of the pool are made anew: another
// host of the URL may have become the primary.
func (d *DB) Probe(ctx context.Context) (now time.Time, readOnly bool, err error) {
	asked := time.Now()
	row, err := d.Q.SystemProbe(ctx)
	if err == nil {
		clock.Set(row.Now.Time, asked)
	}
	if row.ReadOnly {
		d.Pool.Reset()
	}
	return row.Now.Time, row.ReadOnly, err
}

// EnsurePartitions creates the partitions that today and tomorrow need.
func (d *DB) EnsurePartitions(ctx context.Context) error {
	asked := time.Now()
	row, err := d.Q.PartitionEnsure(ctx)
	if err == nil {
		clock.Set(row.Now.Time, asked)
	}
	return err
}

// WithPartitions runs do. If a partition was missing it creates partitions and runs do once more.
// do must have changed nothing if it returns that error, so it is one statement or one transaction.
func (d *DB) WithPartitions(ctx context.Context, do func() error) error {
	err := do()
	if !IsNoPartition(err) {
		return err
	}
	if err := d.EnsurePartitions(ctx); err != nil {
		return err
	}
	return do()
}

// InPartitionedTx is WithPartitions for a transaction. It repeats all of it, because no statement can follow an error inside
// a transaction.
func (d *DB) InPartitionedTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return d.WithPartitions(ctx, func() error { return d.InTx(ctx, do) })
}

// Retry runs a transaction, and up to three times again while the error IsTransient.
// run must reset what it sets: a try that fails leaves nothing in the database but its variables in memory.
func Retry(run func() error) error {
	err := run()
	for tries := 0; IsTransient(err) && tries < 3; tries++ {
		err = run()
	}
	return err
}

// Beginning is -infinity, before every time.
var Beginning = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}

// End is infinity, after every time.
var End = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}

// Timestamp is NULL for the zero time.
func Timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// Text is NULL for "".
func Text(text string) pgtype.Text { return pgtype.Text{String: text, Valid: text != ""} }

// Interval is the duration as a Postgres interval.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// Strings replaces nil by an empty array, because a comparison with NULL matches no row.
func Strings(values []string) []string {
	if values == nil {
		return []string{}
	}
	return values
}

// Reset empties all tables. For tests only.
func (d *DB) Reset(ctx context.Context) error {
	ctx, cancel := d.Bounded(ctx)
	defer cancel()
	err := d.Q.SystemReset(ctx)
	for tries := 0; IsTransient(err) && tries < 10; tries++ { // TRUNCATE deadlocks with statements that read several tables
		err = d.Q.SystemReset(ctx)
	}
	return WriteError(err)
}
