package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// PruneDeadLetters deletes dead letters older than maxAge, then the oldest beyond maxCount . Zero: no limit.
func (s *Store) PruneDeadLetters(ctx context.Context, maxAge time.Duration, maxCount int64) (deleted int64, err error) {
	if maxAge > 0 {
		now, err := s.Ping(ctx)
		if err != nil {
			return 0, err
		}
		if deleted, err = s.deleteDeadLetters(ctx, DeadLetters{Until: now.Add(-maxAge)}, DeadLetterKey{}, "scheduler", "retention"); err != nil {
			return deleted, err
		}
	}
	if maxCount == 0 {
		return deleted, nil
	}
	beyond, err := s.beyond(ctx, maxCount)
	if err != nil || len(beyond) == 0 {
		return deleted, err
	}
	n, err := s.deleteDeadLetters(ctx, DeadLetters{}, DeadLetterKey{At: beyond[0].DeadLetteredAt.Time, ID: beyond[0].ID}, "scheduler", "retention")
	return deleted + n, err
}

func (s *Store) beyond(ctx context.Context, maxCount int64) ([]dbsqlc.DeadLetterCutoffRow, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.q.DeadLetterCutoff(ctx, maxCount)
}

// PruneDiscarded deletes discarded jobs older than keep that are no dead letters.
func (s *Store) PruneDiscarded(ctx context.Context, keep time.Duration) (deleted int64, err error) {
	p := dbsqlc.JobDiscardedPruneParams{After: FromTheStart, Keep: interval(keep), MaxRows: deadLetterBatch, Node: s.node}
	for {
		rows, err := s.discardedPrune(ctx, p)
		deleted += int64(len(rows))
		if err != nil || len(rows) < deadLetterBatch {
			return deleted, err
		}
		last := rows[len(rows)-1]
		p.After, p.AfterID = last.FinishedAt, last.ID
	}
}

func (s *Store) discardedPrune(ctx context.Context, p dbsqlc.JobDiscardedPruneParams) ([]dbsqlc.JobDiscardedPruneRow, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobDiscardedPrune(ctx, p)
	if err == nil {
		tell(ctx, s, rows, discardedPruneChange)
	}
	if len(rows) > 0 {
		s.committedEvents()
	}
	return rows, err
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}
