// Package ojssql enqueues jobs in transactions of database/sql: a job exists exactly if the transaction commits.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	id, err := ojssql.Enqueue(ctx, tx, "email.send", Email{To: "ada@example.com"})
//	…
//	err = tx.Commit()
//
// The database is that of the server, and the role needs two rights, see docs/guides/producers-in-sql.md. Enqueue middleware does not run;
// the option ojsotel.TraceContext gives a job the trace of its caller.
//
// A job with a unique policy is equivalent to those that were enqueued over HTTP: the key that the server computes there is computed
// here. A rate limit is refused, and so is a policy over texts of which Unicode NFC may change the form, without a UniqueKey. Such refusals
// come before the database is called, and the transaction goes on.
package ojssql

import (
	"context"
	"database/sql"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/sqlcall"
)

// Querier is a *sql.Tx. A *sql.DB or *sql.Conn fits, too, and commits by itself.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Enqueue makes a job in a transaction, and returns its id. A job that is refused aborts the transaction; the error can be compared with
// ojs.ErrDuplicateJob and ojs.ErrInvalidPayload if the driver tells SQLSTATEs, as pgx and pq do. Arguments and options are
// those of [ojs.Client.Enqueue].
func Enqueue(ctx context.Context, tx Querier, jobType string, args any, options ...ojs.EnqueueOption) (id string, err error) {
	params, err := sqlcall.Params(sqlcall.Request(jobType, args, options))
	if err != nil {
		return "", err
	}
	return id, sqlcall.Error(tx.QueryRowContext(ctx, sqlcall.Query, params...).Scan(&id))
}
