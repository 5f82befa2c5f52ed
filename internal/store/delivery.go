package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// leaseRoom is what a lease lasts beyond the timeout of its request: the record of the outcome must fit in.
const leaseRoom = 30 * time.Second

// Secret is one that is valid, in plain text.
type Secret struct {
	ID    [16]byte
	Value string
}

// String keeps the value out of logs.
func (s Secret) String() string { return "secret " + ojs.FormatID(s.ID) }

// Delivery is one that this node has claimed.
type Delivery struct {
	dbsqlc.WebhookDeliveryClaimRow
	Secrets []Secret // newest first
}

// Claimed is what a claim found.
type Claimed struct {
	Deliveries []Delivery
	Webhooks   int64         // active subscriptions
	Next       time.Duration // until something that is not due yet is; negative: nothing waits
}

// ClaimDeliveries leases at most want due deliveries to this node (contract 40 §9.6). They must be sent only after this has
// returned: then the claim is committed.
func (s *Store) ClaimDeliveries(ctx context.Context, want int) (c Claimed, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.WebhookDeliveryPlan(ctx); err != nil {
			return err
		}
		if c.Deliveries, err = s.claimDeliveries(ctx, q, want); err != nil {
			return err
		}
		next, err := q.WebhookDeliveryNext(ctx)
		c.Webhooks, c.Next = next.Webhooks, time.Duration(next.WaitMs)*time.Millisecond
		return err
	})
	return c, err
}

func (s *Store) claimDeliveries(ctx context.Context, q *dbsqlc.Queries, want int) ([]Delivery, error) {
	webhooks, err := q.WebhookDeliveryLock(ctx)
	if err != nil || len(webhooks) == 0 {
		return nil, err
	}
	rows, err := q.WebhookDeliveryClaim(ctx, dbsqlc.WebhookDeliveryClaimParams{
		WebhookIds: webhooks, MaxRows: int32(want), LeaseRoomMs: int32(leaseRoom.Milliseconds()),
	})
	if err != nil {
		return nil, err
	}
	secrets, err := s.secretsOf(ctx, q, webhooks)
	if err != nil {
		return nil, err
	}
	list := make([]Delivery, len(rows))
	for i, row := range rows {
		list[i] = Delivery{row, secrets[row.WebhookID]}
	}
	return list, nil
}

func (s *Store) secretsOf(ctx context.Context, q *dbsqlc.Queries, webhooks [][16]byte) (map[[16]byte][]Secret, error) {
	rows, err := q.WebhookSecretList(ctx, webhooks)
	if err != nil {
		return nil, err
	}
	secrets := make(map[[16]byte][]Secret, len(webhooks))
	for _, row := range rows {
		value, err := s.vault.open(row.Secret, row.KeyID)
		if err != nil {
			return nil, err
		}
		secrets[row.WebhookID] = append(secrets[row.WebhookID], Secret{row.ID, value})
	}
	return secrets, nil
}

// SecretsOf gives the valid secrets of one subscription.
func (s *Store) SecretsOf(ctx context.Context, webhook [16]byte) ([]Secret, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	secrets, err := s.secretsOf(ctx, s.q, [][16]byte{webhook})
	return secrets[webhook], WireError(err)
}

// DeliveryOutcome is what became of one attempt.
type DeliveryOutcome struct {
	ID       [16]byte
	Claims   int32  // of the claim that it was made with
	Status   string // delivered, failed or dead
	Gone     bool   // the endpoint asks not to be called again
	Code     int    // HTTP status, 0: no response
	Error    string // a word; "": none
	Snippet  string // of the response
	Duration time.Duration
	Delay    time.Duration // failed: until the next attempt
	Secret   [16]byte      // that X-OJS-Signature was made with
}

// Recorded says what an outcome did.
type Recorded struct {
	Counted  bool   // false: the claim was lost, and somebody else reports
	Disabled string // why the subscription was disabled by it; "": it was not
}

// RecordDelivery stores the outcome. Concurrent calls share a statement.
func (s *Store) RecordDelivery(ctx context.Context, o DeliveryOutcome) (Recorded, error) {
	return s.deliveries.Do(ctx, o)
}

func (s *Store) flushDeliveries(ctx context.Context, outcomes []DeliveryOutcome) ([]Recorded, error) {
	p := dbsqlc.WebhookDeliveryRecordParams{DisableAfterS: s.config.DisableWebhookAfter.Seconds()}
	at := make(map[[16]byte]int, len(outcomes))
	for i, o := range outcomes {
		at[o.ID] = i
		p.Ids, p.Claims, p.Statuses = append(p.Ids, o.ID), append(p.Claims, o.Claims), append(p.Statuses, o.Status)
		p.Gone, p.Codes, p.Errors = append(p.Gone, o.Gone), append(p.Codes, int32(o.Code)), append(p.Errors, o.Error)
		p.Snippets, p.Secrets = append(p.Snippets, o.Snippet), append(p.Secrets, o.Secret)
		p.DurationsMs, p.DelaysMs = append(p.DurationsMs, o.Duration.Milliseconds()), append(p.DelaysMs, o.Delay.Milliseconds())
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.WebhookDeliveryRecord(ctx, p)
	if err != nil {
		return nil, err
	}
	recorded := make([]Recorded, len(outcomes))
	for _, row := range rows {
		recorded[at[row.ID]] = Recorded{Counted: true, Disabled: row.Disabled}
	}
	return recorded, nil
}

// ReleaseDelivery gives a claimed delivery back: it is due at once, and the attempt does not count.
func (s *Store) ReleaseDelivery(ctx context.Context, id [16]byte, claims int32) error {
	if err := s.q.WebhookDeliveryRelease(ctx, id, claims); err != nil {
		return err
	}
	return s.q.WebhookWake(ctx)
}

// TestDelivery is the one attempt of a test event.
type TestDelivery struct {
	DeliveryOutcome
	Webhook [16]byte
	At      time.Time
	Type    string
	Subject string
	Body    string
}

// LogTest puts it into the delivery log.
func (s *Store) LogTest(ctx context.Context, t TestDelivery) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return WireError(s.q.WebhookDeliveryLog(ctx, dbsqlc.WebhookDeliveryLogParams{
		ID: t.ID, WebhookID: t.Webhook, EventTime: timestamp(t.At), EventType: t.Type, Subject: t.Subject, Body: t.Body, Status: t.Status,
		Code: int32(t.Code), Error: t.Error, Snippet: t.Snippet, DurationMs: t.Duration.Milliseconds(), Secret: t.Secret,
	}))
}

