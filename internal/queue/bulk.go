package queue

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// BulkChange is a bulk operation over chosen jobs (docs/reference/http.md, Bulk change).
type BulkChange struct {
	Op job.BulkOp
	// At most the items of a bulk call (10 000), each once: the API layer takes repetitions out and reports them as listed twice.
	IDs [][16]byte
	// The statement checks them again under the lock of each row.
	States []ojs.JobState // in which jobs are taken; see Eligible
	Cancel Cancel
	Atomic bool // a single job that is skipped or unknown rolls back all
}

// BulkResult is the outcome for each id.
// An id that is in none of the maps belongs to no job.
type BulkResult struct {
	Changed  map[[16]byte]bool
	Eligible map[[16]byte]bool         // Changed, or what would have changed if an atomic operation was rolled back
	Skipped  map[[16]byte]ojs.JobState // state of the other stored jobs

	// Duplicates are the discarded jobs among Skipped that were not retried because another job has their unique key, and that job.
	Duplicates map[[16]byte][16]byte
}

// Eligible are the states in which an operation takes a job.
// See docs/reference/http.md, Bulk change. The API passes them with every list of ids, so that a job
// that a filter has found in another state is skipped.
func Eligible(op job.BulkOp) []ojs.JobState {
	switch op {
	case job.BulkCancel:
		return idleStates
	case job.BulkRetry:
		return []ojs.JobState{ojs.StateDiscarded, ojs.StateRetryable}
	default:
		return []ojs.JobState{ojs.StateCompleted, ojs.StateCancelled, ojs.StateDiscarded}
	}
}

// errSkipped rolls back an atomic operation because a job is not eligible.
// It never leaves Tx.Bulk.
var errSkipped = errors.New("a job is not eligible")

// Bulk changes the jobs in a savepoint of its own.
//
// The savepoint lets an atomic operation be undone while the transaction goes on: the idempotency key of the call commits with
// the answer. It waits for rows that others have locked, up to the timeouts of the transaction, because it shares its statement
// with no other caller.
func (t *Tx) Bulk(ctx context.Context, b BulkChange) (BulkResult, error) {
	var done bulkDone
	err := pg.InTx(ctx, t.tx, func(tx pgx.Tx) (err error) {
		done, err = t.store.bulk(ctx, dbsqlc.New(tx), b)
		if err == nil && b.Atomic && len(done.changed) < len(b.IDs) {
			return errSkipped
		}
		return err
	})
	if err != nil && !errors.Is(err, errSkipped) {
		return BulkResult{}, err
	}
	changed, eligible := done.changed, done.changed
	if errors.Is(err, errSkipped) {
		changed = nil
	} else if len(changed) > 0 {
		t.after = append(t.after, done.after)
		// Any of them will do: if the answer to the commit is lost, the event of one job tells of all.
		for id := range changed {
			t.changed, t.did = &id, bulkDid(b.Op)
		}
	}
	res := BulkResult{Changed: changed, Eligible: eligible, Skipped: map[[16]byte]ojs.JobState{}, Duplicates: done.duplicates}
	if len(eligible) == len(b.IDs) {
		return res, nil
	}
	// A statement of its own, after the change: the states are those that made it skip the jobs, or newer ones.
	rows, err := dbsqlc.New(t.tx).JobListByID(ctx, job.SizeOfEach(len(b.IDs)), b.IDs)
	for _, r := range rows {
		if !eligible[r.ID] {
			res.Skipped[r.ID] = ojs.JobState(r.State)
		}
	}
	return res, err
}

// bulkDid tells the change that an operation makes from others.
func bulkDid(op job.BulkOp) func(c dbsqlc.EventListOwnByJobRow) bool {
	to := map[job.BulkOp]ojs.JobState{job.BulkCancel: ojs.StateCancelled, job.BulkRetry: ojs.StateAvailable, job.BulkDelete: ""}[op]
	return func(c dbsqlc.EventListOwnByJobRow) bool { return c.FromState != "" && c.ToState == string(to) }
}

// bulkDone is what a bulk operation has done in its transaction.
type bulkDone struct {
	changed    map[[16]byte]bool
	duplicates map[[16]byte][16]byte // see BulkResult
	// The transaction collects it and calls it once (InTx). It is dropped if the savepoint or the transaction rolls back.
	after func() // to call after the commit
}

func (s *Store) bulk(ctx context.Context, q *dbsqlc.Queries, b BulkChange) (bulkDone, error) {
	changed := make(map[[16]byte]bool, len(b.IDs))
	switch b.Op {
	case job.BulkCancel:
		cs := make([]cancellation, len(b.IDs))
		for i, id := range b.IDs {
			cs[i] = cancellation{id, b.Cancel.eventData()}
		}
		rows, err := s.cancelRows(ctx, q, cs, b.States)
		for _, r := range rows {
			changed[r.ID] = true
		}
		return bulkDone{changed: changed, after: func() { s.afterBulkCancel(ctx, rows) }}, err
	case job.BulkRetry:
		rows, duplicates, err := s.retryRows(ctx, q, manualRetry{ids: b.IDs, states: b.States})
		for _, r := range rows {
			changed[r.ID] = true
		}
		others := make(map[[16]byte][16]byte, len(duplicates))
		for id, other := range duplicates {
			others[id] = other.ID
		}
		return bulkDone{changed, others, func() { s.afterRetry(ctx, rows) }}, err
	default:
		rows, err := q.JobDelete(ctx, dbsqlc.JobDeleteParams{
			Ids: b.IDs, States: texts(b.States), Node: s.commits.Node, EventType: eventlog.StateChanged, Source: "api", Reason: reasonDeleted,
		})
		for _, r := range rows {
			changed[r.ID] = true
		}
		return bulkDone{changed: changed, after: func() {
			eventlog.Emit(ctx, s.commits, rows, deleteChange)
			s.commits.Committed()
		}}, err
	}
}

func (s *Store) afterBulkCancel(ctx context.Context, rows []dbsqlc.JobCancelRow) {
	eventlog.Emit(ctx, s.commits, rows, cancelChange)
	for i := range rows {
		s.awaiting.ended(rows[i].ID)
	}
	s.notify(ctx, afterCommit{crons: namesOf(rows, cancelledCron)})
	s.commits.Committed()
	s.FollowLimits(ctx, namesOf(rows, cancelledLimit))
	s.advance(ctx, workflowsOf(rows, cancelledWorkflow))
}
