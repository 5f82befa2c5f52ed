package queue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// afterCommit collects what must happen after the commit of changed jobs.
type afterCommit struct {
	places   []Place
	crons    []string // crons of which a job has moved
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
func (a *afterCommit) due(at, now pgtype.Timestamptz) {
	if !at.Valid {
		return
	}
	if in := max(0, at.Time.Sub(now.Time)); !a.timed || in < a.earliest {
		a.earliest, a.timed = in, true
	}
}

// notify wakes fetches, schedules the timer and lets crons release the jobs that waited for the changed ones.
func (s *Store) notify(ctx context.Context, a afterCommit) {
	s.NotifyAvailable(a.places)
	s.releaseCrons(ctx, a.crons)
	if a.timed {
		s.timer.Schedule(a.earliest)
	}
}

// namesOf collects the crons, or the limit keys, of changed jobs; nil for most statements.
func namesOf[Row any](rows []Row, of func(*Row) pgtype.Text) (names []string) {
	for i := range rows {
		if name := of(&rows[i]); name.Valid && !slices.Contains(names, name.String) {
			names = append(names, name.String)
		}
	}
	return names
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
