package cron

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/unique"
)

const (
	// cronBatch bounds the ticks of one transaction.
	cronBatch = 200

	// cancelDelay is how late a tick may become because another transaction has locked a job that it must cancel.
	cancelDelay = time.Second

	// uniqueWait is how long a tick waits for the lock of the unique key of its job, and uniqueRetry when it is tried again.
	uniqueWait  = "1s"
	uniqueRetry = time.Second

	// unreadableRetry is when a tick is tried again whose cron this node cannot parse: a newer node may know its time zone.
	unreadableRetry = time.Minute
)

// Reasons of a tick without a job (docs/reference/events.md, Payloads).
const (
	skippedOverlap   = "overlap_prevention"
	skippedQueue     = "queue_paused" // the queue drains: a paused one takes jobs
	skippedDuplicate = "duplicate"
	skippedFailed    = "enqueue_failed"
	skippedGap       = "dst_skip"
)

// Fire fires up to 200 due crons and returns the number of ticks. Any node may call it at any time: the row of a cron is locked
// until its job is inserted and its next run stored (docs/reference/scheduling.md, Firing). During maintenance none fires.
func (s *Store) Fire(ctx context.Context) (int, error) {
	if s.maintenance.On() {
		return 0, nil
	}
	ctx, pass := s.tracer.Pass(ctx, "ojs.cron.trigger")
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	var f *firing
	err := pg.Retry(func() error { // unique policies and cancelled jobs may meet in a deadlock with enqueues
		return s.db.InPartitionedTx(bounded, func(tx pgx.Tx) error {
			f = &firing{store: s, tx: tx, q: dbsqlc.New(tx)}
			return f.run(bounded)
		})
	})
	if err != nil {
		return 0, err
	}
	f.committed(ctx)
	pass.End(len(f.ticks), nil)
	return len(f.ticks), nil
}

// firing is one transaction that fires due crons.
type firing struct {
	store *Store
	tx    pgx.Tx
	q     *dbsqlc.Queries

	ticks     []*tick
	inserted  queue.Inserted
	cancelled queue.Cancelled
	changes   []eventlog.Change // of the crons themselves
}

// tick is one due cron.
type tick struct {
	row       *Record
	now       time.Time
	scheduled time.Time // the latest missed time
	next      time.Time // zero: none
	gaps      []time.Time
	previous  [][16]byte // to cancel
	job       *job.Job
	span      tracing.Enqueue
	reason    string    // why there is no job
	existing  *[16]byte // the job that prevents it
}

// run takes each step for all due crons, because a step is one statement. A step that prevents a tick sets its reason. The
// next ones leave that tick out, and skipAll records it.
func (f *firing) run(ctx context.Context) error {
	rows, err := f.q.CronListDue(ctx, cronBatch)
	if err != nil || len(rows) == 0 {
		return err
	}
	for i := range rows {
		f.ticks = append(f.ticks, f.newTick(ctx, (*Record)(&rows[i].Cron), rows[i].Now.Time))
	}
	for _, step := range []func(context.Context) error{f.findInvalid, f.findBusy, f.findDraining, f.findPrevious, f.fireAll, f.skipAll, f.recordGaps} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// newTick computes the job of a due cron, the time it was due at, and the next one.
func (f *firing) newTick(ctx context.Context, row *Record, now time.Time) *tick {
	t := &tick{row: row, now: now, scheduled: row.NextRunAt.Time}
	logger := f.store.logger.With(slog.String("cron", row.Name))
	schedule, err := Parse(row.Expression, row.Timezone)
	if err != nil {
		t.next, t.reason = now.Add(unreadableRetry), skippedFailed
		logger.ErrorContext(ctx, "this node cannot parse the schedule of a cron; upgrade it, or register the cron again",
			slog.Any("error", err), slog.Duration("retry_in", unreadableRetry))
		return t
	}
	t.scheduled = schedule.Latest(row.NextRunAt.Time, now)
	if next, ok := schedule.Next(t.scheduled); ok {
		t.next, t.gaps = next, schedule.Skipped(row.NextRunAt.Time, next)
	} else {
		logger.WarnContext(ctx, "cron has no next run; delete it, or register it with another schedule")
	}
	job, wire := f.store.cronJob(row, t.scheduled)
	if wire != nil {
		t.reason = skippedFailed
		logger.WarnContext(ctx, "the job template of a cron is not valid any more; register the cron again", slog.Any("error", wire))
		return t
	}
	job.Source = "cron"
	if row.OverlapPolicy == OverlapCancelPrevious && job.Unique != nil { // the previous job gives way, so there is no conflict
		unique.Assign(job)
		job.Unique = nil
	}
	t.job, t.span = job, f.store.tracer.Enqueue(ctx, job)
	return t
}

// endSpans ends the spans of the inserted jobs.
func (f *firing) endSpans() {
	inserted := f.inserted.Records()
	for _, t := range f.ticks {
		if !t.span.Begun() {
			continue
		}
		for _, r := range inserted {
			if r.ID == t.job.ID {
				t.span.Accepted(r.ID, r.State)
			}
		}
	}
}

// committed emits the events, wakes fetches for the jobs, and schedules the next ticks.
func (f *firing) committed(ctx context.Context) {
	s := f.store
	eventlog.Emit(ctx, s.commits, f.changes, sameChange)
	crons := f.cancelled.AfterCommit(ctx)
	var serial []string
	for _, t := range f.ticks {
		if !t.next.IsZero() {
			s.timer.Schedule(max(0, t.next.Sub(t.now)))
		}
		if t.reason == "" && t.row.OverlapPolicy == OverlapEnqueue {
			serial = append(serial, t.row.Name)
		}
	}
	f.endSpans()
	f.inserted.AfterCommit(ctx)
	if len(f.ticks) > 0 {
		s.commits.Committed()
	}
	s.release(ctx, append(crons, serial...))
	s.warnQueued(ctx, serial)
}
