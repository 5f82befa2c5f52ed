package cron

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/ojsd/ojsd/ojs"
)

// open are the ticks that no reason prevents yet; if policies are given, only those of crons with one of them. The names
// are in the order of the ticks.
func (f *firing) open(policies ...string) (ticks []*tick, names []string) {
	for _, t := range f.ticks {
		if t.reason == "" && (policies == nil || slices.Contains(policies, t.row.OverlapPolicy)) {
			ticks, names = append(ticks, t), append(names, t.row.Name)
		}
	}
	return ticks, names
}

// findRecorded gives ticks of crons that this node cannot parse the time of their latest one, if that was skipped for the same
// reason and the cron has not been changed since. The log has them then, so they only move the next run: otherwise a cron would
// have a record and an event for each minute.
func (f *firing) findRecorded(ctx context.Context) error {
	unreadable := map[[16]byte]*tick{}
	var ids [][16]byte
	for _, t := range f.ticks {
		if t.unreadable {
			unreadable[t.row.ID], ids = t, append(ids, t.row.ID)
		}
	}
	if ids == nil {
		return nil
	}
	rows, err := f.q.CronRunListLatest(ctx, ids)
	for _, r := range rows {
		t := unreadable[r.CronID]
		if r.Reason == skippedFailed && !r.ScheduledAt.Time.Before(t.row.UpdatedAt.Time) {
			t.scheduled = r.ScheduledAt.Time
		}
	}
	return err
}

// findInvalid finds the ticks whose job violates a schema that was registered after the cron. An error of the database ends
// the pass. Several ticks may have the same type; the schemas are in the memory of the node by the second one.
func (f *firing) findInvalid(ctx context.Context) error {
	ticks, _ := f.open()
	for _, t := range ticks {
		// It reads on the connection of the transaction.
		_, err := f.store.schemas.Check(ctx, f.q, t.job)
		if err == nil {
			continue
		}
		if _, refused := errors.AsType[*ojs.Error](err); !refused {
			return err
		}
		t.reason = skippedFailed
		f.store.logger.WarnContext(ctx, "the args of a cron violate the schema of its job type; register the cron again",
			slog.String("cron", t.row.Name), slog.Any("error", err))
	}
	return nil
}

// findBusy finds the ticks that the policy skip prevents: their cron has an unfinished job. The look needs no lock on the
// jobs: ticks and triggers, which make new ones, lock the row of the cron. A job that ends right after is seen as
// unfinished, and the tick is skipped, as it would have been a moment before.
func (f *firing) findBusy(ctx context.Context) error {
	ticks, names := f.open(OverlapSkip)
	if names == nil {
		return nil
	}
	// One job per cron is enough for the reason.
	rows, err := f.q.CronListUnfinishedJob(ctx, names)
	if err != nil {
		return err
	}
	busy := make(map[string]*[16]byte, len(rows))
	for i := range rows {
		busy[rows[i].Cron] = &rows[i].ID
	}
	for _, t := range ticks {
		if id := busy[t.row.Name]; id != nil {
			// The id is told in the event, for whoever asks what was in the way.
			t.reason, t.existing = skippedOverlap, id
		}
	}
	return nil
}

// findDraining finds the ticks whose queue is draining. A paused queue takes jobs. The rows of queues are read here and not
// from the cache, so that the reason is exact; InsertTx checks the rest of the rules of the queue.
func (f *firing) findDraining(ctx context.Context) error {
	ticks, _ := f.open()
	var queues []string
	for _, t := range ticks {
		queues = append(queues, t.job.Queue)
	}
	if queues == nil {
		return nil
	}
	draining, err := f.q.QueueListDraining(ctx, queues)
	if err != nil {
		return err
	}
	for _, t := range ticks {
		if slices.Contains(draining, t.job.Queue) {
			t.reason = skippedQueue
		}
	}
	return nil
}

// findPrevious finds and locks the jobs that the policy cancel_previous cancels. If another transaction has locked one, the
// tick stays due, for cancelDelay at most. The transaction does not wait for the lock. To wait would hold the locks of up
// to 200 crons for as long as some worker's ack takes, and could be a deadlock with it.
func (f *firing) findPrevious(ctx context.Context) error {
	ticks, names := f.open(OverlapCancelPrevious)
	if names == nil {
		return nil
	}
	live, err := f.q.CronListUnfinishedJobs(ctx, names)
	if err != nil || len(live) == 0 {
		return err
	}
	ids, byCron := make([][16]byte, len(live)), map[string][][16]byte{}
	for i, j := range live {
		ids[i], byCron[j.Cron.String] = j.ID, append(byCron[j.Cron.String], j.ID)
	}
	// A job that has ended since the list was read is missing, too, and the tick then waits for the next look.
	free, err := f.q.JobLockUnlocked(ctx, ids)
	if err != nil {
		return err
	}
	locked := make(map[[16]byte]bool, len(free))
	for _, id := range free {
		locked[id] = true
	}
	for _, t := range ticks {
		all := byCron[t.row.Name]
		t.previous = slices.DeleteFunc(slices.Clone(all), func(id [16]byte) bool { return !locked[id] })
		if len(t.previous) < len(all) && t.now.Sub(t.row.NextRunAt.Time) < cancelDelay {
			f.ticks = slices.DeleteFunc(f.ticks, func(other *tick) bool { return other == t })
		}
	}
	return nil
}
