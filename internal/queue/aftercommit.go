package queue

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// afterCommit collects what changed jobs mean to others.
type afterCommit struct {
	places []Place
	crons  []string // a job of theirs has moved
}

// add notes a job. One that is available and has no ready_seq waits for another of its cron.
func (a *afterCommit) add(queue string, priority int16, seq pgtype.Int8, cron pgtype.Text) {
	if seq.Valid {
		a.places = append(a.places, Place{queue, priority, seq.Int64})
	}
	if cron.Valid && !slices.Contains(a.crons, cron.String) {
		a.crons = append(a.crons, cron.String)
	}
}

// notify wakes fetchers, and lets crons release jobs that waited for these.
func (s *Store) notify(ctx context.Context, a afterCommit) {
	s.BecameAvailable(a.places)
	s.releaseCrons(ctx, a.crons)
}

// cronsOf collects the crons of changed jobs; nil for nearly all.
func cronsOf[Row any](rows []Row, cron func(*Row) pgtype.Text) (names []string) {
	for i := range rows {
		if name := cron(&rows[i]); name.Valid && !slices.Contains(names, name.String) {
			names = append(names, name.String)
		}
	}
	return names
}
