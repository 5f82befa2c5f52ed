package cron

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// fireAll fires the open ticks: all in one savepoint or, if the database refuses a row, each in its own. The common case is
// one savepoint for all. One job that the database refuses would undo the others, and errors of a row do not say which; so
// each is tried alone then.
func (f *firing) fireAll(ctx context.Context) error {
	// Whatever is open here has passed all checks.
	ticks, _ := f.open()
	if ticks == nil {
		return nil
	}
	err := f.fire(ctx, ticks)
	// Each round marks at least one tick, so it ends.
	for errors.Is(err, errDuplicates) {
		if ticks, _ = f.open(); ticks == nil {
			return nil
		}
		err = f.fire(ctx, ticks)
	}
	// A missing partition is made by InPartitionedTx, which repeats the whole transaction.
	if !pg.IsRowError(err) || pg.IsNoPartition(err) {
		return err
	}
	for _, t := range ticks {
		switch err := f.fire(ctx, []*tick{t}); {
		case err == nil, errors.Is(err, errDuplicates):
		// The lock of the unique key did not become free within uniqueWait.
		case pg.IsTimeout(err):
			f.postpone(ctx, t)
		case pg.IsRowError(err) && !pg.IsNoPartition(err):
			t.reason = skippedFailed
			f.store.logger.ErrorContext(ctx, "the database refused the job of a cron; register the cron with another template",
				slog.String("cron", t.row.Name), slog.Any("error", err))
		default:
			return err
		}
	}
	return nil
}

// fire records the ticks, cancels the previous jobs and inserts the new ones, or does nothing. The record comes first: it
// tells which ticks are fresh, and only those may cancel and insert. After an error the savepoint is rolled back, and
// nothing of it is in f. A savepoint costs two round trips, which is why there is one for all ticks in the common case.
func (f *firing) fire(ctx context.Context, ticks []*tick) error {
	var cancelled queue.Cancelled
	var inserted queue.Inserted
	var fresh map[[16]byte]bool
	err := pg.InTx(ctx, f.tx, func(tx pgx.Tx) (err error) {
		// The primary key of the log (cron, time, kind) makes a tick fresh once, whatever else has gone wrong.
		if fresh, err = f.record(ctx, dbsqlc.New(tx), ticks, "fired"); err != nil {
			return err
		}
		if cancelled, err = f.cancelPrevious(ctx, tx, ticks, fresh); err != nil {
			return err
		}
		var jobs []*job.Job
		var mark dbsqlc.JobUpdateCronParams
		for _, t := range ticks {
			if fresh[t.row.ID] {
				serial := t.row.OverlapPolicy == OverlapEnqueue
				jobs = append(jobs, t.job)
				// A serial job is inserted as queued; release lets the first one go after the commit.
				mark.Ids, mark.Names = append(mark.Ids, t.job.ID), append(mark.Names, t.row.Name)
				mark.Serial, mark.Queued = append(mark.Serial, serial), append(mark.Queued, serial)
			}
		}
		// Only for the insert: the statements before it wait for no stranger's lock.
		if err = limitUniqueWait(ctx, tx, jobs); err != nil {
			return err
		}
		// After the cancels: a unique key of a cancelled job is free by then.
		inserted, err = f.store.insertMarked(ctx, tx, jobs, mark)
		if err == nil && markDuplicates(ticks, jobs, inserted) {
			return errDuplicates
		}
		return err
	})
	if err == nil {
		// Only now: a savepoint that was rolled back leaves nothing to be told.
		f.cancelled.Append(cancelled)
		f.inserted.Append(inserted)
		f.addChanges(ticks, fresh)
	}
	return err
}

// skippedBy is why a job was not stored: its unique policy, or the rules of its queue. An id that is taken counts as a
// duplicate.
func skippedBy(refused *ojs.Error) string {
	switch {
	case refused == nil || refused.Code == spec.DuplicateID("").Code:
		return skippedDuplicate
	case ojs.ErrorKind(refused.Type) == ojs.ErrQueuePaused:
		return skippedQueue
	}
	return skippedFailed
}

// errDuplicates rolls back ticks because unique policies prevent the jobs of some, which are skipped then. The tick was
// recorded as fired by then, which the roll-back takes back.
var errDuplicates = errors.New("an equivalent job exists")

// markDuplicates finds the ticks of which the job was not stored because an equivalent one exists. It reports whether there
// are any. jobs has one element for each fresh tick, in the order of the insert.
func markDuplicates(ticks []*tick, jobs []*job.Job, inserted queue.Inserted) (found bool) {
	for i, j := range jobs {
		existing, refused := inserted.Existing(i), inserted.Refused(i)
		if existing == nil && refused == nil {
			continue
		}
		found = true
		for _, t := range ticks {
			if t.job == j {
				t.reason, t.existing, t.refused = skippedBy(refused), existingJob(existing, refused), refused
			}
		}
	}
	return found
}

