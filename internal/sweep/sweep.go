// Package sweep applies what time brings: due timers (promotion, expiry, lost leases, timeouts) and the safety look for
// fetchers that wait. It decides nothing about a job; the store does, by the database's clock. Any node may sweep at any
// time, there is no leader.
package sweep

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

	"github.com/ojsd/ojsd/internal/store"
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

// Sweeper sleeps until the earliest due time this node knows of, and applies what is due then.
type Sweeper struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *store.Store
	next  atomic.Int64  // local time of the next run in nanoseconds
	poke  chan struct{} // next became earlier
	mu    sync.Mutex    // one run at a time

	stirred atomic.Bool // jobs have moved since the last run
	late    atomic.Bool // something was due when it was written, perhaps long ago: only a full look finds it

	// Guarded by mu.
	swept    pgtype.Timestamptz // due jobs before it are done with, by the database's clock
	fullAt   time.Time          // latest full look
	fullCost time.Duration

	TestSignals sweeperSignals
}

type sweeperSignals struct {
	Swept testsignal.TestSignal[struct{}] // a run has ended
}

// Init prepares the signals for a test.
func (ts *sweeperSignals) Init(tb testutil.TestingTB) { ts.Swept.Init(tb) }

// NewSweeper returns a sweeper for the store's jobs. It has the store tell it of due times; Stir is for the caller.
func NewSweeper(archetype *baseservice.Archetype, s *store.Store) *Sweeper {
	w := baseservice.Init(archetype, &Sweeper{store: s, poke: make(chan struct{}, 1)})
	w.next.Store(math.MaxInt64)
	s.OnDue(w.Arm)
	s.BeforeFetch(w.catchUp)
	return w
}

// Arm makes sure that a run happens when the time has passed. Nearly every call finds an earlier one and costs a load.
func (w *Sweeper) Arm(in time.Duration) {
	if in <= 0 {
		w.late.Store(true)
	}
	w.arm(in)
}

// Look says that somebody else may have written due times, an application in SQL: the next look learns of them.
func (w *Sweeper) Look() { w.arm(soonLook) }

func (w *Sweeper) arm(in time.Duration) {
	at := time.Now().Add(in).UnixNano()
	for {
		next := w.next.Load()
		if at >= next {
			return
		}
		if w.next.CompareAndSwap(next, at) {
			break
		}
	}
	poke(w.poke)
}

// Stir says that jobs move, here or on another node, which may have armed a timer and be gone before it fires: the next
// look is soon. Call it after every commit and for every announcement of another node.
func (w *Sweeper) Stir() {
	if !w.stirred.Load() && !w.stirred.Swap(true) {
		w.arm(busyLook)
	}
}

// Overdue is for how long a run should have happened; 0 if none is due.
func (w *Sweeper) Overdue() time.Duration {
	return max(0, time.Since(time.Unix(0, min(w.next.Load(), math.MaxInt64/2))))
}

// Start runs the loop until stopped.
func (w *Sweeper) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := w.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	w.Arm(0) // what became due while nobody was running
	go func() {
		started()
		defer stopped()
		w.loop(ctx)
	}()
	return nil
}

func (w *Sweeper) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.poke:
			timer.Reset(time.Until(time.Unix(0, w.next.Load())))
		case <-timer.C:
			if time.Now().UnixNano() >= w.next.Load() {
				w.run(ctx, 0)
			}
			timer.Reset(time.Until(time.Unix(0, w.next.Load())))
		}
	}
}

// catchUp is called by a fetch: what this node knows to be due is applied first, but not more than one batch, so that a
// fetch does not pay for thousands of others.
func (w *Sweeper) catchUp(ctx context.Context) {
	if time.Now().UnixNano() >= w.next.Load() {
		w.run(context.WithoutCancel(ctx), 1)
	}
}

// run sweeps at most so many batches, 0: until nothing is due.
func (w *Sweeper) run(ctx context.Context, batches int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().UnixNano() < w.next.Load() {
		return // somebody else just did
	}
	// Until the run ends, due times that others arm count from here.
	w.next.Store(math.MaxInt64)
	busy := w.stirred.Swap(false)
	moved, next, err := w.runOnce(ctx, batches)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		w.Logger.WarnContext(ctx, "sweep of due jobs ended early", slog.Any("error", err))
		w.arm(errorPause)
	default:
		look := idleLook
		if busy || moved > 0 {
			look = busyLook
		}
		w.arm(min(next, look))
	}
	if moved > 0 {
		w.Logger.DebugContext(ctx, "due timers swept", slog.Int("moved", moved))
	}
	w.TestSignals.Swept.Signal(struct{}{})
}

// runOnce applies everything that is due now and returns the time until the next due timer. Nothing due costs one
// statement of three index probes, which is what an idle server pays for a look.
func (w *Sweeper) runOnce(ctx context.Context, batches int) (moved int, next time.Duration, err error) {
	after := w.swept
	full := w.late.Swap(false) || time.Since(w.fullAt) >= max(fullLook, costShare*w.fullCost)
	if full {
		after = store.FromTheStart
	}
	for {
		start := time.Now()
		due, err := w.store.NextDue(ctx, after)
		if err != nil {
			return moved, 0, err
		}
		if full {
			w.fullAt, w.fullCost, full = start, time.Since(start), false
		}
		at, waiting := due.Next()
		if !waiting || at.After(due.Now) {
			w.swept = pgtype.Timestamptz{Time: due.Now.Add(-lateness), Valid: true}
			if !waiting {
				return moved, math.MaxInt64, nil
			}
			return moved, at.Sub(due.Now), nil
		}
		n, err := w.apply(ctx, due, after)
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
func (w *Sweeper) apply(ctx context.Context, due store.Due, after pgtype.Timestamptz) (moved int, err error) {
	if due.Is(due.Crons) {
		n, cronErr := w.store.FireCrons(ctx)
		moved += n
		defer func() { err = errors.Join(err, cronErr) }() // jobs do not wait for a cron that cannot be fired
	}
	if due.Is(due.Workers) {
		n, err := w.store.BuryWorkers(ctx)
		if moved += n; err != nil {
			return moved, err
		}
	}
	if !due.Is(due.Jobs) {
		return moved, nil
	}
	n, err := w.store.PromoteDue(ctx, after)
	if moved += n; err != nil {
		return moved, err
	}
	_, n, err = w.store.FailOverdue(ctx, after)
	return moved + n, err
}
