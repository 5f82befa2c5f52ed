package cron

import (
	"context"
	"log/slog"

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
	if !pg.IsRowError(err) || pg.IsNoPartition(err) {
		return err
	}
	for _, t := range ticks {
		switch err := f.fire(ctx, []*tick{t}); {
		case err == nil:
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
		inserted, err = f.store.insertMarked(ctx, tx, jobs, mark)
		return err
	})
	if err == nil {
		f.cancelled.Append(cancelled)
		f.inserted.Append(inserted)
		f.addChanges(ticks, fresh)
	}
	return err
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
