package webhook

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
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
	Sealed     [][16]byte    // subscriptions whose secrets this node cannot open
	Next       time.Duration // until something that is not due yet is; negative: nothing waits
}

// ClaimDeliveries leases at most want due deliveries to this node (docs/reference/webhooks.md, Deliveries). They must be sent only after this has
// returned: then the claim is committed.
func (s *Store) ClaimDeliveries(ctx context.Context, want int) (c Claimed, err error) {
	err = s.inPlannedTx(ctx, func(q *dbsqlc.Queries) error {
		if c.Deliveries, c.Sealed, err = s.claimDeliveries(ctx, q, want); err != nil {
			return err
		}
		waitMS, err := q.WebhookDeliveryGetNextDue(ctx)
		c.Next = time.Duration(waitMS) * time.Millisecond
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
		list = append(list, Delivery{row, secrets[row.WebhookID]})
	}
	return list, sealed, err
}

// secretsOf opens the valid secrets, newest first. sealed are the subscriptions with one that cannot be opened here.
func (s *Store) secretsOf(ctx context.Context, q *dbsqlc.Queries, webhooks [][16]byte) (secrets map[[16]byte][]Secret, sealed [][16]byte, err error) {
	rows, err := q.WebhookSecretList(ctx, webhooks)
	if err != nil {
		return nil, nil, err
	}
	secrets = make(map[[16]byte][]Secret, len(webhooks))
	for _, row := range rows {
		value, err := s.vault.open(row.Secret, row.KeyID)
		if err != nil {
			sealed = append(sealed, row.WebhookID)
			continue
		}
		secrets[row.WebhookID] = append(secrets[row.WebhookID], Secret{row.ID, value})
	}
	return secrets, sealed, nil
}

// SecretsOf gives the valid secrets of one subscription.
func (s *Store) SecretsOf(ctx context.Context, webhook [16]byte) ([]Secret, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	secrets, sealed, err := s.secretsOf(ctx, s.db.Q, [][16]byte{webhook})
	if err == nil && len(sealed) > 0 {
		err = errors.Join(ojs.NewError(ojs.KindUnavailable, "The secret of this webhook is sealed with a key that this node does not have; ask another node, or the operator.", nil), errUnknownKey)
	}
	return secrets[webhook], pg.ClientError(err)
}

// DeliveryOutcome is what became of one attempt.
type DeliveryOutcome struct {
	ID       [16]byte
	Webhook  [16]byte
	Claims   int32  // of the claim that it was made with
	Status   string // delivered, failed or dead
	GoneURL  string // that has asked not to be called again; "": it has not
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
	p := dbsqlc.WebhookDeliveryRecordParams{DisableAfterS: s.config.DisableAfter.Seconds()}
	at := make(map[[16]byte]int, len(outcomes))
	var webhooks [][16]byte
	for i, o := range outcomes {
		at[o.ID] = i
		p.Ids, p.Claims, p.Statuses = append(p.Ids, o.ID), append(p.Claims, o.Claims), append(p.Statuses, o.Status)
		p.DisableUrls, p.Codes, p.Errors = append(p.DisableUrls, o.GoneURL), append(p.Codes, int32(o.Code)), append(p.Errors, o.Error)
		webhooks = append(webhooks, o.Webhook)
		p.Snippets, p.Secrets = append(p.Snippets, o.Snippet), append(p.Secrets, o.Secret)
		p.DurationsMs, p.DelaysMs = append(p.DurationsMs, o.Duration.Milliseconds()), append(p.DelaysMs, o.Delay.Milliseconds())
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.WebhookDeliveryRecordRow
	err := pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
		q := dbsqlc.New(tx)
		if err := q.WebhookLockByID(ctx, webhooks); err != nil {
			return err
		}
		rows, err = q.WebhookDeliveryRecord(ctx, p)
		return err
	})
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
	if err := s.db.Q.WebhookDeliveryRelease(ctx, id, claims); err != nil {
		return err
	}
	return s.db.Q.WebhookNotify(ctx)
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
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.ClientError(s.db.Q.WebhookDeliveryInsertTest(ctx, dbsqlc.WebhookDeliveryInsertTestParams{
		ID: t.ID, WebhookID: t.Webhook, EventTime: pg.Timestamp(t.At), EventType: t.Type, Subject: t.Subject, Body: t.Body, Status: t.Status,
		Code: int32(t.Code), Error: t.Error, Snippet: t.Snippet, DurationMs: t.Duration.Milliseconds(), Secret: t.Secret,
	}))
}

// DeliveryList is what the delivery log was asked for. Zero values do not filter.
type DeliveryList struct {
	Webhook, Before *[16]byte
	Status, Type    string
	Event           *EventPlace // nil: any
	Since, Until    time.Time
	Offset, Limit   int
}

// EventPlace is where an event is in the log.
type EventPlace struct {
	Seq int64
	Sub int32
}

// maxDeliveryTotal bounds what a list counts.
const maxDeliveryTotal = 10_000

