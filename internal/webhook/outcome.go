package webhook

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// DeliveryOutcome is the outcome of one attempt. decide makes it; deliver adds the ids, the claim and the secret. Delay
// counts from the moment of the record, by the clock of the database.
type DeliveryOutcome struct {
	ID       [16]byte
	Webhook  [16]byte
	Claims   int32  // of the claim that it was made with
	Status   string // delivered, failed or dead
	GoneURL  string // the URL that answered 410, which disables the subscription; "": another answer
	Code     int    // HTTP status, 0: no response
	Error    string // Result.Error, or lease_lost; "": none
	Snippet  string // of the response
	Duration time.Duration
	Delay    time.Duration // failed: until the next attempt
	Secret   [16]byte      // that X-OJS-Signature was made with
}

// Recorded is the effect of an outcome. The zero value is that of an outcome that had no effect.
type Recorded struct {
	Counted  bool   // false: the lease had expired, and another node records the attempt
	Disabled string // why the outcome disabled the subscription; "": it did not
}

// RecordDelivery stores an outcome. Concurrent calls share a statement. It is committed when it returns without an error.
// It may be called again with the same outcome after an error, also if the first call has committed: the delivery is no
// longer in the state delivering then, and the second call counts nothing.
func (s *Store) RecordDelivery(ctx context.Context, o DeliveryOutcome) (Recorded, error) {
	return s.deliveries.Do(ctx, o)
}

// flushDeliveries locks the subscriptions before their deliveries, as every transaction does, or two could deadlock. A
// success counts even if the lease was lost, because the receiver has got the delivery; any other outcome of a lost lease
// is left to the node that claimed after it (WebhookDeliveryRecord).
func (s *Store) flushDeliveries(ctx context.Context, outcomes []DeliveryOutcome) ([]Recorded, error) {
	p := dbsqlc.WebhookDeliveryRecordParams{DisableAfterS: disableAfter.Seconds()}
	// No id is there twice, see NewStore.
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
	err := s.db.InTx(ctx, func(tx pgx.Tx) (err error) {
		q := dbsqlc.New(tx)
		// The statement after it decides about disabling and about the next delivery of a subject; under the lock no claim
		// and no fan-out of the subscription comes between.
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
	// Outcomes without a row keep the zero value.
	for _, row := range rows {
		recorded[at[row.ID]] = Recorded{Counted: true, Disabled: row.Disabled}
	}
	return recorded, nil
}

// ReleaseDelivery ends the lease of a delivery: it is due at once, and the attempt does not count. It does nothing if the
// delivery was claimed again or has ended. The notification is a statement of its own; without it the delivery waits for a
// poll.
func (s *Store) ReleaseDelivery(ctx context.Context, id [16]byte, claims int32) error {
	if err := s.db.Q.WebhookDeliveryRelease(ctx, id, claims); err != nil {
		return err
	}
	return s.db.Q.WebhookNotify(ctx)
}
