package webhook

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// PruneDeliveries removes at most 1 000 finished deliveries that are older than keep, and returns how many. Several nodes
// may run it at once.
func (s *Store) PruneDeliveries(ctx context.Context, keep time.Duration) (n int64, err error) {
	err = s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		n, err = q.WebhookDeliveryPrune(ctx, int64(keep/time.Second), 1000)
		return err
	})
	return n, err
}

// maintain repairs and prunes the deliveries at intervals. It runs in the loop, between claims, so a long prune delays the
// claims of this node.
func (d *Dispatcher) maintain(ctx context.Context) {
	if time.Now().Before(d.maintainAt) {
		return
	}
	interval := idleMaintain
	if d.sent.Swap(false) {
		interval = busyMaintain
	}
	d.maintainAt = time.Now().Add(interval)
	d.repair(ctx)
	d.prune(ctx)
}

// prune deletes the finished deliveries that are older than deliveryRetention. A portion per transaction keeps each lock
// short.
func (d *Dispatcher) prune(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := d.store.PruneDeliveries(ctx, deliveryRetention)
		if err != nil && ctx.Err() == nil {
			d.warn(ctx, "old webhook deliveries were not deleted; trying again later", err)
		}
		if err != nil || n < 1000 {
			return
		}
	}
}
