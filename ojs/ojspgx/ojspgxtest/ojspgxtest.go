// Package ojspgxtest is for tests of programs that use package ojspgx: it looks into a transaction of pgx that is open still.
//
//	func TestOrder(t *testing.T) {
//		tx, err := pool.Begin(t.Context())
//		…
//		defer tx.Rollback(context.Background()) // the database stays as it is
//		err = acceptOrder(t.Context(), tx, order)
//		…
//		ojspgxtest.RequireEnqueuedTx(t, tx, "invoice.render", ojstest.WithArgs(order), ojstest.InQueue("billing"))
//	}
//
// The database needs the schema of ojsd, and the role of the test the right to read the view ojs.job: see Transactions in the
// documentation of package ojstest, which has the same assertions for database/sql.
package ojspgxtest

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/enqueued"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

const inTransaction = " since the transaction began"

// JobsTx lists the jobs that were enqueued since a transaction began and match, in their order: those that package ojspgx, or SQL, has
// enqueued in it, and what other transactions have committed meanwhile. An error of the database fails the test.
func JobsTx(t testing.TB, tx pgx.Tx, matches ...ojstest.Match) []*ojs.Job {
	t.Helper()
	jobs, err := enqueued.Read(tx.QueryRow(t.Context(), enqueued.Query).Scan)
	if err != nil {
		t.Fatalf("list the jobs of the transaction: %v", err)
		return nil // a test in disguise may go on
	}
	return enqueued.Jobs(jobs, matches)
}

// RequireEnqueuedTx fails the test unless exactly one job of the type was enqueued in the transaction that matches, and returns it. The
// message of a failure lists all jobs of the transaction.
func RequireEnqueuedTx(t testing.TB, tx pgx.Tx, jobType string, matches ...ojstest.Match) *ojs.Job {
	t.Helper()
	return enqueued.RequireOne(t, JobsTx(t, tx), inTransaction, jobType, matches)
}

// RequireNotEnqueuedTx fails the test if a job of the type was enqueued in the transaction that matches.
func RequireNotEnqueuedTx(t testing.TB, tx pgx.Tx, jobType string, matches ...ojstest.Match) {
	t.Helper()
	enqueued.RequireNone(t, JobsTx(t, tx), inTransaction, jobType, matches)
}
