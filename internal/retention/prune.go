package retention

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// reasonRetention is the reason in the internal events of deleted jobs.
const reasonRetention = "retention"

// deleteBatch bounds the rows of one statement. A delete of 1 000 rows takes 20 ms.
const deleteBatch = 1000

// pruneDiscarded deletes discarded jobs older than keep that are not dead letters. It goes on behind the last row that it
// deleted, so that rows which another node has locked, or which the filters leave out, are not read again. What was skipped is
// found by a later run. Each batch is a transaction of its own.
func (p *Pruner) pruneDiscarded(ctx context.Context, keep time.Duration, view *queueconfig.View) (deleted int64, err error) {
	params := dbsqlc.JobDiscardedPruneParams{
		After: pg.Beginning, Keep: pg.Interval(keep), MaxRows: deleteBatch, Node: p.commits.Node,
		EventType: eventlog.StateChanged, Reason: reasonRetention, OtherQueues: ownDiscarded(view),
	}
	for {
		rows, err := p.pruneBatch(ctx, params)
		deleted += int64(len(rows))
		if err != nil || len(rows) < deleteBatch {
			return deleted, err
		}
		last := rows[len(rows)-1]
		params.After, params.AfterID = last.FinishedAt, last.ID
	}
}

// The deletions and their internal events are committed when it returns.
func (p *Pruner) pruneBatch(ctx context.Context, params dbsqlc.JobDiscardedPruneParams) ([]dbsqlc.JobDiscardedPruneRow, error) {
	ctx, cancel := p.db.Bounded(ctx)
	defer cancel()
	rows, err := p.db.Q.JobDiscardedPrune(ctx, params)
	if err == nil {
		eventlog.Emit(ctx, p.commits, rows, pruneChange)
	}
	if len(rows) > 0 {
		p.commits.Committed()
	}
	return rows, err
}
