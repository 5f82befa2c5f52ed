package cron

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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

// Reasons of a tick without a job (docs/reference/events.md, Payloads). Clients see them, so they must not change.
const (
	// skippedOverlap and the others are listed for clients in docs/reference/scheduling.md, Firing.
	skippedOverlap   = "overlap_prevention"
	skippedQueue     = "queue_paused" // the queue drains: a paused one takes jobs
	skippedDuplicate = "duplicate"
	// skippedFailed is all that clients see; the log of the node has the cause.
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
	eventlog.Emit(ctx, s.commits, f.changes, sameChange)
	// Jobs that were cancelled are told before those that are new, in the order in which they happened. Serial crons of which a job was
	// cancelled may release another one.
	crons := f.cancelled.AfterCommit(ctx)
	var serial []string
	for _, t := range f.ticks {
		if !t.next.IsZero() {
			// If this node stops, the timers of others find the time in the database.
			s.timer.Schedule(max(0, t.next.Sub(t.now)))
		}
		if t.refused != nil {
			s.jobs.CountRefused(ctx, t.refused)
		}
		if t.reason == "" && t.row.OverlapPolicy == OverlapEnqueue {
			serial = append(serial, t.row.Name)
		}
	}
	// Spans end before the fetches are woken, so that the span of the enqueue ends before that of the run begins. Those of jobs
	// that were not inserted are not ended, and so not exported.
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
	f.inserted.AfterCommit(ctx)
	if len(f.ticks) > 0 {
		s.commits.Committed()
	}
	// Last, when the new jobs of serial crons are there.
	s.Release(ctx, append(crons, serial...))
	s.warnQueued(ctx, serial)
	pass.End(len(f.ticks), nil)
	return len(f.ticks), nil
}

// firing is one transaction that fires due crons. It belongs to one try and one goroutine. inserted, cancelled and changes
// are what Fire tells of after the commit.
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
	reason    string     // why there is no job
	existing  *[16]byte  // the job that prevents it
	refused   *ojs.Error // why the job was not stored; nil: it was, or was not tried
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
	for _, step := range []func(context.Context) error{f.findRecorded, f.findInvalid, f.findBusy, f.findDraining, f.findPrevious, f.fireAll,
		f.skipAll, f.recordGaps} {
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
		queue.AssignUniqueKeys(job)
		job.Unique = nil
	}
	// The span begins here, so that the job is stored with its trace context.
	t.job, t.span = job, f.store.tracer.Enqueue(ctx, job)
	return t
}

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
		// The lock of the unique key did not become free within uniqueWait. The tick stays due and is taken out of the pass, so nothing is
		// recorded about it.
		case pg.IsTimeout(err):
			f.ticks = slices.DeleteFunc(f.ticks, func(other *tick) bool { return other == t })
			f.store.timer.Schedule(uniqueRetry)
			f.store.logger.WarnContext(ctx, "another transaction keeps the unique key of a cron's job locked; trying again",
				slog.String("cron", t.row.Name), slog.Duration("retry_in", uniqueRetry))
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
		var previous [][16]byte
		var cancels []queue.Cancel
		var jobs []*job.Job
		var mark dbsqlc.JobUpdateCronParams
		for _, t := range ticks {
			// The job of a tick that is in the log already has been enqueued, and must not be cancelled by its own tick.
			if !fresh[t.row.ID] {
				continue
			}
			for _, id := range t.previous {
				previous, cancels = append(previous, id), append(cancels, queue.Cancel{By: "cron:" + t.row.Name})
			}
			serial := t.row.OverlapPolicy == OverlapEnqueue
			jobs = append(jobs, t.job)
			// A serial job is inserted as queued; release lets the first one go after the commit.
			mark.Ids, mark.Names = append(mark.Ids, t.job.ID), append(mark.Names, t.row.Name)
			mark.Serial, mark.Queued = append(mark.Serial, serial), append(mark.Queued, serial)
		}
		// findPrevious has locked the rows, so this does not wait.
		if cancelled, err = f.store.jobs.CancelTx(ctx, tx, "cron", previous, cancels); err != nil {
			return err
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

// errDuplicates rolls back ticks because unique policies prevent the jobs of some, which are skipped then. The tick was
// recorded as fired by then, which the roll-back takes back.
var errDuplicates = errors.New("an equivalent job exists")

// markDuplicates finds the ticks of which the job was not stored, because an equivalent one exists or its queue does not take it. It
// reports whether there are any. jobs has one element for each fresh tick, in the order of the insert.
func markDuplicates(ticks []*tick, jobs []*job.Job, inserted queue.Inserted) (found bool) {
	for i, j := range jobs {
		existing, refused := inserted.Existing(i), inserted.Refused(i)
		if existing == nil && refused == nil {
			continue
		}
		found = true
		t := ticks[slices.IndexFunc(ticks, func(t *tick) bool { return t.job == j })]
		t.reason, t.refused = skippedFailed, refused
		switch {
		case refused == nil || refused.Code == spec.DuplicateID("").Code: // an id that is taken counts as a duplicate
			t.reason = skippedDuplicate
		case ojs.ErrorKind(refused.Type) == ojs.ErrQueuePaused:
			t.reason = skippedQueue
		}
		if existing != nil {
			t.existing = &existing.ID
			continue
		}
		text, _ := refused.Details["existing_job_id"].(string)
		if id, ok := spec.ParseID(text); ok {
			t.existing = &id
		}
	}
	return found
}

// limitUniqueWait bounds the wait for unique keys, which an application may have locked in a transaction that it keeps
// open. The setting lasts to the end of the transaction, or of the savepoint if that is rolled back.
func limitUniqueWait(ctx context.Context, tx pgx.Tx, jobs []*job.Job) error {
	if !slices.ContainsFunc(jobs, func(j *job.Job) bool { return j.Unique != nil }) {
		return nil
	}
	return dbsqlc.New(tx).SystemLockTimeout(ctx, uniqueWait)
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
		p.Ids, p.ScheduledAt, p.NextRunAt = append(p.Ids, t.row.ID), append(p.ScheduledAt, pg.Timestamp(t.scheduled)),
			append(p.NextRunAt, pg.Timestamp(t.next))
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
			// The bus does not need the job: it has an event of its own.
			f.changes = append(f.changes, eventlog.Change{
				Type: tickEvent(t.reason), Subject: t.row.Name, JobType: t.row.Type, Queue: t.row.Queue, Reason: t.reason,
			})
		}
	}
}