// DeliveryList is what the delivery log was asked for. Zero values do not filter.
type DeliveryList struct {
	Webhook, Before *[16]byte
	Status, Type    string
	Seq             int64 // of the event; 0: any
	Sub             int32
	Since, Until    time.Time
	Offset, Limit   int
}

// maxDeliveryTotal bounds what a list counts.
const maxDeliveryTotal = 10_000

// Deliveries lists the log, newest first; the total is counted up to 10 000.
func (s *Store) Deliveries(ctx context.Context, l DeliveryList) ([]dbsqlc.WebhookDelivery, int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	p := dbsqlc.WebhookDeliveryListParams{
		Status: optionalText(l.Status), EventType: optionalText(l.Type), Since: timestamp(l.Since), Until: timestamp(l.Until),
		EventSeq: pgtype.Int8{Int64: l.Seq, Valid: l.Seq > 0}, EventSub: pgtype.Int4{Int32: l.Sub, Valid: l.Seq > 0},
		Before: lastID, MaxTotal: max(maxDeliveryTotal, int32(l.Offset+l.Limit)), SkipRows: int32(l.Offset), MaxRows: int32(l.Limit),
	}
	if l.Webhook != nil {
		p.WebhookID = pgtype.UUID{Bytes: *l.Webhook, Valid: true}
	}
	if l.Before != nil {
		p.Before = *l.Before
	}
	found, err := s.q.WebhookDeliveryList(ctx, p)
	if err != nil {
		return nil, 0, WireError(err)
	}
	ids := make([][16]byte, 0, len(found))
	for _, row := range found {
		if row.ID != ([16]byte{}) {
			ids = append(ids, row.ID)
		}
	}
	rows, err := s.q.WebhookDeliveryListByID(ctx, ids)
	return rows, found[0].Total, WireError(err)
}

// Delivery reads one with its attempts.
func (s *Store) Delivery(ctx context.Context, id [16]byte) (*dbsqlc.WebhookDelivery, []dbsqlc.WebhookAttempt, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.WebhookDeliveryListByID(ctx, [][16]byte{id})
	switch {
	case err != nil:
		return nil, nil, WireError(err)
	case len(rows) == 0:
		return nil, nil, ErrNoDelivery(DeliveryPrefix + ojs.FormatID(id))
	}
	attempts, err := s.q.WebhookAttemptList(ctx, id)
	return &rows[0], attempts, WireError(err)
}

// ErrNoDelivery says that there is no such delivery.
func ErrNoDelivery(id string) error { return ojs.ErrNotFound("webhook_delivery", id) }

// RetryDelivery makes a delivery due now, with a fresh schedule and the id it has.
func (s *Store) RetryDelivery(ctx context.Context, id [16]byte) (*dbsqlc.WebhookDelivery, []dbsqlc.WebhookAttempt, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	again, err := s.q.WebhookDeliveryRetry(ctx, [][16]byte{id})
	if err != nil {
		return nil, nil, WireError(err)
	}
	row, attempts, err := s.Delivery(ctx, id)
	switch {
	case err != nil:
		return nil, nil, err
	case len(again) == 0 && row.Status != "delivering":
		return nil, nil, ojs.NewError(ojs.KindInvalidStateTransition,
			"The delivery cannot be repeated: its subscription is gone, or it was a test.", map[string]any{"delivery_id": DeliveryPrefix + ojs.FormatID(id)})
	}
	return row, attempts, WireError(s.q.WebhookWake(ctx))
}

// PruneDeliveries removes at most 1 000 finished deliveries that are older than keep, and returns how many.
func (s *Store) PruneDeliveries(ctx context.Context, keep time.Duration) (n int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.WebhookDeliveryPlan(ctx); err != nil {
			return err
		}
		if _, err := q.WebhookOrphanCancel(ctx); err != nil {
			return err
		}
		n, err = q.WebhookDeliveryPrune(ctx, int64(keep/time.Second), 1000)
		return err
	})
	return n, err
}

// WebhookBacklog counts subscriptions, and deliveries that wait or are on their way, the latter up to 100 000.
func (s *Store) WebhookBacklog(ctx context.Context) (webhooks, pending int64, err error) {
	row, err := s.q.WebhookBacklog(ctx, 100_000)
	return row.Webhooks, row.Pending, err
}
