// Package pg is what every domain needs of Postgres: the pool, the time limit of a statement, transactions that are tried
// again, partitions that are made when they are missing, and what an SQLSTATE means. It knows no table of any domain.
package pg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// DB is the database of a node. Use New.
type DB struct {
	Pool *pgxpool.Pool
	Q    *dbsqlc.Queries

	// StatementTimeout bounds every statement, waiting for a connection included.
	StatementTimeout time.Duration
}

// New returns the database behind the pool.
func New(pool *pgxpool.Pool, statementTimeout time.Duration) *DB {
	return &DB{Pool: pool, Q: dbsqlc.New(pool), StatementTimeout: statementTimeout}
}

// Conn is the pool or a transaction; Begin on the latter is a savepoint.
type Conn interface {
	dbsqlc.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Bounded is the context of a statement.
func (d *DB) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.StatementTimeout)
}

// Now asks the database for its time.
func (d *DB) Now(ctx context.Context) (time.Time, error) {
	now, err := d.Q.SystemPing(ctx)
	return now.Time, err
}

// EnsurePartitions creates the partitions that today and tomorrow need.
func (d *DB) EnsurePartitions(ctx context.Context) error {
	_, err := d.Q.PartitionEnsure(ctx)
	return err
}

// WithPartitions runs do, and once more after creating partitions if do found one missing.
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

// InPartitionedTx is WithPartitions for a whole transaction: inside one, nothing can follow an error.
func (d *DB) InPartitionedTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return d.WithPartitions(ctx, func() error { return pgx.BeginFunc(ctx, d.Pool, do) })
}

// Retry runs a transaction again, up to three times, while it fails with IsTransient.
func Retry(run func() error) error {
	err := run()
	for tries := 0; IsTransient(err) && tries < 3; tries++ {
		err = run()
	}
	return err
}

// Beginning is before every time there is.
var Beginning = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}

// Timestamp is NULL for the zero time.
func Timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// Text is NULL for "".
func Text(text string) pgtype.Text { return pgtype.Text{String: text, Valid: text != ""} }

// Interval is a duration as Postgres has it.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// Strings is an empty array for nil: NULL would match nothing.
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
	for tries := 0; IsTransient(err) && tries < 10; tries++ { // TRUNCATE against anything that reads several tables
		err = d.Q.SystemReset(ctx)
	}
	return ClientError(err)
}
