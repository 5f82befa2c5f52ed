package cron

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// cronBatch bounds the ticks of one transaction.
	cronBatch = 200

	// cancelPatience is how late a tick may become because another transaction holds a job that it should cancel.
	cancelPatience = time.Second

	// unreadableAgain is when a cron is looked at again that this node cannot read: a newer one may know its time zone.
	unreadableAgain = time.Minute
)

// Why a tick made no job (docs/reference/events.md, Payloads).
const (
	skippedOverlap   = "overlap_prevention"
	skippedQueue     = "queue_paused"
	skippedDuplicate = "duplicate"
	skippedFailed    = "enqueue_failed"
	skippedGap       = "dst_skip"
)

// Fire fires up to 200 crons that are due and returns how many ticks it has dealt with. Any node may call it at any
// time: the rows of a tick are locked until its job is there and its cron advanced (docs/reference/scheduling.md, Firing).
func (s *Store) Fire(ctx context.Context) (int, error) {
	ctx, pass := s.tracer.Pass(ctx, "ojs.cron.trigger")
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	var f *firing
	err := s.db.InPartitionedTx(bounded, func(tx pgx.Tx) error {
		f = &firing{store: s, tx: tx, q: dbsqlc.New(tx)}
		return f.run(bounded)
	})
	if err != nil {
		return 0, err
	}
	f.committed(ctx)
	pass.End(len(f.ticks), nil)
	return len(f.ticks), nil
}

// firing is one transaction over due crons.
type firing struct {
	store *Store
	tx    pgx.Tx
	q     *dbsqlc.Queries

	ticks     []*tick
	inserted  queue.Inserted
	cancelled queue.Cancelled
	changes   []eventlog.Change // of the crons themselves
}

// tick is one cron that is due.
type tick struct {
	row       *Record
	now       time.Time
	scheduled time.Time // the latest missed time
	next      time.Time // zero: never again
	gaps      []time.Time
	previous  [][16]byte // to cancel
	job       *job.Job
	span      tracing.Enqueue
	reason    string    // why there is no job
	existing  *[16]byte // the job that prevents it
}

func (f *firing) run(ctx context.Context) error {
	rows, err := f.q.CronListDue(ctx, cronBatch)
	if err != nil || len(rows) == 0 {
		return err
	}
	for i := range rows {
		f.ticks = append(f.ticks, f.newTick(ctx, (*Record)(&rows[i].Cron), rows[i].Now.Time))
	}
	for _, step := range []func(context.Context) error{f.findBusy, f.findDraining, f.findPrevious, f.fireAll, f.skipAll, f.tellGaps} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// newTick computes the times of a due cron and its job.
func (f *firing) newTick(ctx context.Context, row *Record, now time.Time) *tick {
	t := &tick{row: row, now: now, scheduled: row.NextRunAt.Time}
	logger := f.store.logger.With(slog.String("cron", row.Name))
	schedule, err := Parse(row.Expression, row.Timezone)
	if err != nil {
		t.next, t.reason = now.Add(unreadableAgain), skippedFailed
		logger.ErrorContext(ctx, "cron cannot be read", slog.Any("error", err))
		return t
	}
	t.scheduled = schedule.Latest(row.NextRunAt.Time, now)
	if next, ok := schedule.Next(t.scheduled); ok {
		t.next, t.gaps = next, schedule.Skipped(row.NextRunAt.Time, next)
	} else {
		logger.WarnContext(ctx, "cron will never fire again")
	}
	job, wire := f.store.cronJob(row, t.scheduled)
	if wire != nil {
		t.reason = skippedFailed
		logger.WarnContext(ctx, "job of cron is not valid any more", slog.Any("error", wire))
		return t
	}
	job.Source = "cron"
	t.job, t.span = job, f.store.tracer.Enqueue(ctx, job)
	return t
}

// cronJob makes the job of a tick or of a run by hand.
func (s *Store) cronJob(row *Record, at time.Time) (*job.Job, *ojs.Error) {
	c := DefinitionOf(row)
	j, err := c.Job(at, s.config.Limits)
	if err != nil {
		return nil, err
	}
	if j.VisibilityMS == 0 {
		j.VisibilityMS = visibility.Milliseconds()
	}
	j.ID = job.NewID()
	return j, nil
}

// open are the ticks that may still make a job, under one of the policies if any are given.
func (f *firing) open(policies ...string) (ticks []*tick, names []string) {
	for _, t := range f.ticks {
		if t.reason == "" && (policies == nil || slices.Contains(policies, t.row.OverlapPolicy)) {
			ticks, names = append(ticks, t), append(names, t.row.Name)
		}
	}
	return ticks, names
}

// findBusy finds what the policy skip prevents.
func (f *firing) findBusy(ctx context.Context) error {
	ticks, names := f.open(OverlapSkip)
	if names == nil {
		return nil
	}
	rows, err := f.q.CronListBusy(ctx, names)
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

// findDraining finds what its queue refuses. A paused queue takes jobs.
func (f *firing) findDraining(ctx context.Context) error {
	ticks, _ := f.open()
	var queues []string
	for _, t := range ticks {
		queues = append(queues, t.job.Queue)
	}
	if queues == nil {
		return nil
	}
	draining, err := f.q.CronListDraining(ctx, queues)
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

// findPrevious finds what the policy cancel_previous cancels. A job that another transaction holds is waited for, but for
// a moment only and without a lock: its tick stays due.
func (f *firing) findPrevious(ctx context.Context) error {
	ticks, names := f.open(OverlapCancelPrevious)
	if names == nil {
		return nil
	}
	live, err := f.q.CronListLive(ctx, names)
	if err != nil || len(live) == 0 {
		return err
	}
	ids, byCron := make([][16]byte, len(live)), map[string][][16]byte{}
	for i, j := range live {
		ids[i], byCron[j.Cron.String] = j.ID, append(byCron[j.Cron.String], j.ID)
	}
	free, err := f.q.JobLockFree(ctx, ids)
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
		if len(t.previous) < len(all) && t.now.Sub(t.row.NextRunAt.Time) < cancelPatience {
			f.ticks = slices.DeleteFunc(f.ticks, func(other *tick) bool { return other == t })
		}
	}
	return nil
}

// fireAll fires what is still open: all at once or, if the database refuses a row, each by itself.
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
			f.store.logger.ErrorContext(ctx, "job of cron was refused", slog.String("cron", t.row.Name), slog.Any("error", err))
		default:
			return err
		}
	}
	return nil
}

