package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// deleteBatch bounds a statement that deletes jobs: 20 ms.
const deleteBatch = 1000

// pruneDiscarded deletes discarded jobs older than keep that are no dead letters.
func (s *Pruner) pruneDiscarded(ctx context.Context, keep time.Duration) (deleted int64, err error) {
	p := dbsqlc.JobDiscardedPruneParams{After: pg.Beginning, Keep: pg.Interval(keep), MaxRows: deleteBatch, Node: s.commits.Node}
	for {
		rows, err := s.discardedPrune(ctx, p)
		deleted += int64(len(rows))
		if err != nil || len(rows) < deleteBatch {
			return deleted, err
		}
		last := rows[len(rows)-1]
		p.After, p.AfterID = last.FinishedAt, last.ID
	}
}

func (s *Pruner) discardedPrune(ctx context.Context, p dbsqlc.JobDiscardedPruneParams) ([]dbsqlc.JobDiscardedPruneRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobDiscardedPrune(ctx, p)
	if err == nil {
		eventlog.Emit(ctx, s.commits, rows, discardedPruneChange)
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	return rows, err
}

// doneDay is a day of finished jobs, and its size.
type doneDay struct {
	Start time.Time
	Pages int64
}

// doneDays lists the days of finished jobs that have been over for longer than keep, oldest first.
func (s *Pruner) doneDays(ctx context.Context, keep time.Duration) ([]doneDay, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobsDoneDayList(ctx, pg.Interval(keep))
	if err != nil {
		return nil, err
	}
	days := make([]doneDay, len(rows))
	for i, r := range rows {
		start, err := time.Parse("20060102", r.Day)
		if err != nil {
			return nil, fmt.Errorf("partition of finished jobs: %w", err)
		}
		days[i] = doneDay{Start: start, Pages: r.Pages}
	}
	return days, nil
}

// pruneDonePages deletes the jobs of one state on pages from <= p < to of a day.
func (s *Pruner) pruneDonePages(ctx context.Context, day doneDay, state ojs.JobState, from, to int64) (int64, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobsDonePrune(ctx, dbsqlc.JobsDonePruneParams{
		DayStart: pgtype.Timestamptz{Time: day.Start, Valid: true}, DayEnd: pgtype.Timestamptz{Time: day.Start.AddDate(0, 0, 1), Valid: true},
		FromTid: fmt.Sprintf("(%d,0)", from), ToTid: fmt.Sprintf("(%d,0)", to), State: string(state), Node: s.commits.Node,
	})
	if err == nil && len(rows) > 0 {
		eventlog.Emit(ctx, s.commits, rows, donePruneChange)
		s.commits.Committed()
	}
	return int64(len(rows)), err
}