func (f *firing) recordGaps(ctx context.Context) (err error) {
	var p dbsqlc.CronRunInsertGapParams
	for _, t := range f.ticks {
		addGaps(&p, t.row, t.gaps)
	}
	f.changes, err = f.store.insertGaps(ctx, f.q, p, f.changes)
	return err
}

// Trigger enqueues a job of the cron now, even if the cron is paused or has unfinished jobs (docs/reference/scheduling.md, Cron
// endpoints). With policy enqueue, other jobs of the cron wait for it. The unique policy of the job holds: it may be refused, or
// be answered with an equivalent one. It is not idempotent: each call that succeeds makes a job. It waits while a tick or a
// change has the row of the cron. After an error nothing is stored; if the outcome of the commit is unknown, the history of
// the cron shows it.
func (s *Store) Trigger(ctx context.Context, ref Ref) (*job.Record, error) {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // fetches are woken even if the client hangs up
	defer cancel()
	var res queue.Inserted
	var span tracing.Enqueue
	err := pg.Retry(func() error {
		return s.db.InPartitionedTx(bounded, func(tx pgx.Tx) error {
			res = queue.Inserted{}
			q := dbsqlc.New(tx)
			// The row of the cron is locked first, as in a tick, so triggers and ticks of a cron take turns.
			row, err := q.CronLock(bounded, ref.Name, ref.Tenant)
			if err != nil {
				return cronMissing(err, ref.Name)
			}
			// Under the lock, so runs of a cron have times in their order.
			now, err := q.SystemPing(bounded)
			if err != nil {
				return err
			}
			j, wire := s.cronJob((*Record)(&row), now.Time)
			if wire != nil {
				return wire
			}
			// The caller gets the refusal; a tick would be skipped for it.
			if _, err := s.schemas.Check(bounded, q, j); err != nil {
				return err
			}
			draining, err := q.QueueListDraining(bounded, []string{j.Queue})
			if err != nil {
				return err
			}
			// A manual run is refused like an enqueue.
			if len(draining) > 0 {
				return spec.With(spec.QueuePaused(j.Queue), "status", "draining")
			}
			if _, err := q.CronTrigger(bounded, dbsqlc.CronTriggerParams{ID: row.ID, Now: now,
				JobID: pgtype.UUID{Bytes: j.ID, Valid: true}}); err != nil {
				return err
			}
			span = s.tracer.Enqueue(bounded, j)
			serial := row.OverlapPolicy == OverlapEnqueue
			// Queued is false: a manual run goes first.
			mark := dbsqlc.JobUpdateCronParams{Ids: [][16]byte{j.ID}, Names: []string{ref.Name}, Serial: []bool{serial},
				Queued: []bool{false}}
			if err := limitUniqueWait(bounded, tx, []*job.Job{j}); err != nil {
				return err
			}
			if res, err = s.insertMarked(bounded, tx, []*job.Job{j}, mark); err != nil {
				return err
			}
			switch {
			case res.Refused(0) != nil:
				return res.Refused(0)
			// An error, so that the run is rolled back from the log.
			case res.Existing(0) != nil:
				return errDuplicates
			case !serial:
				return nil
			}
			// The job is inserted as one that can be fetched; the others that can be fetched are queued behind it, under the lock
			// that releases take.
			if err := q.CronLockSerial(bounded, []string{ref.Name}); err != nil {
				return err
			}
			return q.CronQueueJobs(bounded, ref.Name, j.ID)
		})
	})
	// The transaction was rolled back, so the run is not in the history.
	if errors.Is(err, errDuplicates) {
		return res.Existing(0), nil
	}
	if err != nil {
		s.jobs.CountRefused(ctx, err)
		return nil, pg.ClientError(err)
	}
	// The record is there: a refused or an existing job has returned before.
	span.Accepted(res.Record(0).ID, res.Record(0).State)
	res.AfterCommit(ctx)
	return res.Record(0), nil
}