// fire logs the ticks, cancels what has to go and inserts the jobs, or does nothing.
func (f *firing) fire(ctx context.Context, ticks []*tick) error {
	var cancelled queue.Cancelled
	var inserted queue.Inserted
	var fresh map[[16]byte]bool
	err := pgx.BeginFunc(ctx, f.tx, func(tx pgx.Tx) (err error) {
		if fresh, err = f.log(ctx, dbsqlc.New(tx), ticks, "fired"); err != nil {
			return err
		}
		if cancelled, err = f.cancelPrevious(ctx, tx, ticks, fresh); err != nil {
			return err
		}
		var jobs []*job.Job
		var mark dbsqlc.CronMarkParams
		for _, t := range ticks {
			if fresh[t.row.ID] {
				serial := t.row.OverlapPolicy == OverlapEnqueue
				jobs = append(jobs, t.job)
				mark.Ids, mark.Names = append(mark.Ids, t.job.ID), append(mark.Names, t.row.Name)
				mark.Serial, mark.Held = append(mark.Serial, serial), append(mark.Held, serial)
			}
		}
		inserted, err = f.store.insertMarked(ctx, tx, jobs, mark)
		return err
	})
	if err == nil {
		f.cancelled.Append(cancelled)
		f.inserted.Append(inserted)
		f.note(ticks, fresh)
	}
	return err
}

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

// insertMarked inserts jobs of crons and marks their rows as such.
func (s *Store) insertMarked(ctx context.Context, tx pgx.Tx, jobs []*job.Job, mark dbsqlc.CronMarkParams) (queue.Inserted, error) {
	if len(jobs) == 0 {
		return queue.Inserted{}, nil
	}
	inserted, err := s.jobs.InsertTx(ctx, tx, jobs)
	if err != nil {
		return inserted, err
	}
	rows, err := dbsqlc.New(tx).CronMark(ctx, mark)
	for _, r := range rows {
		inserted.SetReady(r.ID, r.ReadySeq, r.DueAt)
	}
	return inserted, err
}

// log records what became of ticks and advances their crons; fresh are those that had not been recorded.
func (f *firing) log(ctx context.Context, q *dbsqlc.Queries, ticks []*tick, outcome string) (fresh map[[16]byte]bool, err error) {
	p := dbsqlc.CronTickParams{Node: f.store.commits.Node}
	for _, t := range ticks {
		var jobID [16]byte
		if t.job != nil {
			jobID = t.job.ID
		}
		p.Ids, p.ScheduledAt, p.NextRunAt = append(p.Ids, t.row.ID), append(p.ScheduledAt, pg.Timestamp(t.scheduled)), append(p.NextRunAt, pg.Timestamp(t.next))
		p.Outcomes, p.Reasons, p.JobIds = append(p.Outcomes, outcome), append(p.Reasons, t.reason), append(p.JobIds, jobID)
		p.EventData = append(p.EventData, t.eventData())
	}
	rows, err := q.CronTick(ctx, p)
	fresh = make(map[[16]byte]bool, len(rows))
	for _, r := range rows {
		fresh[r.ID] = r.Fresh
	}
	return fresh, err
}

// skipAll records the ticks that make no job.
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
	fresh, err := f.log(ctx, f.q, skipped, "skipped")
	f.note(skipped, fresh)
	return err
}

// note remembers what to tell of the crons after the commit.
func (f *firing) note(ticks []*tick, fresh map[[16]byte]bool) {
	for _, t := range ticks {
		if fresh[t.row.ID] {
			f.changes = append(f.changes, cronChangeOf(t.row, t.reason))
		}
	}
}

func (f *firing) tellGaps(ctx context.Context) error {
	p := dbsqlc.CronGapParams{Node: f.store.commits.Node}
	for _, t := range f.ticks {
		addGaps(&p, t.row, t.gaps)
	}
	if p.Ids == nil {
		return nil
	}
	rows, err := f.q.CronGap(ctx, p)
	f.changes = append(f.changes, gapChanges(rows)...)
	return err
}

// endSpans ends those of the jobs that were made.
func (f *firing) endSpans() {
	made := f.inserted.Records()
	for _, t := range f.ticks {
		if !t.span.Begun() {
			continue
		}
		for _, r := range made {
			if r.ID == t.job.ID {
				t.span.Accepted(r.ID, r.State)
			}
		}
	}
}

// committed emits the events and wakes whoever waits for the jobs or the next ticks.
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
	s.warnOfWaiting(ctx, serial)
}
