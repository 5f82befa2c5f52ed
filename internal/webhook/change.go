package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// A change of a subscription that its unfinished deliveries have to follow sets marks in its row, in its own transaction:
// reorder_pending after a change of ordering, resume_pending after an activation. The deliveries follow in batches, outside of that
// transaction: there may be a million, and its lock would stop their claims meanwhile. The last batch clears the mark. So any
// node finishes what another one has begun.

// finishChanges runs more often than repair, because deliveries may wait for it that are due. Like repair it runs in the loop.
func (d *Dispatcher) finishChanges(ctx context.Context) {
	if time.Now().Before(d.finishAt) {
		return
	}
	d.finishAt = time.Now().Add(finishInterval)
	finished, err := d.store.FinishChanges(ctx)
	if err != nil && ctx.Err() == nil {
		d.warn(ctx, "deliveries did not follow a change of their webhook subscription; trying again later", err)
	}
	if finished > 0 {
		d.Wake() // deliveries have become due
	}
}

// FinishChanges finishes changes whose node has stopped, or was cut off from the database, before all deliveries followed.
// Any number of nodes may run it, also beside the call that made the change. It returns how many subscriptions it has found.
func (s *Store) FinishChanges(ctx context.Context) (int, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	unfinished, err := s.db.Q.WebhookListUnfinishedChanges(bounded)
	for _, id := range unfinished {
		err = errors.Join(err, s.finishChange(ctx, id))
	}
	return len(unfinished), err
}

// finishChange does nothing for a subscription without marks. Order: first which deliveries wait for others, then which are due.
// Fan-out passes meanwhile use the new settings already, as they read them under the lock.
func (s *Store) finishChange(ctx context.Context, id [16]byte) error {
	if err := s.inBatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) (int64, error) { return reorderDeliveries(ctx, q, id) }); err != nil {
		return err
	}
	return s.inBatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) (int64, error) { return resumeDeliveries(ctx, q, id) })
}

// reorderDeliveries goes by the ordering that the subscription has now: a second change may have come since. The lock keeps the
// end of a delivery, which makes the next one due, out of the batch.
func reorderDeliveries(ctx context.Context, q *dbsqlc.Queries, id [16]byte) (int64, error) {
	rows, err := q.WebhookGetForUpdate(ctx, id)
	if err != nil || len(rows) == 0 || !rows[0].ReorderPending {
		return 0, err
	}
	n, err := q.WebhookDeliveryReorder(ctx, dbsqlc.WebhookDeliveryReorderParams{WebhookID: id, Ordered: rows[0].Ordering == "subject", MaxRows: batchRows})
	if err != nil || n == batchRows {
		return n, err
	}
	return n, q.WebhookClearReorder(ctx, id)
}

// resumeDeliveries waits for the next activation if the subscription was deactivated again. Under the lock no activation comes
// between the last batch and the end of the mark.
func resumeDeliveries(ctx context.Context, q *dbsqlc.Queries, id [16]byte) (int64, error) {
	rows, err := q.WebhookGetForUpdate(ctx, id)
	if err != nil || len(rows) == 0 || !rows[0].ResumePending || !rows[0].Active {
		return 0, err
	}
	n, err := q.WebhookDeliveryResume(ctx, id, batchRows)
	if err != nil || n == batchRows {
		return n, err
	}
	return n, q.WebhookClearResume(ctx, id)
}
