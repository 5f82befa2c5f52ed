package webhook

import (
	"context"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// leaseRoom is how long a lease lasts beyond the timeout of its request, so that the outcome can be recorded in it. Less,
// and a short outage of the database would have deliveries sent twice; more, and a delivery of a crashed node waits longer
// (docs/reference/webhooks.md, Deliveries).
const leaseRoom = 30 * time.Second

// Delivery is a delivery that this node has claimed. It is a copy of what the claim has read; only this node uses it, and
// the number in Claims is its right to record. Secrets is empty if the table of secrets was changed by hand.
type Delivery struct {
	dbsqlc.WebhookDeliveryClaimRow
	Secrets []Secret // newest first
	Clock   Clock
}

// Claimed is the result of a claim. Sealed is for a warning only: their deliveries stay due, for a node with the key.
type Claimed struct {
	Deliveries []Delivery
	Sealed     [][16]byte    // subscriptions whose secrets this node cannot open
	Next       time.Duration // until the next delivery is due; negative: none waits
}

// ClaimDeliveries leases at most want due deliveries to this node (docs/reference/webhooks.md, Deliveries). The claim is
// committed when it returns; send them only then. After an error that pg.IsUnknown they may be leased all the same, and should be
// released. Any number of nodes may call it at once: the locks of the subscriptions put the claims of one subscription in a
// row, so max_in_flight holds over all nodes. It may return fewer than want although more are due. The clock is read in the
// same transaction, after the claim.
func (s *Store) ClaimDeliveries(ctx context.Context, want int) (c Claimed, err error) {
	err = s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		if c.Deliveries, c.Sealed, err = s.claimDeliveries(ctx, q, want); err != nil {
			return err
		}
		// After the claim, so the ends of the new leases are among the times.
		due, err := q.WebhookDeliveryGetNextDue(ctx)
		c.Next = time.Duration(due.WaitMs) * time.Millisecond
		for i := range c.Deliveries {
			c.Deliveries[i].Clock = NewClock(due.Now.Time)
		}
		return err
	})
	return c, err
}

// claimDeliveries leaves out the subscriptions whose secrets this node cannot open; another one may. The secrets are read
// under the locks of their subscriptions, so a rotation comes before or after the claim as a whole. A delivery must not be
// leased by a node that cannot sign it.
func (s *Store) claimDeliveries(ctx context.Context, q *dbsqlc.Queries, want int) (list []Delivery, sealed [][16]byte, err error) {
	// This is the first statement with a lock. The next ones have later snapshots, so they count what the holder before has
	// claimed.
	locked, err := q.WebhookDeliveryLock(ctx)
	if err != nil || len(locked) == 0 {
		return nil, nil, err
	}
	secrets, sealed, err := s.secretsOf(ctx, q, locked)
	if err != nil {
		return nil, nil, err
	}
	// If none is left the claim runs all the same and finds nothing.
	ours := slices.DeleteFunc(locked, func(id [16]byte) bool { return slices.Contains(sealed, id) })
	rows, err := q.WebhookDeliveryClaim(ctx, dbsqlc.WebhookDeliveryClaimParams{
		WebhookIds: notNil(ours), MaxRows: int32(want), LeaseRoomMs: int32(leaseRoom.Milliseconds()),
	})
	for _, row := range rows {
		list = append(list, Delivery{WebhookDeliveryClaimRow: row, Secrets: secrets[row.WebhookID]})
	}
	return list, sealed, err
}
