package retention

import "context"

// partitionBatch bounds the partitions of one statement.
const partitionBatch = 200

// prunePartitions deletes the partitions of rate limits that nothing has used for a day (docs/reference/limits.md, Policies).
func (p *Pruner) prunePartitions(ctx context.Context) (deleted int64, err error) {
	for more := true; more; {
		n, again, err := p.prunePartitionBatch(ctx)
		if deleted, more = deleted+n, again; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

func (p *Pruner) prunePartitionBatch(ctx context.Context) (deleted int64, more bool, err error) {
	ctx, cancel := p.db.Bounded(ctx)
	defer cancel()
	row, err := p.db.Q.LimitPrune(ctx, partitionBatch)
	return row.Deleted, row.More, err
}
