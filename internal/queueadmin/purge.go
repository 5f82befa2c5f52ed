package queueadmin

import (
	"context"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// purgeFor bounds one purge; the answer tells that there is more. It stays below the usual timeouts of clients and proxies,
// so that they get the answer.
const purgeFor = 20 * time.Second

// Purge says which jobs of a queue are removed. States are valid, and active is not among them: callers have checked both.
type Purge struct {
	Queue  string
	States []ojs.JobState // any but active; waiting jobs are cancelled before
	By     string         // shown as cancelled_by
	DryRun bool           // nothing is removed; jobs are counted without a lock

	OlderThan job.When // since the job has ended, or if it has not since it was created; not set: of any age
}

// Purged is what a purge has done, or would do.
type Purged struct {
	Jobs   int64
	More   bool       // it stopped before the end because there are so many
	Sample [][16]byte // of a dry run: the first ten ids
}

// Purge removes jobs of a queue.
// Portions that were committed stay; after an error or a hang-up the rest is left, and another call goes on. The number is
// right in each case. It may run twice at once: a job is counted by the one that has removed it. Jobs that are enqueued
// meanwhile are reached if their id comes later.
func (s *Store) Purge(ctx context.Context, p Purge) (done Purged, err error) {
	if err := job.ResolveAges(ctx, s.db.Now, &p.OlderThan); err != nil {
		return done, pg.ClientError(err)
	}
	var after [16]byte
	for end := time.Now().Add(purgeFor); ; {
		// The list takes no locks; the statements of the change check the states again.
		rows, err := s.purgeable(ctx, p, after)
		if err != nil || len(rows) == 0 {
			return done, pg.PartlyError(err)
		}
		if p.DryRun {
			done.count(rows)
		} else {
			n, err := s.purge(ctx, p, rows)
			if done.Jobs += n; err != nil {
				done.More = true
				return done, pg.PartlyError(err)
			}
		}
		after = rows[len(rows)-1].ID
		// Tested after a portion, so each call makes progress.
		if time.Now().After(end) || ctx.Err() != nil {
			done.More = true
			return done, nil //nolint:nilerr // the caller has gone, or goes on with another call
		}
	}
}

// count counts the rows that a purge would remove.
func (d *Purged) count(rows []dbsqlc.JobListForPurgeRow) {
	for _, r := range rows {
		if r.Matches {
			if d.Jobs++; d.Jobs <= queue.Sampled {
				d.Sample = append(d.Sample, r.ID)
			}
		}
	}
}

// purgeable reads the next jobs behind an id, and the last one that was looked at. A row that does not match is returned as
// the place to go on from.
func (s *Store) purgeable(ctx context.Context, p Purge, after [16]byte) ([]dbsqlc.JobListForPurgeRow, error) {
	ctx, cancel, err := s.db.Reading(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	params := dbsqlc.JobListForPurgeParams{Queue: p.Queue, After: after, Until: pg.End, MaxLooked: looked, MaxRows: portion}
	if p.OlderThan.Set {
		params.Until = pg.Timestamp(p.OlderThan.At)
	}
	for _, state := range p.States {
		params.States = append(params.States, string(state))
	}
	return s.db.Q.JobListForPurge(ctx, params)
}

// purge cancels and deletes waiting jobs in one transaction, so no reader sees them as cancelled first. A job that a worker
// has fetched since it was listed is not in the states any more and stays.
func (s *Store) purge(ctx context.Context, p Purge, rows []dbsqlc.JobListForPurgeRow) (n int64, err error) {
	var waiting, finished [][16]byte
	terminal := queue.Eligible(job.BulkDelete)
	for _, r := range rows {
		switch {
		case !r.Matches:
		case slices.Contains(terminal, ojs.JobState(r.State)):
			finished = append(finished, r.ID)
		default:
			waiting = append(waiting, r.ID)
		}
	}
	err = s.jobs.InTx(ctx, func(tx *queue.Tx) error {
		// The transaction may be tried again.
		n = 0
		if len(waiting) > 0 {
			res, err := tx.Bulk(ctx, queue.BulkChange{Op: job.BulkCancel, IDs: waiting, States: queue.Eligible(job.BulkCancel),
				Cancel: queue.Cancel{By: p.By}})
			if err != nil {
				return err
			}
			// Only jobs that this transaction has cancelled are deleted with it.
			for id := range res.Changed {
				finished = append(finished, id)
			}
		}
		if len(finished) == 0 {
			return nil
		}
		res, err := tx.Bulk(ctx, queue.BulkChange{Op: job.BulkDelete, IDs: finished, States: terminal})
		n = int64(len(res.Changed))
		return err
	})
	return n, err
}
