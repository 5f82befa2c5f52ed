package webhook

import (
	"context"
	"math"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// Created is the result of one pass over the log.
type Created struct {
	Busy       bool  // another node runs a pass
	Active     int64 // subscriptions that get events
	Deliveries int64
	More       bool  // the next pass may have work at once
	Skipped    int64 // numbers of the log that retention removed before deliveries were created for them
}

const (
	// maxCreated bounds the deliveries of a pass: 2 000 take a tenth of a second, and claims need the tables, too. minRows
	// lets a pass move at all if there are more than a hundred subscriptions.
	maxCreated = 2000
	minRows    = 20
)

// CreateDeliveries reads the next events of the log and creates a delivery for every subscription that matches
// (docs/reference/webhooks.md, Deliveries). It may run on any number of nodes at once: one has the lock of the cursor, the
// others return Busy. The cursor moves in the transaction of the deliveries, so a crash leaves neither a gap nor a double;
// a unique index over event and subscription guards against the latter once more. An error whose outcome is unknown may be
// followed by another pass at once.
func (s *Store) CreateDeliveries(ctx context.Context) (created Created, err error) {
	err = s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		created = Created{}
		// Counted before the lock, so that a server without subscriptions takes none.
		subscribers, err := q.WebhookCountSubscribers(ctx)
		if err != nil || subscribers == 0 {
			return err
		}
		cursor, err := q.WebhookCursorLock(ctx)
		if err != nil {
			return err
		}
		created.Active = subscribers
		// SKIP LOCKED instead of waiting: a queue of nodes behind the lock would pass over the same events one after the
		// other.
		if created.Busy = len(cursor) == 0; created.Busy {
			return nil
		}
		return s.createDeliveries(ctx, q, cursor[0], &created)
	})
	return created, err
}

// createDeliveries reads from the cursor on, or from where the first subscription begins, up to the lowest end of the log that the lists
// show: a subscription that they do not contain begins behind it. The number of events is bounded as if every subscription
// wanted each. The lists are read after the lock of the cursor and lock the subscriptions, plain ones before ordered ones,
// each in the order of ids. The passes of two nodes do not meet here, because of the cursor.
func (s *Store) createDeliveries(ctx context.Context, q *dbsqlc.Queries, cursor dbsqlc.WebhookCursorLockRow, created *Created) error {
	plain, err := q.WebhookListSubscribers(ctx)
	if err != nil {
		return err
	}
	ordered, err := q.WebhookListSubscribersOrdered(ctx)
	if err != nil || len(plain)+len(ordered) == 0 {
		return err
	}
	p := dbsqlc.WebhookDeliveryCreateParams{WebhookIds: [][16]byte{}, OrderedIds: [][16]byte{}}
	// The lowest end of all lists: a subscription that was made between two of them begins behind it.
	begin, upto := int64(math.MaxInt64), int64(math.MaxInt64)
	for _, w := range plain {
		p.WebhookIds = append(p.WebhookIds, w.ID)
		begin, upto = min(begin, w.FromPlace), min(upto, w.Head)
	}
	// Their ids are also among WebhookIds; the second list says which deliveries may have to wait.
	for _, w := range ordered {
		p.WebhookIds, p.OrderedIds = append(p.WebhookIds, w.ID), append(p.OrderedIds, w.ID)
		begin, upto = min(begin, w.FromPlace), min(upto, w.Head)
	}
	// The cursor may be behind the first subscription, because it does not move while there is none.
	after, rows := max(cursor.Place, begin), max(minRows, maxCreated/int64(len(p.WebhookIds)))
	// A place is seq * 65536 + sub, hence the shifts.
	created.Skipped = max(0, cursor.Pruned-after>>16)
	p.AfterSeq, p.AfterSub, p.UptoSeq, p.UptoSub, p.MaxRows = after>>16, int32(after&0xffff), upto>>16, int32(upto&0xffff), int32(rows)
	row, err := q.WebhookDeliveryCreate(ctx, p)
	created.Deliveries, created.More = row.Deliveries, row.Scanned == rows
	return err
}
