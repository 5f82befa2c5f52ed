package timer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Sources are who applies what is due.
type Sources struct {
	// Jobs moves jobs whose time has come and that were not due before after; it returns how many.
	Jobs func(ctx context.Context, after pgtype.Timestamptz) (moved int, err error)

	// Workers reaps dead workers and recovers their jobs; it returns for how many it did something.
	Workers func(ctx context.Context) (moved int, err error)

	// Crons fires the crons that are due and returns how many ticks it dealt with.
	Crons func(ctx context.Context) (moved int, err error)

	// WorkerDeadAt is when the worker that was silent for longest is dead, given its last beat and the database's time.
	WorkerDeadAt func(lastBeat, now time.Time) time.Time

	// Unreachable is called when the database could not be asked.
	Unreachable func()
}

// Due is what time will bring next, by the database's clock. Not valid: nothing of the kind is to come; any time is one that
// a client can have chosen.
type Due struct {
	Now     time.Time
	Jobs    pgtype.Timestamptz
	Workers pgtype.Timestamptz // the longest silent worker is dead then
	Crons   pgtype.Timestamptz
}

// Next is the earliest time; ok is false if there is none.
func (d Due) Next() (next time.Time, ok bool) {
	for _, t := range []pgtype.Timestamptz{d.Jobs, d.Workers, d.Crons} {
		if t.Valid && (!ok || t.Time.Before(next)) {
			next, ok = t.Time, true
		}
	}
	return next, ok
}

// Is reports whether one of the times has come.
func (d Due) Is(t pgtype.Timestamptz) bool { return t.Valid && !t.Time.After(d.Now) }

// NextDue looks at the first entry of each timer. Jobs due before after are left out: the caller has swept them.
func (t *Timer) NextDue(ctx context.Context, after pgtype.Timestamptz) (Due, error) {
	ctx, cancel := t.db.Bounded(ctx)
	defer cancel()
	row, err := t.db.Q.DueGetNext(ctx, after)
	if err != nil {
		t.sources.Unreachable()
		return Due{}, err
	}
	due := Due{Now: row.Now.Time, Jobs: row.JobDue, Workers: row.WorkerLeft, Crons: row.CronDue}
	if row.WorkerSeen.Valid {
		dead := t.sources.WorkerDeadAt(row.WorkerSeen.Time, due.Now)
		if !due.Workers.Valid || dead.Before(due.Workers.Time) {
			due.Workers = pgtype.Timestamptz{Time: dead, Valid: true}
		}
	}
	return due, nil
}
