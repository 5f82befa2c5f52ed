package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
