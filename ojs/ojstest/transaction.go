package ojstest

import (
	"database/sql"
	"testing"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/enqueued"
)

const inTransaction = " since the transaction began"

// JobsTx lists the jobs that were enqueued since a transaction began and match, in their order: those that package ojssql, or SQL, has
// enqueued in it, and what other transactions have committed meanwhile. An error of the database fails the test.
func JobsTx(t testing.TB, tx *sql.Tx, matches ...Match) []*ojs.Job {
	t.Helper()
	jobs, err := enqueued.Read(tx.QueryRowContext(t.Context(), enqueued.Query).Scan)
	if err != nil {
		t.Fatalf("list the jobs of the transaction: %v", err)
		return nil // a test in disguise may go on
	}
	return enqueued.Jobs(jobs, matches)
}

// RequireEnqueuedTx is [Server.RequireEnqueued] for a transaction on a real database, which may be open still: it fails the test unless
// exactly one job of the type was enqueued in it that matches, and returns it. See Transactions in the package documentation.
func RequireEnqueuedTx(t testing.TB, tx *sql.Tx, jobType string, matches ...Match) *ojs.Job {
	t.Helper()
	return enqueued.RequireOne(t, JobsTx(t, tx), inTransaction, jobType, matches)
}

// RequireNotEnqueuedTx fails the test if a job of the type was enqueued in the transaction that matches.
func RequireNotEnqueuedTx(t testing.TB, tx *sql.Tx, jobType string, matches ...Match) {
	t.Helper()
	enqueued.RequireNone(t, JobsTx(t, tx), inTransaction, jobType, matches)
}