// Deliveries lists the log, newest first; the total is counted up to 10 000.
func (s *Store) Deliveries(ctx context.Context, l DeliveryList) ([]DeliveryRecord, int64, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	p := dbsqlc.WebhookDeliveryListParams{
		Status: pg.Text(l.Status), EventType: pg.Text(l.Type), Since: pg.Timestamp(l.Since), Until: pg.Timestamp(l.Until),
		Before: lastID, MaxTotal: max(maxDeliveryTotal, int32(l.Offset+l.Limit)), SkipRows: int32(l.Offset), MaxRows: int32(l.Limit),
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
		return nil, 0, pg.ClientError(err)
	}
	ids := make([][16]byte, 0, len(found))
	for _, row := range found {
		if row.ID != ([16]byte{}) {
			ids = append(ids, row.ID)
		}
	}
	total := found[0].Total
	if l.Before != nil { // what is before the cursor counts, too
		p.Before, p.SkipRows, p.MaxRows = lastID, 0, 0
		if found, err = s.db.Q.WebhookDeliveryList(ctx, p); err != nil {
			return nil, 0, pg.ClientError(err)
		}
		total = found[0].Total
	}
	rows, err := s.db.Q.WebhookDeliveryListByID(ctx, ids)
	return deliveryRecords(rows), total, pg.ClientError(err)
}

// Delivery reads one with its attempts.
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

// ErrNoDelivery says that there is no such delivery.
func ErrNoDelivery(id string) error { return ojs.ErrNotFound("webhook_delivery", id) }

// RetryDelivery makes a delivery due now, with a fresh schedule and the id it has.
func (s *Store) RetryDelivery(ctx context.Context, id [16]byte) (*DeliveryRecord, []AttemptRecord, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	again, err := s.db.Q.WebhookDeliveryRetry(ctx, id)
	if err != nil {
		return nil, nil, pg.ClientError(err)
	}
	row, attempts, err := s.Delivery(ctx, id)
	switch {
	case err != nil:
		return nil, nil, err
	case len(again) == 0:
		return nil, nil, ojs.NewError(ojs.KindInvalidStateTransition,
			"The delivery cannot be repeated: its subscription is gone, or it was a test.", map[string]any{"delivery_id": DeliveryID(id)})
	}
	return row, attempts, pg.ClientError(s.db.Q.WebhookNotify(ctx))
}

// PruneDeliveries removes at most 1 000 finished deliveries that are older than keep, and returns how many.
func (s *Store) PruneDeliveries(ctx context.Context, keep time.Duration) (n int64, err error) {
	err = s.inPlannedTx(ctx, func(q *dbsqlc.Queries) (err error) {
		n, err = q.WebhookDeliveryPrune(ctx, int64(keep/time.Second), 1000)
		return err
	})
	return n, err
}

// CancelOrphans ends what waits for subscriptions that are gone, where whoever deleted them could not.
func (s *Store) CancelOrphans(ctx context.Context) error {
	var orphans [][16]byte
	err := s.inPlannedTx(ctx, func(q *dbsqlc.Queries) (err error) {
		orphans, err = q.WebhookDeliveryListOrphans(ctx)
		return err
	})
	for _, webhook := range orphans {
		err = errors.Join(err, s.cancelDeliveries(ctx, webhook))
	}
	return err
}

func (s *Store) cancelDeliveries(ctx context.Context, webhook [16]byte) error {
	return s.inPieces(ctx, func(q *dbsqlc.Queries) (int64, error) { return q.WebhookDeliveryCancel(ctx, webhook, pieceRows) })
}

// pieceRows is what one statement changes of a backlog that may be large.
const pieceRows = 5000

// inPieces repeats a statement, each time in a transaction of its own, until it finds less than a whole piece.
func (s *Store) inPieces(ctx context.Context, change func(q *dbsqlc.Queries) (int64, error)) error {
	for {
		var n int64
		err := s.inPlannedTx(ctx, func(q *dbsqlc.Queries) (err error) {
			n, err = change(q)
			return err
		})
		if err != nil || n < pieceRows {
			return pg.ClientError(err)
		}
	}
}

// inPlannedTx keeps plans off sequential scans, whatever the statistics of a queue say at the moment.
func (s *Store) inPlannedTx(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	return pg.Retry(func() error { return s.planned(ctx, do) })
}

func (s *Store) planned(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.WebhookDeliverySetPlanner(ctx); err != nil {
			return err
		}
		return do(q)
	})
}

// Backlog counts subscriptions, and deliveries that wait or are on their way, the latter up to 100 000.
func (s *Store) Backlog(ctx context.Context) (webhooks, pending int64, err error) {
	row, err := s.db.Q.WebhookGetBacklog(ctx, 100_000)
	return row.Webhooks, row.Pending, err
}

func deliveryRecords(rows []dbsqlc.WebhookDelivery) []DeliveryRecord {
	return sliceutil.Map(rows, func(d dbsqlc.WebhookDelivery) DeliveryRecord { return DeliveryRecord(d) })
}
