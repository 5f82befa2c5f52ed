package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// PruneDeadLetters deletes dead letters older than maxAge, then the oldest beyond maxCount (contract 20 §8.4). Negative: no
// limit.
func (s *Store) PruneDeadLetters(ctx context.Context, maxAge time.Duration, maxCount int64) (deleted int64, err error) {
	if maxAge >= 0 {
		now, err := s.Ping(ctx)
		if err != nil {
			return 0, err
		}
		if deleted, err = s.deleteDeadLetters(ctx, DeadLetters{Until: now.Add(-maxAge)}, DeadLetterKey{}, "scheduler", "retention"); err != nil {
			return deleted, err
		}
	}
	if maxCount < 0 {
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

// DoneDay is a day of finished jobs, and its size.
type DoneDay struct {
	Start time.Time
	Pages int64
}

// DoneDays lists the days of finished jobs that have been over for longer than keep, oldest first.
func (s *Store) DoneDays(ctx context.Context, keep time.Duration) ([]DoneDay, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobsDoneDayList(ctx, interval(keep))
	if err != nil {
		return nil, err
	}
	days := make([]DoneDay, len(rows))
	for i, r := range rows {
		start, err := time.Parse("20060102", r.Day)
		if err != nil {
			return nil, fmt.Errorf("partition of finished jobs: %w", err)
		}
		days[i] = DoneDay{Start: start, Pages: r.Pages}
	}
	return days, nil
}

// PruneDone deletes the jobs of one state on pages from <= p < to of a day.
func (s *Store) PruneDone(ctx context.Context, day DoneDay, state ojs.JobState, from, to int64) (int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobsDonePrune(ctx, dbsqlc.JobsDonePruneParams{
		DayStart: pgtype.Timestamptz{Time: day.Start, Valid: true}, DayEnd: pgtype.Timestamptz{Time: day.Start.AddDate(0, 0, 1), Valid: true},
		FromTid: fmt.Sprintf("(%d,0)", from), ToTid: fmt.Sprintf("(%d,0)", to), State: string(state), Node: s.node,
	})
	if err == nil && len(rows) > 0 {
		tell(ctx, s, rows, donePruneChange)
		s.committedEvents()
	}
	return int64(len(rows)), err
}
