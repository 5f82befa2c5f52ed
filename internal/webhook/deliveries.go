package webhook

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
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
		Status: pg.Text(l.Status), EventType: pg.Text(l.Type), Since: pg.Timestamp(l.Since), Until: pg.Timestamp(l.Until), Before: lastID,
		MaxTotal: max(maxDeliveryTotal, end), MaxLooked: max(s.maxLooked, end), SkipRows: int32(l.Offset), MaxRows: int32(l.Limit + 1),
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
	// The statement always returns a row, which carries the total and the floor; its id is zero if nothing was found. The floor is
	// where looking has stopped; zero means at the end of the log.
	var ids [][16]byte
	for _, row := range found {
		if row.ID != ([16]byte{}) {
			ids = append(ids, row.ID)
		}
	}
	switch floor := found[0].Floor; {
	case len(ids) > l.Limit:
		ids = ids[:l.Limit]
		page.Next = &ids[l.Limit-1]
	case floor != ([16]byte{}):
		page.Next = &floor
	}
	page.Total = found[0].Total
	if l.Before != nil { // the total includes the pages before the cursor
		p.Before, p.SkipRows, p.MaxRows = lastID, 0, 0
		if found, err = s.db.Q.WebhookDeliveryList(ctx, p); err != nil {
			return page, pg.ClientError(err)
		}
		page.Total = found[0].Total
	}
	page.Deliveries, err = s.db.Q.WebhookDeliveryListByID(ctx, ids)
	return page, pg.ClientError(err)
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
	return &rows[0], attempts, pg.ClientError(err)
}

// ErrNoDelivery is the API error for an unknown delivery.
func ErrNoDelivery(id string) error { return spec.NotFound("webhook_delivery", id) }

// Backlog counts the subscriptions, and the unfinished deliveries up to 100 000. The metrics of a node ask for it.
func (s *Store) Backlog(ctx context.Context) (webhooks, pending int64, err error) {
	row, err := s.db.Q.WebhookGetBacklog(ctx, 100_000)
	return row.Webhooks, row.Pending, err
}

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

// Replay delivers events of a time span again: those whose delivery was given up, or all that match and are kept. It returns
// their number. Portions that were committed stay after an error, and the number counts what they made. Replays of one
// subscription take turns by its lock, a page each. It waits for no request.
func (s *Store) Replay(ctx context.Context, id [16]byte, r Replay) (int64, error) {
	// An age such as 24h counts back from the clock of the database.
	if err := job.ResolveAges(ctx, s.db.Now, &r.Since, &r.Until); err != nil {
		return 0, pg.ClientError(err)
	}
	since, until := r.Since.At, r.Until.At
	w, err := s.Get(ctx, id)
	if err != nil {
		return 0, err
	}
	if r.All {
		return s.replayAll(ctx, w, since, until)
	}
	// Deliveries that fail again while the replay runs are left out by it; otherwise a fast failing endpoint would keep the
	// loop going without end.
	began, err := s.db.Now(ctx)
	if err != nil {
		return 0, pg.ClientError(err)
	}
	var total int64
	for {
		var n int64
		err := s.replayPage(ctx, w, func(ctx context.Context, q *dbsqlc.Queries) error {
			row, err := q.WebhookReplayFailed(ctx, dbsqlc.WebhookReplayFailedParams{
				WebhookID: id, Began: pg.Timestamp(began), Since: pg.Timestamp(since), Until: pg.Timestamp(until), MaxRows: replayRows,
			})
			n = row.Deliveries
			return err
		})
		if err != nil {
			return total, replayError(total, err)
		}
		if total += n; n < replayRows {
			return total, nil
		}
	}
}

// replayRows bounds how long the lock of the subscription keeps outcomes from being recorded.
const replayRows = 1000

// replayPage locks the subscription, so that two replays do not both insert a missing delivery, and a delivery that finishes
// meanwhile makes the next one due.
func (s *Store) replayPage(ctx context.Context, w *Webhook, replay func(ctx context.Context, q *dbsqlc.Queries) error) error {
	return pg.ClientError(s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		if err := q.WebhookLockByID(ctx, [][16]byte{w.ID}); err != nil {
			return err
		}
		if err := replay(ctx, q); err != nil || w.Ordering != "subject" {
			return err
		}
		return q.WebhookDeliveryQueueOrdered(ctx, w.ID)
	}))
}

// replayError is the error of a replay that has made deliveries before.
func replayError(made int64, err error) error {
	if made == 0 {
		return err
	}
	return pg.PartlyError(err)
}

