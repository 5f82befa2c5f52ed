package loop

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// busyPoll and idlePoll are the intervals at which a node reads the earliest due time even if no due time that it knows
	// has come: the node that scheduled a run may have stopped.
	busyPoll = 5 * time.Second
	idlePoll = 60 * time.Second

	// notifiedPoll delays the poll after a notification, so that several notifications share one.
	notifiedPoll = 5 * time.Millisecond
)

// TimerIntervals are how often a timer polls the database.
type TimerIntervals struct {
	Busy time.Duration // while jobs move
	Idle time.Duration // while nothing changes
	Full time.Duration // least time between two full sweeps
}

// Timer wakes a node when something becomes due. It sleeps until the earliest due time that the node knows and then calls the domains:
// promotion, expiry, lost reservations, timeouts, dead workers, crons. It must never decide what happens to a job; the domains decide, by
// the clock of the database. There is no leader: every node may sweep at any time.
//
// It is memory of this node: if the node stops, others find what is due by their polls, within Intervals.Idle and nearly always
// Busy.
type Timer struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// Intervals may be changed before Start.
	Intervals TimerIntervals

	db      *pg.DB
	sources TimerSources
	// math.MaxInt64: none is scheduled, or one runs.
	next atomic.Int64 // clock.Running at the next run
	// Capacity 1. A signal in it means that the loop has to look at next again.
	earlier chan struct{} // signalled when next became earlier
	mu      sync.Mutex    // one run at a time

	moved atomic.Bool // jobs have moved since the last run
	late  atomic.Bool // a due time was scheduled after it had passed; only a full sweep finds such jobs

	// Guarded by mu.
	swept    pgtype.Timestamptz // due jobs before this time are done, by the clock of the database
	fullAt   time.Time          // start of the latest full sweep
	fullCost time.Duration

	// Rows that other transactions have locked are tried again at retryAt. 0: there were none at the latest full sweep.
	retryPause time.Duration
	retryAt    time.Time

	TestSignals timerSignals
}

type timerSignals struct {
	Swept testsignal.TestSignal[struct{}] // a run has ended
}

// Init prepares the signals for a test.
func (ts *timerSignals) Init(tb testutil.TestingTB) { ts.Swept.Init(tb) }

// NewTimer returns a timer. The domains that sources call are built after it, because they schedule on it; it calls none before it is
// started or a fetch asks it to sweep.
func NewTimer(archetype *baseservice.Archetype, db *pg.DB, sources TimerSources) *Timer {
	t := baseservice.Init(archetype, &Timer{
		db: db, sources: sources,
		earlier: make(chan struct{}, 1), Intervals: TimerIntervals{Busy: busyPoll, Idle: idlePoll, Full: fullSweep},
	})
	t.next.Store(math.MaxInt64)
	return t
}

// Schedule makes sure that a run happens when the time has passed. Nearly every call finds an earlier run scheduled and
// costs one atomic load.
// Statements return due times relative to the clock of the database; nothing here compares them with the clock of this machine.
func (t *Timer) Schedule(in time.Duration) {
	if in <= 0 {
		t.late.Store(true)
	}
	t.scheduleRun(in)
}

// Poll reads the earliest due time soon. Call it when something outside of this node may have written due times, for
// example an application in SQL.
func (t *Timer) Poll() { t.scheduleRun(notifiedPoll) }

// scheduleRun makes the next run earlier, never later: one that comes too early finds nothing due and costs a statement, one that comes
// too late delays a job.
func (t *Timer) scheduleRun(in time.Duration) {
	now := clock.Running()
	at := int64(now + min(in, math.MaxInt64-now)) // a client may schedule a job centuries ahead
	for {
		next := t.next.Load()
		if at >= next {
			return
		}
		if t.next.CompareAndSwap(next, at) {
			break
		}
	}
	Signal(t.earlier)
}

// left is the time until the scheduled run.
func (t *Timer) left() time.Duration { return time.Duration(t.next.Load()) - clock.Running() }

// Notify reports that jobs moved, on this node or on another one, which may stop before the due times that it scheduled.
// Call it after every commit and for every notification of another node.
func (t *Timer) Notify() {
	if !t.moved.Load() && !t.moved.Swap(true) {
		t.scheduleRun(t.Intervals.Busy)
	}
}

// Overdue is by how much the scheduled run is late; 0 if it is not.
// Health checks use it: a timer that is late for long does not run.
func (t *Timer) Overdue() time.Duration {
	return max(0, -t.left())
}

// Start runs the loop until stopped.
func (t *Timer) Start(ctx context.Context) error {
	Run(ctx, &t.BaseStartStop, t.loop)
	return nil
}

// loop sleeps until the next run. It looks at next again when it wakes, because a fetch may have swept meanwhile (SweepDue).
func (t *Timer) loop(ctx context.Context) {
	t.Schedule(0) // for what became due while no node was running
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.earlier:
			timer.Reset(t.left())
		case <-timer.C:
			if t.left() <= 0 {
				t.run(ctx, 0)
			}
			timer.Reset(t.left())
		}
	}
}

