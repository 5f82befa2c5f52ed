package queue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// afterCommit collects what must happen after the commit of changed jobs.
// A statement fills it from its rows, and notify uses it once. It never decides anything: what is lost with a node that stops
// between the commit and notify is found again by the relay, surveys and sweeps.
type afterCommit struct {
	places []Place
	crons  []string // crons of which a job has moved
	// The time until the first due_at, by the clock of the database. The timer counts it with the monotonic clock of this
	// machine.
	earliest time.Duration
	timed    bool // earliest is set
}

// add records a job. An available job without ready_seq waits for another job of its cron or for a limit, so no fetch can find it.
func (a *afterCommit) add(queue, lane string, priority int16, seq pgtype.Int8, cron pgtype.Text) {
	if seq.Valid {
		a.places = append(a.places, Place{queue, lane, priority, seq.Int64})
	}
	if cron.Valid && !slices.Contains(a.crons, cron.String) {
		a.crons = append(a.crons, cron.String)
	}
}

// due records when a job is due.
// Both times are of the database, so the clock of this machine has no part in it.
func (a *afterCommit) due(at, now pgtype.Timestamptz) {
	if !at.Valid {
		return
	}
	if in := max(0, at.Time.Sub(now.Time)); !a.timed || in < a.earliest {
		a.earliest, a.timed = in, true
	}
}

// notify wakes fetches, schedules the timer and lets crons release the jobs that waited for the changed ones.
// Fetches come first: they are what somebody waits for.
func (s *Store) notify(ctx context.Context, a afterCommit) {
	s.NotifyAvailable(a.places)
	s.releaseCrons(ctx, a.crons)
	if a.timed {
		s.timer.Schedule(a.earliest)
	}
}

// namesOf collects the crons, or the limit keys, of changed jobs.
func namesOf[Row any](rows []Row, of func(*Row) pgtype.Text) []string {
	return valuesOf(rows, func(r *Row) (string, bool) { name := of(r); return name.String, name.Valid })
}

// workflowsOf collects the roots of the workflows of changed jobs.
func workflowsOf[Row any](rows []Row, root func(*Row) pgtype.UUID) [][16]byte {
	return valuesOf(rows, func(r *Row) ([16]byte, bool) { id := root(r); return id.Bytes, id.Valid })
}

// valuesOf collects what rows have, each once; nil for most statements. A linear search is enough: a statement has at most 1 000 rows,
// and nearly none has a value.
func valuesOf[Row any, Value comparable](rows []Row, of func(*Row) (Value, bool)) (values []Value) {
	for i := range rows {
		if v, there := of(&rows[i]); there && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// OnCronJobs sets what is called after a commit that moved jobs of these crons. It may send a statement: callers of the
// change are answered after it.
func (s *Store) OnCronJobs(f func(ctx context.Context, crons []string)) { s.onCronJobs = f }

// releaseCrons tells package cron, which is above this one, that jobs of these crons have moved: one that waits behind them may be
// fetched now.
func (s *Store) releaseCrons(ctx context.Context, crons []string) {
	if len(crons) > 0 {
		s.onCronJobs(ctx, crons)
	}
}
