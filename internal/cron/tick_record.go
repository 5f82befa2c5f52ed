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
	"github.com/ojsd/ojsd/ojs"
)

// fireAll fires the open ticks: all in one savepoint or, if the database refuses a row, each in its own.
func (f *firing) fireAll(ctx context.Context) error {
	ticks, _ := f.open()
	if ticks == nil {
		return nil
	}
	err := f.fire(ctx, ticks)
	for errors.Is(err, errDuplicates) {
		if ticks, _ = f.open(); ticks == nil {
			return nil
		}
		err = f.fire(ctx, ticks)
	}
	if !pg.IsRowError(err) || pg.IsNoPartition(err) {
		return err
	}
	for _, t := range ticks {
		switch err := f.fire(ctx, []*tick{t}); {
		case err == nil, errors.Is(err, errDuplicates):
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

// fire records the ticks, cancels the previous jobs and inserts the new ones, or does nothing.
func (f *firing) fire(ctx context.Context, ticks []*tick) error {
	var cancelled queue.Cancelled
	var inserted queue.Inserted
	var fresh map[[16]byte]bool
	err := pg.InTx(ctx, f.tx, func(tx pgx.Tx) (err error) {
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
				mark.Ids, mark.Names = append(mark.Ids, t.job.ID), append(mark.Names, t.row.Name)
				mark.Serial, mark.Queued = append(mark.Serial, serial), append(mark.Queued, serial)
			}
		}
		if err = limitUniqueWait(ctx, tx, jobs); err != nil {
			return err
		}
		inserted, err = f.store.insertMarked(ctx, tx, jobs, mark)
		if err == nil && markDuplicates(ticks, jobs, inserted) {
			return errDuplicates
		}
		return err
	})
	if err == nil {
		f.cancelled.Append(cancelled)
		f.inserted.Append(inserted)
		f.addChanges(ticks, fresh)
	}
	return err
}

// skippedBy is why a job was not stored: its unique policy, or the rules of its queue.
func skippedBy(refused *ojs.Error) string {
	switch {
	case refused == nil || refused.Code == ojs.ErrDuplicateID("").Code:
		return skippedDuplicate
	case ojs.ErrorKind(refused.Type) == ojs.KindQueuePaused:
		return skippedQueue
	}
	return skippedFailed
}

// errDuplicates rolls back ticks because unique policies prevent the jobs of some, which are skipped then.
var errDuplicates = errors.New("an equivalent job exists")

// markDuplicates finds the ticks of which the job was not stored because an equivalent one exists. It reports whether there are any.
func markDuplicates(ticks []*tick, jobs []*job.Job, inserted queue.Inserted) (found bool) {
	for i, j := range jobs {
		existing, refused := inserted.Existing(i), inserted.Refused(i)
		if existing == nil && refused == nil {
			continue
		}
		found = true
		for _, t := range ticks {
			if t.job == j {
				t.reason, t.existing = skippedBy(refused), existingJob(existing, refused)
			}
		}
	}
	return found
}

func existingJob(existing *job.Record, refused *ojs.Error) *[16]byte {
	if existing != nil {
		return &existing.ID
	}
	text, _ := refused.Details["existing_job_id"].(string)
	if id, ok := ojs.ParseID(text); ok {
		return &id
	}
	return nil
}

// limitUniqueWait bounds the wait for unique keys, which an application may have locked in a transaction that it keeps open.
func limitUniqueWait(ctx context.Context, tx pgx.Tx, jobs []*job.Job) error {
	if !slices.ContainsFunc(jobs, func(j *job.Job) bool { return j.Unique != nil }) {
		return nil
	}
	return dbsqlc.New(tx).SystemLockTimeout(ctx, uniqueWait)
}

// postpone leaves a tick due whose unique key is locked.
func (f *firing) postpone(ctx context.Context, t *tick) {
	f.ticks = slices.DeleteFunc(f.ticks, func(other *tick) bool { return other == t })
	f.store.timer.Schedule(uniqueRetry)
	f.store.logger.WarnContext(ctx, "another transaction keeps the unique key of a cron's job locked; trying again",
		slog.String("cron", t.row.Name), slog.Duration("retry_in", uniqueRetry))
}

// cancelPrevious cancels for fresh ticks only: for one that is in the log already, the job has been enqueued, and must not be cancelled
// by its own tick.
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

// record stores the outcome of ticks and advances their crons; fresh are those that were not stored before.
func (f *firing) record(ctx context.Context, q *dbsqlc.Queries, ticks []*tick, outcome string) (fresh map[[16]byte]bool, err error) {
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

// skipAll records the ticks without a job.
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

// recordGaps stores the local times that clocks have skipped.
func (f *firing) recordGaps(ctx context.Context) error {
	p := dbsqlc.CronRunInsertGapParams{Node: f.store.commits.Node, EventType: ojs.EventCronSkipped}
	for _, t := range f.ticks {
		addGaps(&p, t.row, t.gaps)
	}
	if p.Ids == nil {
		return nil
	}
	rows, err := f.q.CronRunInsertGap(ctx, p)
	f.changes = append(f.changes, gapChanges(rows)...)
	return err
}
