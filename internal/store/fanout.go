package store

import (
	"context"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// Made is what one pass over the log has made.
type Made struct {
	Busy       bool  // another node is at it
	Active     int64 // subscriptions that may want something
	Deliveries int64
	More       bool // there may be more to do
}

const (
	// maxMade bounds the deliveries of a pass: 2 000 take a tenth of a second, and claims need the tables, too.
	maxMade = 2000
	minRows = 20
)

// MakeDeliveries reads on in the log of events and makes the deliveries that subscriptions want of it (contract 40 §9.6).
func (s *Store) MakeDeliveries(ctx context.Context) (made Made, err error) {
	err = s.inPlannedTx(ctx, func(q *dbsqlc.Queries) error {
		made = Made{}
		active, err := q.WebhookActiveCount(ctx)
		if err != nil || active == 0 {
			return err
		}
		cursor, err := q.WebhookCursorLock(ctx)
		if err != nil {
			return err
		}
		made.Active = active
		if made.Busy = len(cursor) == 0; made.Busy {
			return nil
		}
		return s.makeDeliveries(ctx, q, cursor[0], &made)
	})
	return made, err
}

func (s *Store) makeDeliveries(ctx context.Context, q *dbsqlc.Queries, after int64, made *Made) error {
	audience, err := q.WebhookAudience(ctx)
	if err != nil || len(audience) == 0 {
		return err
	}
	if err := q.WebhookLockOrdered(ctx); err != nil {
		return err
	}
	begin, rows := audience[0].FromPlace, max(minRows, maxMade/int64(len(audience)))
	ids := make([][16]byte, len(audience))
	for i, w := range audience {
		ids[i], begin = w.ID, min(begin, w.FromPlace)
	}
	after, upto := max(after, begin), audience[0].Head
	row, err := q.WebhookDeliveryCreate(ctx, dbsqlc.WebhookDeliveryCreateParams{
		AfterSeq: after >> 16, AfterSub: int32(after & 0xffff), UptoSeq: upto >> 16, UptoSub: int32(upto & 0xffff),
		MaxRows: int32(rows), WebhookIds: ids,
	})
	made.Deliveries, made.More = row.Deliveries, row.Looked == rows
	return err
}
