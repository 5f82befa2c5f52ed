// Package timer wakes a node when something becomes due. It sleeps until the earliest due time that the node knows and
// then calls the domains: promotion, expiry, lost reservations, timeouts, dead workers, crons. It must never decide what
// happens to a job; the domains decide, by the clock of the database. There is no leader: every node may sweep at any time.
package timer

import (
	"context"
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
	"github.com/ojsd/ojsd/internal/service"
)

const (
	// busyPoll and idlePoll are the intervals at which a node reads the earliest due time even if no due time that it knows
	// has come: the node that scheduled a run may have stopped.
	busyPoll = 5 * time.Second
	idlePoll = 60 * time.Second

	// notifiedPoll delays the poll after a notification, so that several notifications share one.
	notifiedPoll = 5 * time.Millisecond
)

// Intervals are how often a timer polls the database.
type Intervals struct {
	Busy time.Duration // while jobs move
	Idle time.Duration // while nothing changes
	Full time.Duration // least time between two full sweeps
}

// Timer sleeps until the earliest due time that this node knows, and sweeps then.
//
// It is memory of this node: if the node stops, others find what is due by their polls, within Intervals.Idle and nearly always
// Busy.
type Timer struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// Intervals may be changed before Start.
	Intervals Intervals

	db      *pg.DB
	sources *Sources // nil: before Serve
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

	TestSignals signals
}

type signals struct {
	Swept testsignal.TestSignal[struct{}] // a run has ended
}

// Init prepares the signals for a test.
func (ts *signals) Init(tb testutil.TestingTB) { ts.Swept.Init(tb) }

// New returns a timer. It does nothing before Serve.
func New(archetype *baseservice.Archetype, db *pg.DB) *Timer {
	t := baseservice.Init(archetype, &Timer{
		db: db, earlier: make(chan struct{}, 1), Intervals: Intervals{Busy: busyPoll, Idle: idlePoll, Full: fullSweep},
	})
	t.next.Store(math.MaxInt64)
	return t
}

// Serve sets the functions that apply what is due. Call it once, before the node starts.
func (t *Timer) Serve(sources Sources) { t.sources = &sources }

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
	select {
	case t.earlier <- struct{}{}:
	default:
	}
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
	service.Run(ctx, &t.BaseStartStop, t.loop)
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
