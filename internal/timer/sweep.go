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
	commitDelay = 2 * time.Second

	errorPause = time.Second
	lockPause  = 5 * time.Millisecond
)

// SweepDue applies what this node knows to be due, at most one batch, so that a fetch does not pay for thousands of jobs.
func (t *Timer) SweepDue(ctx context.Context) {
	if t.sources != nil && time.Now().UnixNano() >= t.next.Load() {
		t.run(context.WithoutCancel(ctx), 1)
	}
}

// run applies at most so many batches; 0: until nothing is due.
func (t *Timer) run(ctx context.Context, batches int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().UnixNano() < t.next.Load() {
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

// runOnce applies everything that is due now and returns the time until the next due time. If nothing is due it costs one
// statement with an index probe for each kind of due time.
func (t *Timer) runOnce(ctx context.Context, batches int) (moved int, next time.Duration, err error) {
	after := t.swept
	full := t.late.Swap(false) || time.Since(t.fullAt) >= max(t.Intervals.Full, fullShare*t.fullCost)
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
		at, waiting := due.next()
		if !waiting || at.After(due.Now) {
			t.swept = pgtype.Timestamptz{Time: due.Now.Add(-commitDelay), Valid: true}
			if !waiting {
				return moved, math.MaxInt64, nil
			}
			return moved, at.Sub(due.Now), nil
		}
		// Stop does not cancel a batch that has begun: a commit without its result loses log lines and counts, and the jobs of
		// workers that were declared dead would wait for another node.
		n, err := t.apply(context.WithoutCancel(ctx), due, after)
		moved += n
		if err != nil {
			return moved, 0, err
		}
		switch batches--; {
		case n == 0: // another node has the rows locked
			return moved, lockPause, nil
		case batches == 0:
			return moved, 0, nil
		}
	}
}

// apply applies one batch of each kind that is due.
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
