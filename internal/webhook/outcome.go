package webhook

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// DeliveryOutcome is the outcome of one attempt.
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

// Recorded is the effect of an outcome.
type Recorded struct {
	Counted  bool   // false: the lease had expired, and another node records the attempt
	Disabled string // why the outcome disabled the subscription; "": it did not
}

// RecordDelivery stores an outcome. Concurrent calls share a statement.
func (s *Store) RecordDelivery(ctx context.Context, o DeliveryOutcome) (Recorded, error) {
	return s.deliveries.Do(ctx, o)
}

// flushDeliveries locks the subscriptions before their deliveries, as every transaction does, or two could deadlock.
func (s *Store) flushDeliveries(ctx context.Context, outcomes []DeliveryOutcome) ([]Recorded, error) {
	p := dbsqlc.WebhookDeliveryRecordParams{DisableAfterS: disableAfter.Seconds()}
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

// ReleaseDelivery ends the lease of a delivery: it is due at once, and the attempt does not count.
func (s *Store) ReleaseDelivery(ctx context.Context, id [16]byte, claims int32) error {
	if err := s.db.Q.WebhookDeliveryRelease(ctx, id, claims); err != nil {
		return err
	}
	return s.db.Q.WebhookNotify(ctx)
}
