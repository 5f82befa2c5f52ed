package queue_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queue"
)

// Several crons that fire at once cancel their previous jobs by one statement, in the order of the crons and not of the ids.
func TestCancelTxKeepsTheDataOfEachJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids [][16]byte
	var cancels []queue.Cancel
	for _, by := range []string{"cron:a", "cron:b", "cron:c"} {
		ids = append(ids, b.Enqueued(domaintest.NewJob("q"))[0].ID)
		cancels = append(cancels, queue.Cancel{By: by})
	}
	slices.Reverse(ids)
	slices.Reverse(cancels)
	var done queue.Cancelled
	require.NoError(t, b.DB.InTx(t.Context(), func(tx pgx.Tx) (err error) {
		done, err = b.CancelTx(t.Context(), tx, "cron", ids, cancels)
		return err
	}))
	done.AfterCommit(t.Context())
	for i, id := range ids {
		require.Equal(t, cancels[i].By, b.One(`SELECT data ->> 'cancelled_by' FROM ojs.events WHERE job_id = $1 AND to_state = 'cancelled'`, id))
	}
	b.RequireEmitted()
}
