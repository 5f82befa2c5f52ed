package queue

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// purgeBatch bounds the jobs of one transaction of a purge.
	purgeBatch = 1000

	// purgeTime is when a purge stops, because its client waits: what is left goes with the next one.
	purgeTime = 20 * time.Second
)

// Purge removes the jobs of a queue for good (docs/reference/admin.md, Purge).
type Purge struct {
	Queue     string
	States    []ojs.JobState // any but active
	OlderThan job.When       // since the job has ended, or if it has not since it was created; not set: of any age
	Cancel    Cancel         // of jobs that have not ended
}

// Purge removes the jobs, and cancels them before if they have not ended, so that workflows follow. It returns how many it removed, and
// whether its time was over before it had looked at all jobs.
func (s *Store) Purge(ctx context.Context, p Purge) (removed int, more bool, err error) {
	if err := job.ResolveAges(ctx, s.db.Now, &p.OlderThan); err != nil {
		return 0, false, pg.ClientError(err)
	}
	find := dbsqlc.JobListForPurgeParams{Queue: p.Queue, States: texts(p.States), Until: pg.End, MaxLooked: s.maxLooked, MaxRows: purgeBatch}
	if p.OlderThan.Set {
		find.Until = pg.Timestamp(p.OlderThan.At)
	}
	for end := time.Now().Add(purgeTime); ; {
		ids, done, err := s.purgePage(ctx, &find)
		if err != nil {
			return removed, false, err
		}
		n, err := s.purge(ctx, ids, p)
		if removed += n; err != nil || done {
			return removed, false, err
		}
		if time.Now().After(end) {
			return removed, true, nil
		}
	}
}

// purgePage finds the next jobs and moves find behind them. done: there are no more.
func (s *Store) purgePage(ctx context.Context, find *dbsqlc.JobListForPurgeParams) (ids [][16]byte, done bool, err error) {
	ctx, release, err := s.db.Reading(ctx)
	if err != nil {
		return nil, false, pg.ClientError(err)
	}
	defer release()
	rows, err := s.db.Q.JobListForPurge(ctx, *find)
	if err != nil {
		return nil, false, pg.ClientError(err)
	}
	for _, r := range rows {
		if r.Matches {
			ids = append(ids, r.ID)
		}
	}
	if len(rows) == 0 {
		return nil, true, nil
	}
	last := rows[len(rows)-1]
	find.After = last.ID
	return ids, len(rows) < purgeBatch && last.Looked < find.MaxLooked, nil
}

// purge removes those of the jobs that are still in one of the states.
func (s *Store) purge(ctx context.Context, ids [][16]byte, p Purge) (removed int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	var ended, waiting []ojs.JobState
	for _, state := range p.States {
		if state.Terminal() {
			ended = append(ended, state)
		} else {
			waiting = append(waiting, state)
		}
	}
	err = s.InTx(ctx, func(tx *Tx) error {
		gone := map[[16]byte]bool{}
		if len(waiting) > 0 {
			res, err := tx.Bulk(ctx, BulkChange{Op: job.BulkCancel, IDs: ids, States: waiting, Cancel: p.Cancel})
			if err != nil {
				return err
			}
			gone = res.Changed
		}
		if len(ended) > 0 {
			res, err := tx.Bulk(ctx, BulkChange{Op: job.BulkDelete, IDs: without(ids, gone), States: ended})
			if err != nil {
				return err
			}
			removed = len(res.Changed)
		}
		if len(gone) == 0 {
			return nil
		}
		cancelled := make([][16]byte, 0, len(gone))
		for id := range gone {
			cancelled = append(cancelled, id)
		}
		res, err := tx.Bulk(ctx, BulkChange{Op: job.BulkDelete, IDs: cancelled, States: []ojs.JobState{ojs.StateCancelled}})
		removed += len(res.Changed)
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func without(ids [][16]byte, taken map[[16]byte]bool) [][16]byte {
	if len(taken) == 0 {
		return ids
	}
	left := make([][16]byte, 0, len(ids))
	for _, id := range ids {
		if !taken[id] {
			left = append(left, id)
		}
	}
	return left
}
