package webhook

import (
	"context"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// RetryDelivery makes a delivery due now under its old id. Its retry schedule begins again. It works in any status, also
// while a node sends the delivery. The change is committed before the row is read, so an error after it says that a part
// was done. The notification comes last; without it the delivery waits for a poll.
func (s *Store) RetryDelivery(ctx context.Context, id [16]byte) (*DeliveryRecord, []AttemptRecord, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	again, err := s.db.Q.WebhookDeliveryRetry(ctx, id)
	if err != nil {
		return nil, nil, pg.WriteError(err)
	}
	row, attempts, err := s.Delivery(ctx, id)
	switch {
	case err != nil:
		return nil, nil, pg.PartlyError(err)
	case len(again) == 0:
		return nil, nil, spec.NewError(ojs.ErrInvalidStateTransition,
			"The delivery cannot be repeated: its subscription is gone, or it was a test.", map[string]any{"delivery_id": DeliveryID(id)})
	}
	return row, attempts, pg.PartlyError(s.db.Q.WebhookNotify(ctx))
}
