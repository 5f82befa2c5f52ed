package retention

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
)

// reasonRetention is the reason of the internal events.
const reasonRetention = "retention"

// deleteBatch bounds a statement that deletes jobs: 20 ms.
const deleteBatch = 1000

// pruneDiscarded deletes discarded jobs older than keep that are no dead letters.
func (s *Pruner) pruneDiscarded(ctx context.Context, keep time.Duration) (deleted int64, err error) {
	p := dbsqlc.JobDiscardedPruneParams{After: pg.Beginning, Keep: pg.Interval(keep), MaxRows: deleteBatch, Node: s.commits.Node, EventType: eventlog.StateChanged, Reason: reasonRetention}
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
