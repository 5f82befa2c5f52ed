// Package ojspgx enqueues jobs in transactions of pgx: a job exists exactly if the transaction commits.
//
//	tx, err := pool.Begin(ctx)
//	…
//	id, err := ojspgx.Enqueue(ctx, tx, "email.send", Email{To: "ada@example.com"})
//	…
//	err = tx.Commit(ctx)
//
// The database is that of the server, and the role needs two rights, see docs/guides/producers-in-sql.md. Enqueue middleware does not run;
// the option ojsotel.TraceContext gives a job the trace of its caller.
//
// A job with a unique policy is equivalent to those that were enqueued over HTTP: the key that the server computes there is computed
// here. A rate limit is refused, and so is a policy over texts of which Unicode NFC may change the form, without a UniqueKey. Such refusals
// come before the database is called, and the transaction goes on.
package ojspgx

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/sqlcall"
)

// Querier is a pgx.Tx. A pool or connection fits, too, and commits by itself.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Enqueue makes a job in a transaction, and returns its id. A job that is refused aborts the transaction; the error can be compared with
// ojs.ErrDuplicateJob and ojs.ErrInvalidPayload. Arguments and options are those of [ojs.Client.Enqueue].
func Enqueue(ctx context.Context, tx Querier, jobType string, args any, options ...ojs.EnqueueOption) (id string, err error) {
	params, err := sqlcall.Params(sqlcall.Request(jobType, args, options))
	if err != nil {
		return "", err
	}
	return id, sqlcall.Error(tx.QueryRow(ctx, sqlcall.Query, params...).Scan(&id))
}

// Batcher is a pgx.Tx.
type Batcher interface {
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// EnqueueBatch makes jobs in a transaction in one round trip, and returns their ids in order.
func EnqueueBatch(ctx context.Context, tx Batcher, requests []ojs.JobRequest) (ids []string, err error) {
	batch := &pgx.Batch{}
	for _, r := range requests {
		params, err := sqlcall.Params(r)
		if err != nil {
			return nil, err
		}
		batch.Queue(sqlcall.Query, params...)
	}
	results := tx.SendBatch(ctx, batch)
	defer func() { err = errors.Join(err, results.Close()) }()
	for range requests {
		var id string
		if err := results.QueryRow().Scan(&id); err != nil {
			return nil, sqlcall.Error(err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
