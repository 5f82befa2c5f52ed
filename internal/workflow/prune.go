package workflow

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// pruneRoots bounds the roots of one statement of Prune. The loop goes on until a page is not full, so it bounds a
// statement, not a call.
const pruneRoots = 100

// Prune deletes the workflows that ended longer than keep ago, a tree per transaction, and returns how many trees these
// were. The retention of a node calls it. Two nodes may run it at once; both then count a tree that one of them has
// deleted. After an error the trees before stay deleted and the rest is found again. keep is measured from the end of the
// root, by the clock of the database.
func (s *Store) Prune(ctx context.Context, keep time.Duration) (deleted int64, err error) {
	for {
		roots, err := s.listEnded(ctx, keep)
		if err != nil {
			return deleted, err
		}
		for _, root := range roots {
			if err := s.delete(ctx, root); err != nil {
				return deleted, err
			}
			deleted++
		}
		if len(roots) < pruneRoots {
			return deleted, nil
		}
	}
}

// The clock of the database decides, so nodes agree on what is old.
func (s *Store) listEnded(ctx context.Context, keep time.Duration) ([][16]byte, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.db.Q.WorkflowListEnded(ctx, pg.Interval(keep), pruneRoots)
}

// The lock keeps an advance, for example of a manual retry, from writing steps of a tree that is being deleted. Steps go
// before workflows, in portions, so that no statement exceeds its time; all are one transaction, so no reader finds half a
// tree. Jobs stay: they have a retention of their own.
func (s *Store) delete(ctx context.Context, root [16]byte) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	return s.db.InTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if _, err := q.WorkflowLock(ctx, root); err != nil {
			return err
		}
		if err := deleteSteps(ctx, q, root); err != nil {
			return err
		}
		for n := int64(portion); n == portion; {
			var err error
			if n, err = q.WorkflowDelete(ctx, root, portion); err != nil {
				return err
			}
		}
		return q.WorkflowStartDelete(ctx, root)
	})
}

// Less than a portion is left if there is no place at its end; the last round then deletes all that is left.
func deleteSteps(ctx context.Context, q *dbsqlc.Queries, root [16]byte) error {
	for {
		upto := dbsqlc.WorkflowStepDeleteParams{RootID: root, Flow: math.MaxInt32, Index: math.MaxInt32}
		last, err := q.WorkflowStepListPlace(ctx, root, portion)
		if err != nil {
			return err
		}
		if len(last) > 0 {
			upto.Flow, upto.Index = last[0].Flow, last[0].Index
		}
		if err := q.WorkflowStepDelete(ctx, upto); err != nil || len(last) == 0 {
			return err
		}
	}
}
