package webhook

import (
	"context"
	"errors"

	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Prefixes of ids as clients see them.
const (
	WebhookPrefix  = "sub_"
	DeliveryPrefix = "del_"
	SecretPrefix   = "sec_"
)

// ID is the id of a subscription as clients see it.
func ID(id [16]byte) string { return WebhookPrefix + ojs.FormatID(id) }

// DeliveryID is the id of a delivery as clients see it.
func DeliveryID(id [16]byte) string { return DeliveryPrefix + ojs.FormatID(id) }

// Webhook is a subscription with its valid secrets, newest first. The secrets are sealed; only the id, the hint and the
// times are shown.
type Webhook struct {
	Record
	Secrets []SecretRecord
}

// Match holds the patterns of a subscription in the form of ojs.event_matches. The transports make it from a Definition:
// they know the types of events and their aliases.
type Match struct {
	Types, Sources []string
}

// Create stores a subscription with its secret. It gets the events published after its commit: from_place is the end of the
// log in the insert, and no pass of the fan-out goes beyond the end that its own list has seen. It is not idempotent. The
// advisory lock serializes creations, or two could both find room for the last subscription.
func (s *Store) Create(ctx context.Context, in *Definition, match Match) (*Webhook, error) {
	var made *Webhook
	err := s.inWebhookTx(ctx, func(q *dbsqlc.Queries) error {
		// It comes before the count, in a statement of its own: the count must see what the last holder has inserted.
		if err := q.WebhookLock(ctx); err != nil {
			return err
		}
		id := job.NewID()
		rows, err := q.WebhookInsert(ctx, dbsqlc.WebhookInsertParams{
			ID: id, Url: in.URL, Events: in.Events, Filter: in.Filter, Types: pg.Strings(match.Types), Sources: pg.Strings(match.Sources),
			Queues: pg.Strings(in.Queues), JobTypes: pg.Strings(in.JobTypes), Metadata: in.Metadata, Active: in.Active, TimeoutMs: in.TimeoutMS,
			MaxInFlight: in.MaxInFlight, Ordering: in.Ordering, PayloadFormat: in.PayloadFormat, StandardWebhooks: in.StandardWebhooks,
			MaxWebhooks: s.config.MaxWebhooks, Tenant: pg.Text(in.Tenant),
		})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			refused := ojs.NewError(ojs.KindValidation, "There are too many webhook subscriptions; delete one that is not needed.",
				map[string]any{"field": "subscriptions", "max_subscriptions": s.config.MaxWebhooks})
			refused.Hint = "Delete a subscription that is not needed; GET /ojs/v1/webhooks lists them. The server's setting OJS_WEBHOOKS_MAX_SUBSCRIPTIONS is the limit."
			return refused
		}
		secret, err := s.addSecret(ctx, q, id, in.Secret)
		made = &Webhook{Record(rows[0]), []SecretRecord{secret}}
		if err != nil {
			return err
		}
		return q.WebhookNotify(ctx) // so that the fan-out of every node wakes for published events
	})
	return made, err
}

// lockWebhook reads and locks a subscription that the transaction will change. It waits for claims and records of the
// subscription, which are short.
func lockWebhook(ctx context.Context, q *dbsqlc.Queries, id [16]byte) (Record, error) {
	rows, err := q.WebhookGetForUpdate(ctx, id)
	switch {
	case err != nil:
		return Record{}, err
	case len(rows) == 0:
		return Record{}, ErrNoWebhook(ID(id))
	}
	return Record(rows[0]), nil
}

// Get reads a subscription.
func (s *Store) Get(ctx context.Context, id [16]byte) (*Webhook, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WebhookGet(ctx, id)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return s.oneWebhook(ctx, s.db.Q, records(rows), id)
}

// It may run inside or outside of a transaction, and rows is empty or has one element.
func (s *Store) oneWebhook(ctx context.Context, q *dbsqlc.Queries, rows []Record, id [16]byte) (*Webhook, error) {
	if len(rows) == 0 {
		return nil, ErrNoWebhook(ID(id))
	}
	list, err := s.withSecrets(ctx, q, rows)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return &list[0], nil
}

// ErrNoWebhook is the API error for an unknown subscription.
func ErrNoWebhook(id string) error { return ojs.ErrNotFound("webhook_subscription", id) }

// The order of rows is kept. All secrets come by one statement.
func (s *Store) withSecrets(ctx context.Context, q *dbsqlc.Queries, rows []Record) ([]Webhook, error) {
	ids, at := make([][16]byte, len(rows)), make(map[[16]byte]int, len(rows))
	list := make([]Webhook, len(rows))
	for i, row := range rows {
		ids[i], at[row.ID], list[i].Record = row.ID, i, row
	}
	secrets, err := q.WebhookSecretList(ctx, ids)
	for _, secret := range secrets {
		i := at[secret.WebhookID]
		list[i].Secrets = append(list[i].Secrets, SecretRecord(secret))
	}
	return list, err
}

// Filter selects subscriptions of a list.
type Filter struct {
	Tenant string // "": the subscriptions of all
	Active *bool
	URL    string
	Before *[16]byte // exclusive; nil: from the newest
	Offset int
	Limit  int
}

