package webhook

import (
	"context"
	"errors"
	"math"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// Made is what one pass over the log has made.
type Made struct {
	Busy       bool  // another node is at it
	Active     int64 // subscriptions that may want something
	Deliveries int64
	More       bool  // there may be more to do
	Skipped    int64 // numbers of the log that retention removed before deliveries were made of them
}

const (
	// maxMade bounds the deliveries of a pass: 2 000 take a tenth of a second, and claims need the tables, too.
	maxMade = 2000
	minRows = 20
)

// MakeDeliveries reads on in the log of events and makes the deliveries that subscriptions want of it (docs/reference/webhooks.md, Deliveries).
func (s *Store) MakeDeliveries(ctx context.Context) (made Made, err error) {
	err = s.inPlannedTx(ctx, func(q *dbsqlc.Queries) error {
		made = Made{}
		audience, err := q.WebhookCountSubscribers(ctx)
		if err != nil || audience == 0 {
			return err
		}
		cursor, err := q.WebhookCursorLock(ctx)
		if err != nil {
			return err
		}
		made.Active = audience
		if made.Busy = len(cursor) == 0; made.Busy {
			return nil
		}
		return s.makeDeliveries(ctx, q, cursor[0], &made)
	})
	return made, err
}

func (s *Store) makeDeliveries(ctx context.Context, q *dbsqlc.Queries, cursor dbsqlc.WebhookCursorLockRow, made *Made) error {
	plain, err := q.WebhookListSubscribers(ctx)
	if err != nil {
		return err
	}
	ordered, err := q.WebhookListSubscribersOrdered(ctx)
	if err != nil || len(plain)+len(ordered) == 0 {
		return err
	}
	p := dbsqlc.WebhookDeliveryCreateParams{WebhookIds: [][16]byte{}, OrderedIds: [][16]byte{}}
	begin, upto := int64(math.MaxInt64), int64(math.MaxInt64)
	for _, w := range plain {
		p.WebhookIds = append(p.WebhookIds, w.ID)
		begin, upto = min(begin, w.FromPlace), min(upto, w.Head)
	}
	for _, w := range ordered {
		p.WebhookIds, p.OrderedIds = append(p.WebhookIds, w.ID), append(p.OrderedIds, w.ID)
		begin, upto = min(begin, w.FromPlace), min(upto, w.Head)
	}
	after, rows := max(cursor.Place, begin), max(minRows, maxMade/int64(len(p.WebhookIds)))
	made.Skipped = max(0, cursor.Pruned-after>>16)
	p.AfterSeq, p.AfterSub, p.UptoSeq, p.UptoSub, p.MaxRows = after>>16, int32(after&0xffff), upto>>16, int32(upto&0xffff), int32(rows)
	row, err := q.WebhookDeliveryCreate(ctx, p)
	made.Deliveries, made.More = row.Deliveries, row.Scanned == rows
	return err
}

// HealDeliveries wakes what waits for nobody; see WebhookDeliveryMakeDue.
func (s *Store) HealDeliveries(ctx context.Context) (healed int64, err error) {
	ordered, err := s.db.Q.WebhookListOrdered(ctx)
	for _, id := range ordered {
		var n int64
		err = errors.Join(err, s.inPlannedTx(ctx, func(q *dbsqlc.Queries) (err error) {
			if err := q.WebhookLockByID(ctx, [][16]byte{id}); err != nil {
				return err
			}
			n, err = q.WebhookDeliveryMakeDue(ctx, id)
			return err
		}))
		healed += n
	}
	return healed, err
}