const (
	// fullSweep is how often a sweep reads from the beginning. Another one leaves out the due times before the previous sweep: under a
	// pinned xmin dead entries stay at the head of index jobs_due, and the sweep would walk all of them (1.2 ms for 10 000). Full sweeps
	// find jobs that became visible late, for example one scheduled in a transaction that stayed open. They take at most 1/fullShare of the
	// time.
	fullSweep = 4 * time.Second
	fullShare = 20

	// commitDelay is the delay of commits that every sweep allows for.
	// A due time that becomes visible later than that is found by the next full sweep.
	commitDelay = 2 * time.Second

	errorPause = time.Second

	// firstRetry and lastRetry are the shortest and the longest pause before rows are tried again that other transactions have
	// locked: a sweep of another node locks them for milliseconds, an application that leaves ojs.cancel uncommitted for hours.
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Second
)

// SweepDue applies what this node knows to be due, at most one batch, so that a fetch does not pay for thousands of jobs.
// It runs on the goroutine of a fetch, so jobs that are due by the knowledge of the node are available to it. A sweep that runs
// at the moment makes it wait for its end.
func (t *Timer) SweepDue(ctx context.Context) {
	if t.sources.Jobs != nil && t.left() <= 0 {
		t.run(context.WithoutCancel(ctx), 1)
	}
}

// run applies at most so many batches; 0: until nothing is due.
// It schedules the next run in every case but the end of ctx, after an error in errorPause.
func (t *Timer) run(ctx context.Context, batches int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left() > 0 {
		return // a concurrent run has applied it
	}
	// Reset before the sweep: a due time that is scheduled during it must not be lost.
	t.next.Store(math.MaxInt64)
	busy := t.moved.Swap(false)
	moved, next, err := t.runOnce(ctx, batches)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		t.Logger.WarnContext(ctx, "sweep of due jobs ended early", slog.Any("error", err))
		t.scheduleRun(errorPause)
	default:
		poll := max(t.Intervals.Idle, t.Intervals.Busy)
		if busy || moved > 0 {
			poll = t.Intervals.Busy
		}
		t.scheduleRun(min(next, poll))
	}
	if moved > 0 {
		t.Logger.DebugContext(ctx, "due timers swept", slog.Int("moved", moved))
	}
	t.TestSignals.Swept.Signal(struct{}{})
}

// runOnce applies everything that is due now, but for rows that other transactions have locked, and returns the time until the
// next due time. If nothing is due it costs one statement with an index probe for each kind of due time.
//
// Guarded by t.mu, which its caller holds. After an error what was applied stays applied, and swept stays where it was, so the
// next run looks at the rest.
func (t *Timer) runOnce(ctx context.Context, batches int) (moved int, next time.Duration, err error) {
	s := sweep{after: t.swept, full: t.fullDue()}
	if s.full {
		s.after = pg.Beginning
	}
	for first := true; ; first = false {
		start := time.Now()
		due, err := t.NextDue(ctx, s.after)
		if err != nil {
			return moved, 0, err
		}
		if s.full && first {
			t.fullAt, t.fullCost = start, time.Since(start)
		}
		if next := due.next(); next > 0 {
			t.ended(due, s.full)
			return moved, min(next, t.retryIn()), nil
		}
		// Stop does not cancel a batch that has begun: a commit without its result loses log lines and counts, and the jobs of
		// workers that were declared dead would wait for another node.
		n, err := t.apply(context.WithoutCancel(ctx), due, s.after)
		moved += n
		if err != nil {
			return moved, 0, err
		}
		switch batches--; {
		// Something is due, and nothing could be moved: it must be locked.
		case n == 0:
			next, err := t.blocked(ctx, due, s.full)
			return moved, next, err
		// 0: run at once again, on the goroutine of the timer.
		case batches == 0:
			return moved, 0, nil
		}
	}
}

// sweep is what one run looks at.
type sweep struct {
	after pgtype.Timestamptz // jobs due before it are left out
	full  bool               // none are
}

// fullDue spaces sweeps that walk the dead entries at the head of jobs_due. Its cost is that of its first read, measured each time.
func (t *Timer) fullDue() bool {
	late := t.late.Swap(false)
	return late || time.Since(t.fullAt) >= max(t.Intervals.Full, fullShare*t.fullCost) || t.retryIn() <= 0
}

// retryIn is the time until rows are tried again that were locked.
func (t *Timer) retryIn() time.Duration {
	if t.retryPause == 0 {
		return math.MaxInt64
	}
	return time.Until(t.retryAt)
}

// ended records that all that was due at that time has been applied, or only what was not locked if the sweep was not full.
func (t *Timer) ended(due Due, full bool) {
	t.swept = pgtype.Timestamptz{Time: due.Now.Add(-commitDelay), Valid: true}
	if full {
		t.retryPause = 0
	}
}