// nil if the refusal names no job.
func existingJob(existing *job.Record, refused *ojs.Error) *[16]byte {
	if existing != nil {
		return &existing.ID
	}
	text, _ := refused.Details["existing_job_id"].(string)
	if id, ok := spec.ParseID(text); ok {
		return &id
	}
	return nil
}

// limitUniqueWait bounds the wait for unique keys, which an application may have locked in a transaction that it keeps
// open. The setting lasts to the end of the transaction, or of the savepoint if that is rolled back.
func limitUniqueWait(ctx context.Context, tx pgx.Tx, jobs []*job.Job) error {
	if !slices.ContainsFunc(jobs, func(j *job.Job) bool { return j.Unique != nil }) {
		return nil
	}
	return dbsqlc.New(tx).SystemLockTimeout(ctx, uniqueWait)
}

// postpone leaves a tick due whose unique key is locked. It is taken out of the pass, so nothing is recorded about it.
func (f *firing) postpone(ctx context.Context, t *tick) {
	f.ticks = slices.DeleteFunc(f.ticks, func(other *tick) bool { return other == t })
	f.store.timer.Schedule(uniqueRetry)
	f.store.logger.WarnContext(ctx, "another transaction keeps the unique key of a cron's job locked; trying again",
		slog.String("cron", t.row.Name), slog.Duration("retry_in", uniqueRetry))
}

// cancelPrevious cancels for fresh ticks only: for one that is in the log already, the job has been enqueued, and must not be cancelled
// by its own tick. The rows were locked by findPrevious, so this does not wait.
func (f *firing) cancelPrevious(ctx context.Context, tx pgx.Tx, ticks []*tick, fresh map[[16]byte]bool) (queue.Cancelled, error) {
	var ids [][16]byte
	var cancels []queue.Cancel
	for _, t := range ticks {
		if !fresh[t.row.ID] {
			continue
		}
		for _, id := range t.previous {
			ids, cancels = append(ids, id), append(cancels, queue.Cancel{By: "cron:" + t.row.Name})
		}
	}
	return f.store.jobs.CancelTx(ctx, tx, "cron", ids, cancels)
}

// record stores the outcome of ticks and advances their crons; fresh are those that were not stored before. All ticks of a
// call have the same type of event, which the first one decides: fired ones and skipped ones come in calls of their own. A
// tick that is in the log already only advances its cron.
func (f *firing) record(ctx context.Context, q *dbsqlc.Queries, ticks []*tick, outcome string) (fresh map[[16]byte]bool, err error) {
	// NextRunAt is NULL for a cron without a next time, which is not due any more then.
	p := dbsqlc.CronRecordTickParams{Node: f.store.commits.Node, EventType: tickEvent(ticks[0].reason)}
	for _, t := range ticks {
		var jobID [16]byte
		if t.job != nil {
			jobID = t.job.ID
		}
		p.Ids, p.ScheduledAt, p.NextRunAt = append(p.Ids, t.row.ID), append(p.ScheduledAt, pg.Timestamp(t.scheduled)), append(p.NextRunAt, pg.Timestamp(t.next))
		p.Outcomes, p.Reasons, p.JobIds = append(p.Outcomes, outcome), append(p.Reasons, t.reason), append(p.JobIds, jobID)
		p.EventData = append(p.EventData, t.eventData())
	}
	rows, err := q.CronRecordTick(ctx, p)
	fresh = make(map[[16]byte]bool, len(rows))
	for _, r := range rows {
		fresh[r.ID] = r.Fresh
	}
	return fresh, err
}

// skipAll records the ticks without a job. It comes after fireAll, which may add reasons.
func (f *firing) skipAll(ctx context.Context) error {
	var skipped []*tick
	for _, t := range f.ticks {
		if t.reason != "" {
			skipped = append(skipped, t)
		}
	}
	if skipped == nil {
		return nil
	}
	fresh, err := f.record(ctx, f.q, skipped, "skipped")
	f.addChanges(skipped, fresh)
	return err
}

// addChanges adds the changes of the crons that are emitted after the commit.
func (f *firing) addChanges(ticks []*tick, fresh map[[16]byte]bool) {
	for _, t := range ticks {
		if fresh[t.row.ID] {
			f.changes = append(f.changes, tickChange(t.row, t.reason))
		}
	}
}

// recordGaps stores the local times that clocks have skipped. A gap is in the log once, by its time, although it may be
// found twice: at the tick before it and at a change of the cron.
func (f *firing) recordGaps(ctx context.Context) error {
	p := dbsqlc.CronRunInsertGapParams{Node: f.store.commits.Node, EventType: ojs.EventCronSkipped}
	for _, t := range f.ticks {
		addGaps(&p, t.row, t.gaps)
	}
	if p.Ids == nil {
		return nil
	}
	// Only rows that were new come back, so each gap has one event.
	rows, err := f.q.CronRunInsertGap(ctx, p)
	f.changes = append(f.changes, gapChanges(rows)...)
	return err
}
