package timer

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/pg"
)

// Sources are the functions of the domains that a sweep calls.
//
// All are required. They run one at a time per node (Timer.mu), but beside those of other nodes, so each must be safe to run
// twice for the same rows.
type Sources struct {
	// Jobs applies one batch of due transitions, of jobs that were due at after or later, and returns how many jobs moved.
	Jobs func(ctx context.Context, after pgtype.Timestamptz) (moved int, err error)

	// Workers reaps dead workers and recovers their jobs. It returns how many workers it changed.
	Workers func(ctx context.Context) (moved int, err error)

	// Crons fires the due crons and returns how many ticks it completed.
	Crons func(ctx context.Context) (moved int, err error)

	// WorkerDeadAt is when the worker that has been silent for longest is dead, given its last beat and the database's time.
	WorkerDeadAt func(lastBeat, now time.Time) time.Time

	// Unreachable is called when the database could not be read.
	// Workers could not reach any node either, perhaps, so package worker does not declare them dead for a while.
	Unreachable func()
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
		t.sources.Unreachable()
		return Due{}, err
	}
	clock.Set(row.Now.Time, asked)
	// WorkerLeft is the time of what is left to do about workers that have ended: about their jobs, or their rows.
	due := Due{Now: row.Now.Time, Jobs: row.JobDue, Workers: row.WorkerLeft, Crons: row.CronDue}
	if row.WorkerSeen.Valid {
		dead := t.sources.WorkerDeadAt(row.WorkerSeen.Time, due.Now)
		if !due.Workers.Valid || dead.Before(due.Workers.Time) {
			due.Workers = pgtype.Timestamptz{Time: dead, Valid: true}
		}
	}
	return due, nil
}