// cronJob is the job of a tick or of a manual run. An unreadable template is a refusal, not an error of the server. What
// the queue gives is taken from the cache of the node.
func (s *Store) cronJob(row *Record, at time.Time) (*job.Job, *ojs.Error) {
	c := DefinitionOf(row)
	j, err := c.Job(at, s.limits)
	if err != nil {
		return nil, err
	}
	// The order is: the template, the queue, the default of crons.
	if s.jobs.Inherit(j); j.VisibilityMS == 0 {
		j.VisibilityMS = visibility.Milliseconds()
	}
	j.ID = job.NewID()
	return j, nil
}

// insertMarked inserts jobs of crons and sets the columns of their rows that only such jobs have. The marks need a second
// statement, because JobInsert leaves out columns that few jobs have. Both are in the transaction of the caller, so no
// fetch sees a job of a serial cron that is not queued.
func (s *Store) insertMarked(ctx context.Context, tx pgx.Tx, jobs []*job.Job, mark dbsqlc.JobUpdateCronParams) (queue.Inserted, error) {
	if len(jobs) == 0 {
		return queue.Inserted{}, nil
	}
	inserted, err := s.jobs.InsertTx(ctx, tx, jobs)
	if err != nil {
		return inserted, err
	}
	rows, err := dbsqlc.New(tx).JobUpdateCron(ctx, mark)
	for _, r := range rows {
		inserted.SetReady(r.ID, r.ReadySeq, r.DueAt)
	}
	return inserted, err
}

// Jobs of a cron with policy enqueue run one after the other (docs/reference/scheduling.md, Overlap). At most one of them can
// be fetched; the others are queued: their state is available, but they have no ready_seq. Every statement that makes such a
// job available leaves it queued. Only CronReleaseQueued releases one, after each commit that ends a job of the cron. The
// node of that commit may stop before the release, so the first queued job is due every two seconds.

const (
	// queuedRetry is the time by which the statements that queue a job set its due time; both must be changed together. releaseLock is
	// below releaseTimeout, so a lock that somebody keeps is an error that can be told from a slow database.
	queuedRetry    = 2 * time.Second // as in the statements
	releaseLock    = "1s"
	releaseTimeout = 5 * time.Second
	// maxQueued jobs of a cron may wait for a moment in normal operation, when a run takes a little longer than the interval.
	maxQueued = 2 // more are logged
)

// Release releases the next queued job of each cron that has no other job active or ready to fetch. It is called after the commit that
// moved a job of the cron (queue.Hooks), and returns no error for that reason. Repetitions and calls on several nodes are harmless. It
// goes on if ctx ends.
func (s *Store) Release(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	failed := func(err error) {
		s.logger.WarnContext(ctx, "queued jobs of crons were not released; trying again", slog.Any("error", err),
			slog.Duration("retry_in", queuedRetry))
		s.timer.Schedule(queuedRetry)
	}
	// The first look takes no lock, because nearly always nothing is queued. A job that is queued after it has its own timer, so
	// it is not lost.
	queued, err := s.db.Q.CronListQueued(ctx, names)
	if err != nil {
		failed(err)
		return
	}
	if len(queued) == 0 {
		return
	}
	waiting := sliceutil.Map(queued, func(c dbsqlc.CronListQueuedRow) string { return c.Cron })
	// Before the transaction, so that it holds if that fails.
	s.timer.Schedule(queuedRetry)
	var places []queue.Place
	var limits []string
	err = s.db.InTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		// A transaction of an application that keeps such a job locked must not keep acks waiting.
		if err := q.SystemLockTimeout(ctx, releaseLock); err != nil {
			return err
		}
		// Two commits that end jobs of a cron at the same moment must not both release one. It is an advisory lock by name,
		// because a cron may be deleted while its jobs are still queued.
		if err := q.CronLockSerial(ctx, waiting); err != nil {
			return err
		}
		// The statement looks again under the lock; what the look before has shown may be over.
		rows, err := q.CronReleaseQueued(ctx, waiting)
		for _, r := range rows {
			// A job with a limit is not ready yet: package limit gives it its place.
			if r.LimitKey.Valid {
				limits = append(limits, r.LimitKey.String)
			}
			if r.ReadySeq.Valid {
				places = append(places, queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.ReadySeq.Int64})
			}
		}
		return err
	})
	if err != nil {
		failed(err)
		return
	}
	s.jobs.NotifyAvailable(places)
	s.jobs.FollowLimits(ctx, limits)
}

