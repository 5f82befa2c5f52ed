// Package timer is the clock of the due queue: it sleeps until the earliest due time that this node knows of and then has
// the domains apply what is due (promotion, expiry, lost leases, timeouts, dead workers, crons). It decides nothing about a
// job; the domains do, by the database's clock. Any node may sweep at any time, there is no leader.
package timer

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

	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// busyLook and idleLook are how often a node looks at the earliest due time although its own timers are silent: the
	// node that armed the timer may be gone.
	busyLook = 5 * time.Second
	idleLook = 60 * time.Second

	// Between full looks, a look leaves out what has been swept: under a pinned xmin dead entries pile up at the head of
	// jobs_due, and it would walk them all (1.2 ms for 10 000). Full looks find what became visible late, a job scheduled in
	// a transaction that stayed open, and take at most a twentieth of the time.
	fullLook  = 4 * time.Second
	costShare = 20

	// lateness of a commit that every look allows for.
	lateness = 2 * time.Second

	errorPause = time.Second
	lockPause  = 5 * time.Millisecond
	soonLook   = 5 * time.Millisecond
)

// Timer sleeps until the earliest due time this node knows of, and applies what is due then.
type Timer struct {
	baseservice.BaseService
	startstop.BaseStartStop

	db      *pg.DB
	looks   looks
	sources *Sources      // nil: nobody serves
	next    atomic.Int64  // local time of the next run in nanoseconds
	poke    chan struct{} // next became earlier
	mu      sync.Mutex    // one run at a time

	moved atomic.Bool // jobs have moved since the last run
	late  atomic.Bool // something was due when it was written, perhaps long ago: only a full look finds it

	// Guarded by mu.
	swept    pgtype.Timestamptz // due jobs before it are done with, by the database's clock
	fullAt   time.Time          // latest full look
	fullCost time.Duration

	TestSignals signals
}

// looks are the intervals of looks; tests set others.
type looks struct{ busy, idle, full time.Duration }

type signals struct {
	Swept testsignal.TestSignal[struct{}] // a run has ended
}

// Init prepares the signals for a test.
func (ts *signals) Init(tb testutil.TestingTB) { ts.Swept.Init(tb) }

// New returns a timer. It does nothing before Serve.
func New(archetype *baseservice.Archetype, db *pg.DB) *Timer {
	t := baseservice.Init(archetype, &Timer{db: db, looks: looks{busyLook, idleLook, fullLook}, poke: make(chan struct{}, 1)})
	t.next.Store(math.MaxInt64)
	return t
}

// Serve sets who applies what is due. Call it once, before the node starts.
func (t *Timer) Serve(sources Sources) { t.sources = &sources }

// Schedule makes sure that a run happens when the time has passed. Nearly every call finds an earlier one and costs a load.
func (t *Timer) Schedule(in time.Duration) {
	if in <= 0 {
		t.late.Store(true)
	}
	t.arm(in)
}

// Poll says that somebody else may have written due times, an application in SQL: the next look learns of them.
func (t *Timer) Poll() { t.arm(soonLook) }

func (t *Timer) arm(in time.Duration) {
	at := time.Now().Add(in).UnixNano()
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
	case t.poke <- struct{}{}:
	default:
	}
}

// Notify says that jobs move, here or on another node, which may have armed a timer and be gone before it fires: the next
// look is soon. Call it after every commit and for every announcement of another node.
func (t *Timer) Notify() {
	if !t.moved.Load() && !t.moved.Swap(true) {
		t.arm(t.looks.busy)
	}
}

// Overdue is for how long a run should have happened; 0 if none is due.
func (t *Timer) Overdue() time.Duration {
	return max(0, time.Since(time.Unix(0, min(t.next.Load(), math.MaxInt64/2))))
}

// Start runs the loop until stopped.
func (t *Timer) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := t.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	t.Schedule(0) // what became due while nobody was running
	go func() {
		started()
		defer stopped()
		t.loop(ctx)
	}()
	return nil
}

func (t *Timer) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.poke:
			timer.Reset(time.Until(time.Unix(0, t.next.Load())))
		case <-timer.C:
			if time.Now().UnixNano() >= t.next.Load() {
				t.run(ctx, 0)
			}
			timer.Reset(time.Until(time.Unix(0, t.next.Load())))
		}
	}
}

// CatchUp is called by a fetch: what this node knows to be due is applied first, but not more than one batch, so that a
// fetch does not pay for thousands of others.
func (t *Timer) CatchUp(ctx context.Context) {
	if t.sources != nil && time.Now().UnixNano() >= t.next.Load() {
		t.run(context.WithoutCancel(ctx), 1)
	}
}

// run sweeps at most so many batches, 0: until nothing is due.
func (t *Timer) run(ctx context.Context, batches int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().UnixNano() < t.next.Load() {
		return // somebody else just did
	}
	// Until the run ends, due times that others arm count from here.
	t.next.Store(math.MaxInt64)
	busy := t.moved.Swap(false)
	moved, next, err := t.runOnce(ctx, batches)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		t.Logger.WarnContext(ctx, "sweep of due jobs ended early", slog.Any("error", err))
		t.arm(errorPause)
	default:
		look := t.looks.idle
		if busy || moved > 0 {
			look = t.looks.busy
		}
		t.arm(min(next, look))
	}
	if moved > 0 {
		t.Logger.DebugContext(ctx, "due timers swept", slog.Int("moved", moved))
	}
	t.TestSignals.Swept.Signal(struct{}{})
}

// runOnce applies everything that is due now and returns the time until the next due timer. Nothing due costs one
// statement of three index probes, which is what an idle server pays for a look.
func (t *Timer) runOnce(ctx context.Context, batches int) (moved int, next time.Duration, err error) {
	after := t.swept
	full := t.late.Swap(false) || time.Since(t.fullAt) >= max(t.looks.full, costShare*t.fullCost)
	if full {
		after = pg.Beginning
	}
	for {
		start := time.Now()
		due, err := t.NextDue(ctx, after)
		if err != nil {
			return moved, 0, err
		}
		if full {
			t.fullAt, t.fullCost, full = start, time.Since(start), false
		}
		at, waiting := due.Next()
		if !waiting || at.After(due.Now) {
			t.swept = pgtype.Timestamptz{Time: due.Now.Add(-lateness), Valid: true}
			if !waiting {
				return moved, math.MaxInt64, nil
			}
			return moved, at.Sub(due.Now), nil
		}
		n, err := t.apply(ctx, due, after)
		moved += n
		if err != nil {
			return moved, 0, err
		}
		switch batches--; {
		case n == 0: // another node has them locked
			return moved, lockPause, nil
		case batches == 0:
			return moved, 0, nil
		}
	}
}

// apply does one batch of each kind that is due.
func (t *Timer) apply(ctx context.Context, due Due, after pgtype.Timestamptz) (moved int, err error) {
	if due.Is(due.Crons) {
		n, cronErr := t.sources.Crons(ctx)
		moved += n
		defer func() { err = errors.Join(err, cronErr) }() // jobs do not wait for a cron that cannot be fired
	}
	if due.Is(due.Workers) {
		n, err := t.sources.Workers(ctx)
		if moved += n; err != nil {
			return moved, err
		}
	}
	if !due.Is(due.Jobs) {
		return moved, nil
	}
	n, err := t.sources.Jobs(ctx, after)
	return moved + n, err
}
