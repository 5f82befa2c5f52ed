package deadletter

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// Delete deletes a discarded job.
// Any discarded job can be deleted, a dead letter or not. The second of two calls is 404. An error of a lost connection is looked
// up: the answer says what is true.
func (s *Store) Delete(ctx context.Context, id ID) error {
	if !id.valid {
		return id.missing()
	}
	deleted := false
	// Bulk checks the state under the lock of the row, so a job that is retried at the moment is not deleted.
	err := s.jobs.InTx(ctx, func(tx *queue.Tx) error {
		res, err := tx.Bulk(ctx, queue.BulkChange{Op: job.BulkDelete, IDs: [][16]byte{id.id}, States: []ojs.JobState{ojs.StateDiscarded}})
		deleted = res.Changed[id.id]
		return err
	})
	if err == nil && !deleted {
		err = id.missing()
	}
	return err
}

// Purge deletes the dead letters that match, oldest first, in statements of up to 1 000 rows. It returns their number.
//
// Each statement commits by itself. After an error the number is what was deleted before, and the error says that the outcome is
// partly known (pg.PartlyError). Dead letters that another transaction has locked are left.
func (s *Store) Purge(ctx context.Context, f Filter) (int64, error) {
	w, err := s.criteria(ctx, f)
	if err != nil {
		return 0, err
	}
	return s.deleteMatching(ctx, w, deletion{source: "api", reason: "purged"})
}

// deletion says who deletes dead letters and why.
type deletion struct {
	source, reason string // of the events
	// It replaces the upper bound of the filter.
	upTo Key // if set: this dead letter and older ones only
}

// deleteMatching may run on several nodes at once: the statement skips rows that are locked, so both make progress and no row counts twice.
func (s *Store) deleteMatching(ctx context.Context, w criteria, d deletion) (deleted int64, err error) {
	p := dbsqlc.DeadLetterDeleteParams{
		Tenant: w.tenant,
		After:  pg.Beginning, AfterID: noID, Since: w.since, Until: w.until, UntilID: highest, Ids: w.ids, Queues: w.queues,
		Types: w.types, TypePrefixes: w.typePrefixes, ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes,
		MaxRows: batchRows, Source: d.source, Reason: d.reason, Node: s.commits.Node, EventType: eventlog.StateChanged,
	}
	if !d.upTo.At.IsZero() {
		p.Until, p.UntilID = pgtype.Timestamptz{Time: d.upTo.At, Valid: true}, d.upTo.ID
	}
	for {
		bounded, cancel := s.db.Bounded(ctx)
		rows, err := s.db.Q.DeadLetterDelete(bounded, p)
		if err == nil {
			// The change has no To: the job leaves the counts of discarded ones, and subscribers see no public event.
			eventlog.Emit(bounded, s.commits, rows, func(changes []eventlog.Change, r *dbsqlc.DeadLetterDeleteRow) []eventlog.Change {
				return append(changes, eventlog.Change{
					Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time,
					Reason: d.reason,
				})
			})
		}
		// The relay is woken after each statement, not at the end: a purge may take minutes.
		if len(rows) > 0 {
			s.commits.Committed()
		}
		cancel()
		if err = pg.WriteError(err); err != nil && deleted > 0 {
			return deleted, pg.PartlyError(err)
		}
		deleted += int64(len(rows))
		// Fewer than asked for: there are no more, or the rest is locked.
		if err != nil || len(rows) < batchRows {
			return deleted, err
		}
		last := rows[len(rows)-1]
		// The next statement begins behind the dead index entries of this one.
		p.After, p.AfterID = last.DeadLetteredAt, last.ID
	}
}

// Prune deletes dead letters older than maxAge, then the oldest beyond maxCount. Zero: no limit.
//
// The pruner (queueadmin/retention.go) calls it on every node. What two nodes delete at once is divided between them. The number may fall
// below maxCount by what others delete between the two statements.
func (s *Store) Prune(ctx context.Context, maxAge time.Duration, maxCount int64) (deleted int64, err error) {
	// Age before number: what is too old must not count among the newest.
	if maxAge > 0 {
		// The database decides what is too old, not the clock of this machine.
		now, err := s.db.Now(ctx)
		if err != nil {
			return 0, err
		}
		if deleted, err = s.deleteMatching(ctx, everything(pg.Timestamp(now.Add(-maxAge))),
			deletion{source: "scheduler", reason: "retention"}); err != nil {
			return deleted, err
		}
	}
	if maxCount == 0 {
		return deleted, nil
	}
	bounded, cancel := s.db.Bounded(ctx)
	// The newest one that is not among the newest maxCount; none if there are not more than that.
	beyond, err := s.db.Q.DeadLetterCutoff(bounded, maxCount)
	cancel()
	if err != nil || len(beyond) == 0 {
		return deleted, err
	}
	n, err := s.deleteMatching(ctx, everything(pg.End), deletion{
		source: "scheduler", reason: "retention", upTo: Key{At: beyond[0].DeadLetteredAt.Time, ID: beyond[0].ID},
	})
	return deleted + n, err
}