// replayAll reads the log once, one page per transaction. The place of the last event that was looked at leads to the next
// page. It ends with a page that is not full, or one that lies behind until.
func (s *Store) replayAll(ctx context.Context, w *Webhook, since, until time.Time) (total int64, err error) {
	p := dbsqlc.WebhookReplayAllParams{WebhookID: w.ID, Since: pg.Timestamp(since), Until: pg.Timestamp(until), MaxRows: replayRows}
	for {
		var row dbsqlc.WebhookReplayAllRow
		err := s.replayPage(ctx, w, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
			row, err = q.WebhookReplayAll(ctx, p)
			return err
		})
		if err != nil {
			return total, replayError(total, err)
		}
		if total += row.Deliveries; row.Scanned < replayRows || row.Over {
			return total, nil
		}
		p.AfterSeq, p.AfterSub = row.LastSeq, row.LastSub
	}
}

// testType is a type that webhooks alone send. It is never in the event log.
const testType = "webhook.test"

// Tested is the result of a test. Success false is no error of the call (docs/reference/webhooks.md, Test event).
type Tested struct {
	DeliveryID string
	Success    bool
	Result
}

// envelope has the members of an event in the order of docs/reference/events.md, Envelope. Events of the log get their
// envelope in SQL (ojs.webhook_body); a test event is in no log, so it is made here.
type envelope struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Type            string          `json:"type"`
	Source          string          `json:"source"`
	Time            string          `json:"time"`
	Subject         string          `json:"subject"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	Data            json.RawMessage `json:"data"`
}

// Test sends one signed event in one attempt and waits for the answer. It also tests inactive subscriptions. It goes past
// the claim, max_in_flight and the schedule. Of the subscription it changes the latest status and, if it succeeds, the
// proven secret, but no count. It holds no transaction while it waits for the endpoint. If the log cannot be written, the
// caller gets an error although the request was made.
func (d *Dispatcher) Test(ctx context.Context, w *Webhook) (Tested, error) {
	secrets, err := d.store.SecretsOf(ctx, w.ID)
	if err != nil {
		return Tested{}, err
	}
	now, err := d.store.db.Now(ctx)
	if err != nil {
		return Tested{}, pg.ClientError(err)
	}
	webhook := ID(w.ID)
	data, err := json.Marshal(map[string]string{"message": "This is a test of the webhook subscription.", "subscription_id": webhook})
	if err != nil {
		return Tested{}, err
	}
	e := envelope{
		SpecVersion: "1.0", ID: "evt_" + spec.FormatID(job.NewID()), Type: testType,
		Source: "ojs://" + d.config.Events.ServiceName + "/api",
		Time:   spec.FormatTime(now), Subject: webhook, Data: data,
	}
	if w.PayloadFormat == "cloudevents" {
		e.Type, e.DataContentType = "org.openjobspec."+testType, "application/json"
	}
	body, err := json.Marshal(e)
	if err != nil {
		return Tested{}, err
	}
	id := job.NewID()
	m := &Message{
		URL: w.Url, ID: DeliveryID(id), Webhook: webhook, EventID: e.ID, EventType: testType, Attempt: 1,
		Body: string(body), Secrets: secrets, Standard: w.StandardWebhooks,
		Signer:      signer(secrets, w.ProvenSecret.Bytes, 1), // as a real first attempt
		CloudEvents: w.PayloadFormat == "cloudevents", Timeout: time.Duration(w.TimeoutMs) * time.Millisecond,
		Clock: NewClock(now),
	}
	res := d.sender.send(context.WithoutCancel(ctx), m) // the attempt is logged even if the client has disconnected
	status := "dead"
	if res.accepted() {
		status = "delivered"
	}
	err = d.store.LogTest(context.WithoutCancel(ctx), TestDelivery{
		DeliveryOutcome: DeliveryOutcome{
			ID: id, Status: status, Code: res.Code, Error: res.Error, Snippet: res.Snippet, Duration: res.Duration, Secret: m.Signer.ID,
		},
		Webhook: w.ID, At: now, Type: testType, Subject: m.Webhook, Body: m.Body,
	})
	return Tested{DeliveryID: m.ID, Success: status == "delivered", Result: res}, err
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

// LogTest writes a test delivery to the delivery log. The row has position 0, which no event has, so it can be neither
// retried nor replayed.
func (s *Store) LogTest(ctx context.Context, t TestDelivery) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.PartlyError(s.db.Q.WebhookDeliveryInsertTest(ctx, dbsqlc.WebhookDeliveryInsertTestParams{
		ID: t.ID, WebhookID: t.Webhook, EventTime: pg.Timestamp(t.At), EventType: t.Type, Subject: t.Subject, Body: t.Body,
		Status: t.Status, Code: int32(t.Code), Error: t.Error, Snippet: t.Snippet, DurationMs: t.Duration.Milliseconds(), Secret: t.Secret,
	}))
}