// warnQueued logs crons whose jobs take longer than their interval. It counts without a lock; the line is a hint. Only
// crons that have just fired are looked at, so a cron is logged once per tick.
func (s *Store) warnQueued(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	queued, err := s.db.Q.CronListQueued(ctx, names)
	if err != nil {
		s.logger.WarnContext(ctx, "queued jobs of crons were not counted", slog.Any("error", err))
		return
	}
	for _, c := range queued {
		if c.Queued > maxQueued {
			s.logger.WarnContext(ctx, "jobs of a cron with overlap_policy enqueue pile up; lengthen its interval or change the policy",
				slog.String("cron", c.Cron), slog.Int64("queued", c.Queued))
		}
	}
}

// addGaps has for the time of a gap the instant that the old offset would give, so it is unique per cron.
func addGaps(p *dbsqlc.CronRunInsertGapParams, row *Record, gaps []time.Time) {
	for _, at := range gaps {
		p.Ids, p.ScheduledAt = append(p.Ids, row.ID), append(p.ScheduledAt, pg.Timestamp(at))
		p.EventData = append(p.EventData, append(cronEvent(row, skippedGap), '}'))
	}
}

// insertGaps stores the local times that clocks have skipped, if there are any, and appends their changes. A gap is in the log once, by its
// time, although it may be found twice: at the tick before it and at a change of the cron. Only rows that were new come back, so each gap
// has one event.
func (s *Store) insertGaps(ctx context.Context, q *dbsqlc.Queries, p dbsqlc.CronRunInsertGapParams,
	changes []eventlog.Change) ([]eventlog.Change, error) {
	if len(p.Ids) == 0 {
		return changes, nil
	}
	p.Node, p.EventType = s.commits.Node, ojs.EventCronSkipped
	rows, err := q.CronRunInsertGap(ctx, p)
	for _, r := range rows {
		changes = append(changes, eventlog.Change{
			Type: ojs.EventCronSkipped, Subject: r.Name, JobType: r.JobType, Queue: r.Queue, Reason: skippedGap,
		})
	}
	return changes, err
}

// cronEvent begins the payload of a cron's event; reason is "" if the cron fired. The caller closes the object
// (docs/reference/events.md, Payloads).
func cronEvent(row *Record, reason string) []byte {
	b := []byte{'{'}
	for _, member := range [][2]string{{"cron_name", row.Name}, {"cron_expr", row.Expression}, {"job_type", row.Type}, {"queue", row.Queue},
		{"reason", reason}} {
		if member[1] == "" {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), member[0]...), `":`...)
		b, _ = jsontext.AppendQuote(b, member[1]) // valid UTF-8: the decoder has checked it
	}
	return b
}

// eventData is the payload of the event of a tick: the job that it enqueued, or why there is none, and the job that
// prevented it. It is made before the job is inserted; a tick that turns out to be a duplicate is recorded anew.
func (t *tick) eventData() []byte {
	b := cronEvent(t.row, t.reason)
	if t.reason == "" {
		b = spec.AppendID(append(b, `,"job_id":"`...), t.job.ID)
		return append(append(append(b, `","scheduled_at":"`...), spec.FormatTime(t.scheduled)...), `"}`...)
	}
	if t.existing != nil {
		b = append(spec.AppendID(append(b, `,"existing_job_id":"`...), *t.existing), '"')
	}
	return append(b, '}')
}

// tickEvent is the type of the event of a tick; reason says why it enqueued no job. The statement writes one type for all
// ticks of a call, see record.
func tickEvent(reason string) string {
	if reason != "" {
		return ojs.EventCronSkipped
	}
	return ojs.EventCronTriggered
}

func sameChange(changes []eventlog.Change, c *eventlog.Change) []eventlog.Change {
	return append(changes, *c)
}
