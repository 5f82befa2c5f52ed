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

// The reasons of skipped ticks are shown to clients and must not change.
const (
	// cronBatch bounds the ticks of one transaction. Their rows are locked until the commit, so changes of these crons wait
	// as long.
	cronBatch = 200

	// cancelDelay is how late a tick may become because another transaction has locked a job that it must cancel. After it
	// the tick goes on without the job that is locked.
	cancelDelay = time.Second

	// uniqueWait is how long a tick waits for the lock of the unique key of its job, and uniqueRetry when it is tried
	// again. The locks of all crons of the pass are kept meanwhile.
	uniqueWait  = "1s"
	uniqueRetry = time.Second

	// unreadableRetry is when a tick is tried again whose cron this node cannot parse: a newer node may know its time zone.
	// A cron that this node cannot read must not be looked at all the time, and the log has it once: see findRecorded.
	unreadableRetry = time.Minute
)

// Reasons of a tick without a job (docs/reference/events.md, Payloads).
const (
	// docs/reference/scheduling.md, Firing lists them for clients.
	skippedOverlap   = "overlap_prevention"
	skippedQueue     = "queue_paused" // the queue drains: a paused one takes jobs
	skippedDuplicate = "duplicate"
	// The log of the node has the cause; clients see this word only.
	skippedFailed = "enqueue_failed"
	skippedGap    = "dst_skip"
)

// Fire fires up to 200 due crons and returns the number of ticks. Any node may call it at any time: the row of a cron is locked
// until its job is inserted and its next run stored (docs/reference/scheduling.md, Firing). During maintenance none fires.
// Nothing is done after an error, and all crons stay due. Several missed ticks of a cron are one: the latest fires, with
// its own time.
func (s *Store) Fire(ctx context.Context) (int, error) {
	// Crons stay due: after the maintenance the latest missed tick of each fires.
	if s.maintenance.On() {
		return 0, nil
	}
	ctx, pass := s.tracer.Pass(ctx, "ojs.cron.trigger")
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	// Each try has its own: jobs of a try that was rolled back must not be told to fetches.
	var f *firing
	// InPartitionedTx is inside: a missing partition is made between two tries, not inside of a transaction.
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

// firing is one transaction that fires due crons. It belongs to one try and one goroutine. inserted, cancelled and changes
// are collected for committed.
//
// All crons of a pass share its statements and its commit, so 200 crons that are due at midnight cost little more than one.
// One cron whose job cannot be stored must not stop the others, hence the savepoints in fireAll.
type firing struct {
	store *Store
	tx    pgx.Tx
	q     *dbsqlc.Queries

	ticks     []*tick
	inserted  queue.Inserted
	cancelled queue.Cancelled
	changes   []eventlog.Change // of the crons themselves
}

// tick is one due cron. A tick with a reason makes no job; one that is taken out of firing.ticks stays due and is not
// recorded. gaps are the local times up to next that clocks have skipped. previous are jobs that this transaction has
// locked. now is the start of the transaction, by the clock of the database, the same for all ticks.
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
	// This node cannot parse the schedule. row.NextRunAt is then the time of a try from the second one on, and not one of the schedule;
	// it is also the time of the tick that a node fires which can parse it, unless the schedule has a later one by then.
	unreadable bool
}

// run takes each step for all due crons, because a step is one statement. A step that prevents a tick sets its reason. The
// next ones leave that tick out, and skipAll records it. The steps that prevent ticks come before those that write, so a
// prevented tick writes nothing but its record. The order of the former decides which reason a tick has that several
// prevent.
func (f *firing) run(ctx context.Context) error {
	// The rows are locked from here to the commit; those that another node has locked are skipped.
	rows, err := f.q.CronListDue(ctx, cronBatch)
	if err != nil || len(rows) == 0 {
		return err
	}
	for i := range rows {
		f.ticks = append(f.ticks, f.newTick(ctx, (*Record)(&rows[i].Cron), rows[i].Now.Time))
	}
	for _, step := range []func(context.Context) error{f.findRecorded, f.findInvalid, f.findBusy, f.findDraining, f.findPrevious, f.fireAll, f.skipAll, f.recordGaps} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// newTick computes the job of a due cron, the time it was due at, and the next one. It reads nothing but the row and the
// caches of the node. The job gets its id here, which goes into the record before the job is inserted.
func (f *firing) newTick(ctx context.Context, row *Record, now time.Time) *tick {
	t := &tick{row: row, now: now, scheduled: row.NextRunAt.Time}
	logger := f.store.logger.With(slog.String("cron", row.Name))
	schedule, err := Parse(row.Expression, row.Timezone)
	if err != nil {
		t.next, t.reason, t.unreadable = now.Add(unreadableRetry), skippedFailed, true
		logger.ErrorContext(ctx, "this node cannot parse the schedule of a cron; upgrade it, or register the cron again",
			slog.Any("error", err), slog.Duration("retry_in", unreadableRetry))
		return t
	}
	// next is computed from scheduled and not from now: @every keeps its rhythm after an outage.
	t.scheduled = schedule.Latest(row.NextRunAt.Time, now)
	// Without a next time the cron stays registered and is not due any more.
	if next, ok := schedule.Next(t.scheduled); ok {
		// From the time that was due, not from the latest missed one: gaps during an outage are recorded, too.
		t.next, t.gaps = next, schedule.Skipped(row.NextRunAt.Time, next)
	} else {
		logger.WarnContext(ctx, "cron has no next run; delete it, or register it with another schedule")
	}
	// The template may have been valid for another release or for other limits.
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
	// The span begins here, so that the job is stored with its trace context.
	t.job, t.span = job, f.store.tracer.Enqueue(ctx, job)
	return t
}

// endSpans ends the spans of the inserted jobs. Spans of jobs that were not inserted are not ended, and so not exported.
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

// committed emits the events, wakes fetches for the jobs, and schedules the next ticks. Jobs that were cancelled are told
// before those that are new, in the order in which they happened. Crons with the policy enqueue are released last, when
// their new job is there.
func (f *firing) committed(ctx context.Context) {
	s := f.store
	eventlog.Emit(ctx, s.commits, f.changes, sameChange)
	// Serial crons of which a job was cancelled may release another one.
	crons := f.cancelled.AfterCommit(ctx)
	var serial []string
	for _, t := range f.ticks {
		if !t.next.IsZero() {
			// If this node stops, the timers of others find the time in the database.
			s.timer.Schedule(max(0, t.next.Sub(t.now)))
		}
		if t.reason == "" && t.row.OverlapPolicy == OverlapEnqueue {
			serial = append(serial, t.row.Name)
		}
	}
	// Before the fetches are woken, so that the span of the enqueue ends before that of the run begins.
	f.endSpans()
	f.inserted.AfterCommit(ctx)
	if len(f.ticks) > 0 {
		s.commits.Committed()
	}
	s.release(ctx, append(crons, serial...))
	s.warnQueued(ctx, serial)
}
