package webhook

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// repair cancels and restarts the deliveries that a stopped node has left in a wrong state. Both are nets: deliveries of a
// subscription whose delete was interrupted, and a defect of the order.
func (d *Dispatcher) repair(ctx context.Context) {
	if err := d.store.CancelOrphans(ctx); err != nil && ctx.Err() == nil {
		d.warn(ctx, "deliveries of deleted webhook subscriptions were not cancelled; trying again later", err)
	}
	restarted, err := d.store.RestartStuckDeliveries(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		d.warn(ctx, "webhook deliveries were not checked for stuck ones; trying again later", err)
	case restarted > 0:
		d.Logger.ErrorContext(ctx, "webhook deliveries were stuck behind finished ones and have been restarted; please report this",
			slog.String("category", "webhook"), slog.Group("attributes", "deliveries", restarted))
		d.Wake()
	}
}

// RestartStuckDeliveries makes ordered deliveries due that wait although no earlier one of their subject is unfinished. Every
// finished delivery makes the next one due, so there should be none; see WebhookDeliveryMakeDue. Each subscription is
// locked for its look, because the end of a delivery and the next one's turn are one statement under the same lock: without
// it the look could come between. An error of one subscription does not keep the others from being looked at.
func (s *Store) RestartStuckDeliveries(ctx context.Context) (restarted int64, err error) {
	ordered, err := s.db.Q.WebhookListOrdered(ctx)
	for _, id := range ordered {
		var n int64
		err = errors.Join(err, s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
			if err := q.WebhookLockByID(ctx, [][16]byte{id}); err != nil {
				return err
			}
			n, err = q.WebhookDeliveryMakeDue(ctx, id)
			return err
		}))
		restarted += n
	}
	return restarted, err
}

// CancelOrphans cancels deliveries of deleted subscriptions: the node that deleted the subscription has stopped before it
// cancelled all of them. Any number of nodes may run it; a delivery is cancelled once.
func (s *Store) CancelOrphans(ctx context.Context) error {
	var orphans [][16]byte
	err := s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		orphans, err = q.WebhookDeliveryListOrphans(ctx)
		return err
	})
	for _, webhook := range orphans {
		err = errors.Join(err, s.cancelDeliveries(ctx, webhook))
	}
	return err
}

// The subscription is gone, so there is no row to lock, and no claim can find the deliveries.
func (s *Store) cancelDeliveries(ctx context.Context, webhook [16]byte) error {
	return s.inBatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) (int64, error) {
		return q.WebhookDeliveryCancel(ctx, webhook, batchRows)
	})
}
