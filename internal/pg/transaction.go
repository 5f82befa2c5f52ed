package pg

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// idleInTransaction is how long a transaction waits for its node, and statementLimit how long a statement of it may take. After
// them the server rolls back, so the locks of a node that is frozen or unreachable end. A node gives its statements up earlier
// (DB.Bounded).
const (
	idleInTransaction = "10s"
	statementLimit    = "15s"
)

// A query is one message, so the settings cost no round trip. They last for the transaction, because behind a
// transaction-mode pooler the session belongs to others. READ COMMITTED is named, because the owner of the database may have
// chosen another default.
const (
	beginQuery    = "begin isolation level read committed; " + limits
	snapshotQuery = "begin isolation level repeatable read read only; " + limits

	limits = "set local idle_in_transaction_session_timeout = '" + idleInTransaction + "'; " +
		"set local statement_timeout = '" + statementLimit + "'; set local lock_timeout = 0"
)

// beginner is a pool or a connection, not a transaction.
type beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// InTx runs do in a transaction with limits that the server enforces, or in a savepoint if db is a transaction. Every transaction
// of the server begins in this file, except a pass of the relay, whose limits RelayLock sets.
//
// It marks the errors before the commit, for IsOutcomeUnknown. pgx.BeginFunc cannot be used for that: if a commit breaks the
// connection, it returns the error of its roll-back, that the connection is closed.
// A panic of do rolls back, too.
func InTx(ctx context.Context, db Conn, do func(tx pgx.Tx) error) error {
	tx, err := begin(ctx, db)
	if err != nil {
		return &notCommitted{err}
	}
	defer func() { _ = tx.Rollback(ctx) }() // no effect after the commit
	if err := do(tx); err != nil {
		return &notCommitted{err}
	}
	return tx.Commit(ctx)
}

// begin makes a savepoint if db is a transaction, whose limits hold for it, too.
func begin(ctx context.Context, db Conn) (pgx.Tx, error) {
	if b, ok := db.(beginner); ok {
		return b.BeginTx(ctx, pgx.TxOptions{BeginQuery: beginQuery})
	}
	return db.Begin(ctx)
}

// InSnapshot runs do in a transaction whose statements read one snapshot and change nothing.
// Its connection is taken for all of do, so do must send nothing outside of tx.
func InSnapshot(ctx context.Context, db beginner, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: snapshotQuery}, do)
}

// Step is one statement of a pipeline: a call of one generated method on db, whose result it stores in variables of the
// caller. It runs twice (see Pipeline), so it does nothing else.
type Step func(db dbsqlc.DBTX) error

// Begin and Commit are the steps around a transaction of several pipelines.
var (
	Begin  = command("begin isolation level read committed")
	Commit = command("commit")
)

func command(sql string) Step {
	return func(db dbsqlc.DBTX) error {
		_, err := db.Exec(context.Background(), sql)
		return err
	}
}

// batchSender is a pool or a connection.
type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Pipeline sends all steps to Postgres before it reads the first result. Outside of a transaction they are one transaction,
// which has committed when Pipeline returns nil. After an error the rest of the steps has no effect, and their variables must
// not be read.
//
// Each step runs first on a recorder, which keeps the statement and its arguments, and then on a player, which returns the
// result: generated methods read their result themselves, so they cannot be asked to send only.
// In a transaction that the caller has begun it commits nothing.
func Pipeline(ctx context.Context, db batchSender, steps ...Step) error {
	var r recorder
	for _, step := range steps {
		if err := step(&r); !errors.Is(err, errRecorded) {
			return errors.Join(errors.New("a step of a pipeline sent no statement"), err)
		}
	}
	results := db.SendBatch(ctx, &r.batch)
	p := player{results}
	for _, step := range steps {
		if err := step(p); err != nil {
			_ = results.Close() // returns the same error
			return err
		}
	}
	return results.Close()
}

// errRecorded ends the first run of a step.
var errRecorded = errors.New("statement was recorded")

// recorder is a DBTX that keeps statements instead of sending them.
type recorder struct{ batch pgx.Batch }

func (r *recorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r.batch.Queue(sql, args...)
	return pgconn.CommandTag{}, errRecorded
}

func (r *recorder) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.batch.Queue(sql, args...)
	return nil, errRecorded
}

func (r *recorder) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	r.batch.Queue(sql, args...)
	return recordedRow{}
}

type recordedRow struct{}

func (recordedRow) Scan(...any) error { return errRecorded }

// player is a DBTX whose calls return the results of the recorded statements, in order.
type player struct{ results pgx.BatchResults }

func (p player) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return p.results.Exec()
}

func (p player) Query(context.Context, string, ...any) (pgx.Rows, error) { return p.results.Query() }
func (p player) QueryRow(context.Context, string, ...any) pgx.Row        { return p.results.QueryRow() }

// Deferred sends statements without a result together with the next one that has a result, in one round trip. It is for transactions
// of many small statements, whose cost is mostly waiting and waking. Flush must be called before the transaction is used in another
// way, the commit included. Statements that tell how many rows they changed cannot be deferred.
// Not for use by several goroutines. Packages with long transactions, workflow above all, make one per transaction.
type Deferred struct {
	tx    pgx.Tx
	queue *pgx.Batch
}

// NewDeferred returns a Deferred on a transaction.
func NewDeferred(tx pgx.Tx) *Deferred { return &Deferred{tx: tx, queue: &pgx.Batch{}} }

// Exec keeps the statement. Its error comes with the next statement or with Flush.
// The command tag is empty, whatever the statement does.
func (d *Deferred) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	d.queue.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// Query sends the statement behind those that were kept.
func (d *Deferred) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if d.queue.Len() == 0 {
		return d.tx.Query(ctx, sql, args...)
	}
	results, err := d.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // returns the same error
		return nil, err
	}
	return &lastRows{rows, results}, nil
}

// QueryRow is Query for one row.
func (d *Deferred) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if d.queue.Len() == 0 {
		return d.tx.QueryRow(ctx, sql, args...)
	}
	results, err := d.send(ctx, sql, args)
	return &lastRow{results, err}
}

// Flush sends what was kept.
func (d *Deferred) Flush(ctx context.Context) error {
	if d.queue.Len() == 0 {
		return nil
	}
	queue := d.queue
	d.queue = &pgx.Batch{}
	return d.tx.SendBatch(ctx, queue).Close()
}

// send sends what was kept and one statement more, and reads the results of what was kept.
func (d *Deferred) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	kept := d.queue.Len()
	d.queue.Queue(sql, args...)
	results := d.tx.SendBatch(ctx, d.queue)
	d.queue = &pgx.Batch{}
	for range kept {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // returns the same error
			return nil, err
		}
	}
	return results, nil
}

// lastRows are the rows of the last statement of a batch, which ends with them.
type lastRows struct {
	pgx.Rows
	results pgx.BatchResults
}

func (r *lastRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // its error is that of the rows
}

type lastRow struct {
	results pgx.BatchResults
	err     error
}

func (r *lastRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	err := r.results.QueryRow().Scan(dest...)
	if closed := r.results.Close(); err == nil {
		err = closed
	}
	return err
}
