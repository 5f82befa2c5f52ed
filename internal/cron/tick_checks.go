package cron

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/ojsd/ojsd/ojs"
)

// open are the ticks that no reason prevents yet; if policies are given, only those of crons with one of them.
func (f *firing) open(policies ...string) (ticks []*tick, names []string) {
	for _, t := range f.ticks {
		if t.reason == "" && (policies == nil || slices.Contains(policies, t.row.OverlapPolicy)) {
			ticks, names = append(ticks, t), append(names, t.row.Name)
		}
	}
	return ticks, names
}

// findInvalid finds the ticks whose job violates a schema that was registered after the cron.
func (f *firing) findInvalid(ctx context.Context) error {
	ticks, _ := f.open()
	for _, t := range ticks {
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

// findBusy finds the ticks that the policy skip prevents: their cron has an unfinished job.
func (f *firing) findBusy(ctx context.Context) error {
	ticks, names := f.open(OverlapSkip)
	if names == nil {
		return nil
	}
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
			t.reason, t.existing = skippedOverlap, id
		}
	}
	return nil
}

// findDraining finds the ticks whose queue is draining. A paused queue takes jobs.
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
// tick stays due, for cancelDelay at most. The transaction does not wait for the lock.
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
