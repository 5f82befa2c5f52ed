package timer

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// A sweep leaves out the due times before the previous sweep: under a pinned xmin dead entries stay at the head of index
	// jobs_due, and the sweep would walk all of them (1.2 ms for 10 000). Full sweeps find jobs that became visible late, for
	// example one scheduled in a transaction that stayed open. They take at most 1/fullShare of the time.
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
	if t.sources != nil && t.left() <= 0 {
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

// Such a sweep walks the dead entries at the head of jobs_due. Its cost is that of its first read, measured each time.
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
