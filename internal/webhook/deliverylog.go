package webhook

import (
	"context"
	"time"

	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

// DeliveryList selects deliveries of the log. Zero values do not filter. Of Before and Offset at most one counts. Since and
// Until are compared with the creation of the delivery.
type DeliveryList struct {
	Tenant          string // those of the tenant's subscriptions
	Webhook, Before *[16]byte
	Status, Type    string
	Event           *EventPlace // nil: any
	Since, Until    time.Time
	Offset, Limit   int
}

// EventPlace is the position of an event in the log.
type EventPlace struct {
	Seq int64
	Sub int32
}

// maxDeliveryTotal is how far a list counts its total.
const maxDeliveryTotal = 10_000

// DeliveryPage is a page of the log, newest first. It may be shorter than the limit although there are more: few of those that were
// looked at match.
type DeliveryPage struct {
	Deliveries []DeliveryRecord
	Next       *[16]byte // the cursor of the next page; nil: there is none
	Total      int64     // matches up to 10 000, among the newest deliveries that were looked at
}

// Deliveries returns a page of the log. The ids and the rows come from two statements without a common snapshot: a delivery
// that was pruned in between is missing from the page. The page may be shorter than the limit with Next set: at most
// pg.MaxLooked deliveries are looked at (docs/reference/http.md, Pagination).
func (s *Store) Deliveries(ctx context.Context, l DeliveryList) (page DeliveryPage, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	end := int32(l.Offset + l.Limit + 1) // one more than the page tells whether there are more
	p := dbsqlc.WebhookDeliveryListParams{
		Tenant: pg.Text(l.Tenant),
		Status: pg.Text(l.Status), EventType: pg.Text(l.Type), Since: pg.Timestamp(l.Since), Until: pg.Timestamp(l.Until),
		Before: lastID, MaxTotal: max(maxDeliveryTotal, end), MaxLooked: max(s.maxLooked, end), SkipRows: int32(l.Offset), MaxRows: int32(l.Limit + 1),
	}
	if l.Webhook != nil {
		p.WebhookID = pgtype.UUID{Bytes: *l.Webhook, Valid: true}
	}
	if l.Before != nil {
		p.Before = *l.Before
	}
	if l.Event != nil {
		p.EventSeq, p.EventSub = pgtype.Int8{Int64: l.Event.Seq, Valid: true}, pgtype.Int4{Int32: l.Event.Sub, Valid: true}
	}
	found, err := s.db.Q.WebhookDeliveryList(ctx, p)
	if err != nil {
		return page, pg.ClientError(err)
	}
	// A cursor may point behind deliveries that do not match: the next page goes on from where looking has stopped.
	ids, next := deliveriesFound(found, l.Limit)
	page.Next, page.Total = next, found[0].Total
	if l.Before != nil { // the total includes the pages before the cursor
		p.Before, p.SkipRows, p.MaxRows = lastID, 0, 0
		if found, err = s.db.Q.WebhookDeliveryList(ctx, p); err != nil {
			return page, pg.ClientError(err)
		}
		page.Total = found[0].Total
	}
	rows, err := s.db.Q.WebhookDeliveryListByID(ctx, ids)
	page.Deliveries = deliveryRecords(rows)
	return page, pg.ClientError(err)
}

// deliveriesFound returns the ids of a page, and where the next one begins; nil: there is none. The statement always
// returns at least one row, which carries the total and the floor; its id is zero if nothing was found. Floor is where
// looking has stopped; zero means at the end of the log.
func deliveriesFound(found []dbsqlc.WebhookDeliveryListRow, limit int) (ids [][16]byte, next *[16]byte) {
	for _, row := range found {
		if row.ID != ([16]byte{}) {
			ids = append(ids, row.ID)
		}
	}
	switch floor := found[0].Floor; {
	case len(ids) > limit:
		ids = ids[:limit]
		next = &ids[limit-1]
	case floor != ([16]byte{}):
		next = &floor
	}
	return ids, next
}

// Delivery reads a delivery with its attempts.
func (s *Store) Delivery(ctx context.Context, id [16]byte) (*DeliveryRecord, []AttemptRecord, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WebhookDeliveryListByID(ctx, [][16]byte{id})
	switch {
	case err != nil:
		return nil, nil, pg.ClientError(err)
	case len(rows) == 0:
		return nil, nil, ErrNoDelivery(DeliveryID(id))
	}
	attempts, err := s.db.Q.WebhookAttemptList(ctx, id)
	return (*DeliveryRecord)(&rows[0]), sliceutil.Map(attempts, func(a dbsqlc.WebhookAttempt) AttemptRecord { return AttemptRecord(a) }), pg.ClientError(err)
}

// ErrNoDelivery is the API error for an unknown delivery.
func ErrNoDelivery(id string) error { return spec.NotFound("webhook_delivery", id) }

// Backlog counts the subscriptions, and the unfinished deliveries up to 100 000. The metrics of a node ask for it.
func (s *Store) Backlog(ctx context.Context) (webhooks, pending int64, err error) {
	row, err := s.db.Q.WebhookGetBacklog(ctx, 100_000)
	return row.Webhooks, row.Pending, err
}

func deliveryRecords(rows []dbsqlc.WebhookDelivery) []DeliveryRecord {
	return sliceutil.Map(rows, func(d dbsqlc.WebhookDelivery) DeliveryRecord { return DeliveryRecord(d) })
}
