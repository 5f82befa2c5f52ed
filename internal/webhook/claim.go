package webhook

import (
	"context"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// leaseRoom is how long a lease lasts beyond the timeout of its request, so that the outcome can be recorded in it.
const leaseRoom = 30 * time.Second

// Delivery is a delivery that this node has claimed.
type Delivery struct {
	dbsqlc.WebhookDeliveryClaimRow
	Secrets []Secret // newest first
	Clock   Clock
}

// Claimed is the result of a claim.
type Claimed struct {
	Deliveries []Delivery
	Sealed     [][16]byte    // subscriptions whose secrets this node cannot open
	Next       time.Duration // until the next delivery is due; negative: none waits
}

// ClaimDeliveries leases at most want due deliveries to this node (docs/reference/webhooks.md, Deliveries). The claim is
// committed when it returns; send them only then. After an error that pg.IsUnknown they may be leased all the same, and should be
// released.
func (s *Store) ClaimDeliveries(ctx context.Context, want int) (c Claimed, err error) {
	err = s.inPlannedTx(ctx, func(q *dbsqlc.Queries) error {
		if c.Deliveries, c.Sealed, err = s.claimDeliveries(ctx, q, want); err != nil {
			return err
		}
		due, err := q.WebhookDeliveryGetNextDue(ctx)
		c.Next = time.Duration(due.WaitMs) * time.Millisecond
		for i := range c.Deliveries {
			c.Deliveries[i].Clock = NewClock(due.Now.Time)
		}
		return err
	})
	return c, err
}

// claimDeliveries leaves out the subscriptions whose secrets this node cannot open; another one may.
func (s *Store) claimDeliveries(ctx context.Context, q *dbsqlc.Queries, want int) (list []Delivery, sealed [][16]byte, err error) {
	locked, err := q.WebhookDeliveryLock(ctx)
	if err != nil || len(locked) == 0 {
		return nil, nil, err
	}
	secrets, sealed, err := s.secretsOf(ctx, q, locked)
	if err != nil {
		return nil, nil, err
	}
	ours := slices.DeleteFunc(locked, func(id [16]byte) bool { return slices.Contains(sealed, id) })
	rows, err := q.WebhookDeliveryClaim(ctx, dbsqlc.WebhookDeliveryClaimParams{
		WebhookIds: notNil(ours), MaxRows: int32(want), LeaseRoomMs: int32(leaseRoom.Milliseconds()),
	})
	for _, row := range rows {
		list = append(list, Delivery{WebhookDeliveryClaimRow: row, Secrets: secrets[row.WebhookID]})
	}
	return list, sealed, err
}