// blocked records that other transactions have locked all that is left, and returns when to sweep again. Ordinary sweeps leave
// those rows out as soon as commitDelay has passed. A full one tries them again, after a pause that grows.
func (t *Timer) blocked(ctx context.Context, due Due, full bool) (next time.Duration, err error) {
	t.ended(due, false)
	if full || t.retryPause == 0 {
		t.retryPause = min(max(firstRetry, 2*t.retryPause), lastRetry)
		t.retryAt = time.Now().Add(max(t.retryPause, fullShare*t.fullCost))
	}
	now := pgtype.Timestamptz{Time: due.Now, Valid: true}
	later, err := t.nextDue(ctx, now, now)
	if err != nil {
		return 0, err
	}
	if due.reached(due.Workers) {
		later.Workers.Valid = false // the same worker, or one that can wait for the next try
	}
	return min(later.next(), t.retryIn()), nil
}

// apply applies one batch of each kind that is due.
// Crons come first, because a tick must not wait for a thousand jobs.
func (t *Timer) apply(ctx context.Context, due Due, after pgtype.Timestamptz) (moved int, err error) {
	if due.reached(due.Crons) {
		n, cronErr := t.sources.Crons(ctx)
		moved += n
		defer func() { err = errors.Join(err, cronErr) }() // a cron that cannot be fired must not stop the jobs
	}
	if due.reached(due.Workers) {
		n, err := t.sources.Workers(ctx)
		if moved += n; err != nil {
			return moved, err
		}
	}
	if !due.reached(due.Jobs) {
		return moved, nil
	}
	n, err := t.sources.Jobs(ctx, after)
	return moved + n, err
}

// TimerSources are the functions of the domains that a sweep calls.
//
// All are required, but for a timer that only schedules: without Jobs, SweepDue does nothing. They run one at a time per node (Timer.mu),
// but beside those of other nodes, so each must be safe to run twice for the same rows.
type TimerSources struct {
	// Jobs applies one batch of due transitions, of jobs that were due at after or later, and returns how many jobs moved.
	Jobs func(ctx context.Context, after pgtype.Timestamptz) (moved int, err error)

	// Workers reaps dead workers and recovers their jobs. It returns how many workers it changed.
	Workers func(ctx context.Context) (moved int, err error)

	// Crons fires the due crons and returns how many ticks it completed.
	Crons func(ctx context.Context) (moved int, err error)

	// WorkerDeadAt is when the worker that has been silent for longest is dead, given its last beat by the clock of the database.
	WorkerDeadAt func(lastBeat time.Time) time.Time
}

// Due holds the earliest due time of each kind, by the clock of the database. A time that is not valid means that there is
// none; there is no sentinel, because clients may choose any time.
type Due struct {
	Now     time.Time
	Jobs    pgtype.Timestamptz
	Workers pgtype.Timestamptz // when the worker that has been silent for longest is dead
	Crons   pgtype.Timestamptz
}

// next is the time until the earliest of them: 0 or less if it has come, a very long time if there is none.
func (d Due) next() time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, t := range []pgtype.Timestamptz{d.Jobs, d.Workers, d.Crons} {
		if t.Valid {
			next = min(next, t.Time.Sub(d.Now))
		}
	}
	return next
}

// reached reports whether one of the times has come.
func (d Due) reached(t pgtype.Timestamptz) bool { return t.Valid && !t.Time.After(d.Now) }

// NextDue reads the earliest due time of each kind. It leaves out jobs due before after, which a sweep has applied.
// It also sets the clock of this process (package clock), as each sweep reads the time of the database anyway.
func (t *Timer) NextDue(ctx context.Context, after pgtype.Timestamptz) (Due, error) {
	return t.nextDue(ctx, after, pg.Beginning)
}

// nextDue leaves out crons due before cronsAfter, too.
func (t *Timer) nextDue(ctx context.Context, after, cronsAfter pgtype.Timestamptz) (Due, error) {
	ctx, cancel := t.db.Bounded(ctx)
	defer cancel()
	asked := time.Now()
	row, err := t.db.Q.DueGetNext(ctx, after, cronsAfter)
	if err != nil {
		return Due{}, err
	}
	clock.Set(row.Now.Time, asked)
	// WorkerLeft is the time of what is left to do about workers that have ended: about their jobs, or their rows.
	due := Due{Now: row.Now.Time, Jobs: row.JobDue, Workers: row.WorkerLeft, Crons: row.CronDue}
	if row.WorkerSeen.Valid {
		dead := t.sources.WorkerDeadAt(row.WorkerSeen.Time)
		if !due.Workers.Valid || dead.Before(due.Workers.Time) {
			due.Workers = pgtype.Timestamptz{Time: dead, Valid: true}
		}
	}
	return due, nil
}