// List lists subscriptions, newest first, and counts those that match. The total does not depend on the page. Its two
// statements have no common snapshot; a subscription deleted in between is missing.
func (s *Store) List(ctx context.Context, l Filter) ([]Webhook, int64, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, 0, pg.ClientError(err)
	}
	defer done()
	p := dbsqlc.WebhookListParams{Tenant: pg.Text(l.Tenant), Url: l.URL, Before: lastID, SkipRows: int32(l.Offset), MaxRows: int32(l.Limit)}
	if l.Active != nil {
		p.Active = pgtype.Bool{Bool: *l.Active, Valid: true}
	}
	if l.Before != nil {
		p.Before = *l.Before
	}
	found, err := s.db.Q.WebhookList(ctx, p)
	if err != nil {
		return nil, 0, pg.ClientError(err)
	}
	ids := make([][16]byte, 0, len(found))
	for _, row := range found {
		if row.ID != ([16]byte{}) {
			ids = append(ids, row.ID)
		}
	}
	rows, err := s.db.Q.WebhookListByID(ctx, ids)
	if err != nil {
		return nil, 0, pg.ClientError(err)
	}
	list, err := s.withSecrets(ctx, s.db.Q, records(rows))
	return list, found[0].Total, pg.ClientError(err)
}

// lastID is above every id.
var lastID = [16]byte{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// Change stores what change returns for the current subscription. A secret in it is a rotation. change may be called more
// than once, and under the lock of the subscription, so it must neither block nor have effects. The change is committed
// before its deliveries follow; an error after that says that a part was done, and the same request completes it only if it
// changes something again. Tenant cannot be changed.
func (s *Store) Change(ctx context.Context, id [16]byte, change func(current Definition) (*Definition, Match, error)) (*Webhook, error) {
	var before Record
	var changed *Webhook
	err := s.inWebhookTx(ctx, func(q *dbsqlc.Queries) error {
		var err error
		if before, err = lockWebhook(ctx, q, id); err != nil {
			return err
		}
		in, match, err := change(webhookOf(&before))
		if err != nil {
			return err
		}
		row, err := q.WebhookUpdate(ctx, dbsqlc.WebhookUpdateParams{
			ID: id, Url: in.URL, Events: in.Events, Filter: in.Filter, Types: pg.Strings(match.Types), Sources: pg.Strings(match.Sources),
			Queues: pg.Strings(in.Queues), JobTypes: pg.Strings(in.JobTypes), Metadata: in.Metadata, Active: in.Active, TimeoutMs: in.TimeoutMS,
			MaxInFlight: in.MaxInFlight, Ordering: in.Ordering, PayloadFormat: in.PayloadFormat, StandardWebhooks: in.StandardWebhooks,
			// before was read under the lock, so only one of two changes at once reactivates.
			Reactivate: in.Active && !before.Active,
		})
		if err != nil {
			return err
		}
		if in.Secret != "" {
			if err := s.rotate(ctx, q, rotation{id, in.Secret, secretOverlap}); err != nil {
				return err
			}
		}
		changed, err = s.oneWebhook(ctx, q, []Record{Record(row)}, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	// Outside of the transaction: a subscription may have a million deliveries, and the lock would stop its claims
	// meanwhile.
	return changed, s.updateDeliveries(ctx, &before, changed)
}

// updateDeliveries applies a change of the subscription to its unfinished deliveries, in batches. Order: first which
// deliveries wait for others, then which are due. Fan-out passes meanwhile use the new settings already, as they read them
// under the lock.
func (s *Store) updateDeliveries(ctx context.Context, before *Record, now *Webhook) error {
	var err error
	if now.Ordering != before.Ordering {
		err = s.inBatches(ctx, func(q *dbsqlc.Queries) (int64, error) {
			if err := q.WebhookLockByID(ctx, [][16]byte{now.ID}); err != nil {
				return 0, err
			}
			return q.WebhookDeliveryReorder(ctx, dbsqlc.WebhookDeliveryReorderParams{WebhookID: now.ID, Ordered: now.Ordering == "subject", MaxRows: batchRows})
		})
	}
	if err == nil && now.Active && !before.Active {
		err = s.inBatches(ctx, func(q *dbsqlc.Queries) (int64, error) { return q.WebhookDeliveryResume(ctx, now.ID, batchRows) })
	}
	return pg.PartlyError(errors.Join(err, s.db.Q.WebhookNotify(ctx))) // a higher max_in_flight makes room for deliveries
}

// It has neither secret nor tenant: the first is sealed, the second stays as it is.
func webhookOf(row *Record) Definition {
	filter := FilterOf(row.Filter) // the columns have the patterns in another form
	return Definition{
		URL: row.Url, Events: row.Events, Queues: filter.Queues, JobTypes: filter.JobTypes, Sources: filter.Sources, Filter: row.Filter, Metadata: row.Metadata,
		Active: row.Active, TimeoutMS: row.TimeoutMs, MaxInFlight: row.MaxInFlight, Ordering: row.Ordering, PayloadFormat: row.PayloadFormat,
		StandardWebhooks: row.StandardWebhooks,
	}
}

// Delete removes a subscription and cancels its unfinished deliveries. The row goes first, so no new delivery can be made
// or claimed; the cancel in batches follows. If the node stops in between, CancelOrphans of any node goes on. A second call
// returns not found.
func (s *Store) Delete(ctx context.Context, id [16]byte) error {
	err := s.inWebhookTx(ctx, func(q *dbsqlc.Queries) error {
		deleted, err := q.WebhookDelete(ctx, id)
		if err == nil && len(deleted) == 0 {
			err = ErrNoWebhook(ID(id))
		}
		return err
	})
	if err != nil {
		return err
	}
	return pg.PartlyError(s.cancelDeliveries(ctx, id))
}

func records(rows []dbsqlc.Webhook) []Record {
	return sliceutil.Map(rows, func(w dbsqlc.Webhook) Record { return Record(w) })
}
