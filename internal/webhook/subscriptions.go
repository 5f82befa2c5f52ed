package webhook

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Prefixes of ids as clients see them.
const (
	WebhookPrefix  = "sub_"
	DeliveryPrefix = "del_"
	SecretPrefix   = "sec_"
)

// ID is the id of a subscription as clients see it.
func ID(id [16]byte) string { return WebhookPrefix + spec.FormatID(id) }

// DeliveryID is the id of a delivery as clients see it.
func DeliveryID(id [16]byte) string { return DeliveryPrefix + spec.FormatID(id) }

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
// log in the insert, and no pass of the fan-out goes beyond the end that its own list has seen. It is not idempotent. The id is
// made before, so a commit that was not answered can be looked up.
func (s *Store) Create(ctx context.Context, in *Definition, match Match) (*Webhook, error) {
	id := job.NewID()
	look := func(ctx context.Context, _ *Webhook) (pg.Found, error) {
		rows, err := s.db.Q.WebhookGet(ctx, id)
		return foundIf(len(rows) > 0), err
	}
	return s.inWebhookTx(ctx, look, func(ctx context.Context, q *dbsqlc.Queries) (*Webhook, error) {
		// Creations take turns, or two could both find room for the last subscription. The lock is a statement of its own: the
		// count must see what the last holder has inserted.
		if err := q.WebhookLock(ctx); err != nil {
			return nil, err
		}
		rows, err := q.WebhookInsert(ctx, dbsqlc.WebhookInsertParams{
			ID: id, Url: in.URL, Events: in.Events, Filter: in.Filter, Types: pg.Strings(match.Types), Sources: pg.Strings(match.Sources),
			Queues: pg.Strings(in.Queues), JobTypes: pg.Strings(in.JobTypes), Metadata: in.Metadata, Active: in.Active,
			TimeoutMs: in.TimeoutMS, MaxInFlight: in.MaxInFlight, Ordering: in.Ordering, PayloadFormat: in.PayloadFormat,
			StandardWebhooks: in.StandardWebhooks, MaxWebhooks: int32(s.config.MaxSubscriptions), Tenant: pg.Text(in.Tenant),
		})
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			refused := spec.NewError(ojs.ErrValidation, "There are too many webhook subscriptions; delete one that is not needed.",
				map[string]any{"field": "subscriptions", "max_subscriptions": s.config.MaxSubscriptions})
			refused.Hint = "Delete a subscription that is not needed; GET /ojs/v1/webhooks lists them. The server's setting OJS_WEBHOOKS_MAX_SUBSCRIPTIONS is the limit."
			return nil, refused
		}
		secret, err := s.addSecret(ctx, q, id, in.Secret)
		if err != nil {
			return nil, err
		}
		// So that the fan-out of every node wakes for published events.
		return &Webhook{rows[0], []SecretRecord{secret}}, q.WebhookNotify(ctx)
	})
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
	return rows[0], nil
}

// Get reads a subscription.
func (s *Store) Get(ctx context.Context, id [16]byte) (*Webhook, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WebhookGet(ctx, id)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return s.oneWebhook(ctx, s.db.Q, rows, id)
}

// oneWebhook may run inside or outside of a transaction, and rows is empty or has one element.
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
func ErrNoWebhook(id string) error { return spec.NotFound("webhook_subscription", id) }

// withSecrets keeps the order of rows. All secrets come by one statement.
func (s *Store) withSecrets(ctx context.Context, q *dbsqlc.Queries, rows []Record) ([]Webhook, error) {
	ids, at := make([][16]byte, len(rows)), make(map[[16]byte]int, len(rows))
	list := make([]Webhook, len(rows))
	for i, row := range rows {
		ids[i], at[row.ID], list[i].Record = row.ID, i, row
	}
	secrets, err := q.WebhookSecretList(ctx, ids)
	for _, secret := range secrets {
		i := at[secret.WebhookID]
		list[i].Secrets = append(list[i].Secrets, secret)
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
	list, err := s.withSecrets(ctx, s.db.Q, rows)
	return list, found[0].Total, pg.ClientError(err)
}

// lastID is above every id.
var lastID = [16]byte{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// Change stores what change returns for the current subscription. A secret in it is a rotation. change may be called more
// than once, and under the lock of the subscription, so it must neither block nor have effects. Tenant cannot be changed. A
// commit that was not answered is looked up.
//
// The unfinished deliveries follow after the commit, which has marked the subscription for that. An error of theirs is not one
// of the change: the marks stay, and a Dispatcher of any node goes on (finishChanges) and logs what fails.
func (s *Store) Change(ctx context.Context, id [16]byte, change func(current Definition) (*Definition, Match, error)) (*Webhook, error) {
	var before Record
	// updated_at, which every change sets, tells this change from the one before.
	look := func(ctx context.Context, changed *Webhook) (pg.Found, error) {
		rows, err := s.db.Q.WebhookGet(ctx, id)
		switch {
		case err != nil:
			return pg.Absent, err
		case len(rows) == 0: // deleted since
			return pg.Overwritten, nil
		case rows[0].UpdatedAt.Time.Equal(changed.UpdatedAt.Time):
			return pg.Present, nil
		case rows[0].UpdatedAt.Time.Equal(before.UpdatedAt.Time):
			return pg.Absent, nil
		}
		return pg.Overwritten, nil
	}
	changed, err := s.inWebhookTx(ctx, look, func(ctx context.Context, q *dbsqlc.Queries) (w *Webhook, err error) {
		if before, err = lockWebhook(ctx, q, id); err != nil {
			return nil, err
		}
		in, match, err := change(definitionOf(&before))
		if err != nil {
			return nil, err
		}
		row, err := q.WebhookUpdate(ctx, dbsqlc.WebhookUpdateParams{
			ID: id, Url: in.URL, Events: in.Events, Filter: in.Filter, Types: pg.Strings(match.Types), Sources: pg.Strings(match.Sources),
			Queues: pg.Strings(in.Queues), JobTypes: pg.Strings(in.JobTypes), Metadata: in.Metadata, Active: in.Active,
			TimeoutMs: in.TimeoutMS, MaxInFlight: in.MaxInFlight, Ordering: in.Ordering,
			PayloadFormat: in.PayloadFormat, StandardWebhooks: in.StandardWebhooks,
			// before was read under the lock, so only one of two changes at once reactivates.
			Reactivate: in.Active && !before.Active,
		})
		if err != nil {
			return nil, err
		}
		if in.Secret != "" {
			if err := s.rotate(ctx, q, rotation{id, in.Secret, secretOverlap}); err != nil {
				return nil, err
			}
		}
		return s.oneWebhook(ctx, q, []Record{row}, id)
	})
	if err == nil {
		s.warnLeft(ctx, id, s.finishChange(ctx, id))
		s.warnLeft(ctx, id, s.db.Q.WebhookNotify(ctx)) // a higher max_in_flight makes room for deliveries; a poll finds them without it
	}
	return changed, err
}

// definitionOf has neither secret nor tenant: the first is sealed, the second stays as it is.
func definitionOf(row *Record) Definition {
	filter := FilterOf(row.Filter) // the columns have the patterns in another form
	return Definition{
		URL: row.Url, Events: row.Events, Queues: filter.Queues, JobTypes: filter.JobTypes, Sources: filter.Sources, Filter: row.Filter,
		Metadata: row.Metadata, Active: row.Active, TimeoutMS: row.TimeoutMs, MaxInFlight: row.MaxInFlight,
		Ordering: row.Ordering, PayloadFormat: row.PayloadFormat,
		StandardWebhooks: row.StandardWebhooks,
	}
}

// Delete removes a subscription and cancels its unfinished deliveries. The row goes first, so no new delivery can be made
// or claimed; the cancel in batches follows. If that fails, or the node stops in between, CancelOrphans of any node goes on. A
// second call returns not found. A commit that was not answered is looked up.
func (s *Store) Delete(ctx context.Context, id [16]byte) error {
	look := func(ctx context.Context, _ *Webhook) (pg.Found, error) {
		rows, err := s.db.Q.WebhookGet(ctx, id)
		return foundIf(len(rows) == 0), err // whoever has deleted it
	}
	_, err := s.inWebhookTx(ctx, look, func(ctx context.Context, q *dbsqlc.Queries) (*Webhook, error) {
		deleted, err := q.WebhookDelete(ctx, id)
		if err == nil && len(deleted) == 0 {
			err = ErrNoWebhook(ID(id))
		}
		return nil, err
	})
	if err == nil {
		s.warnLeft(ctx, id, s.cancelDeliveries(ctx, id))
	}
	return err
}

// warnLeft logs the error of what follows a change that is committed: the caller is told that the change is done, and a Dispatcher goes on.
func (s *Store) warnLeft(ctx context.Context, id [16]byte, err error) {
	if err != nil {
		s.logger.WarnContext(ctx, "deliveries did not follow a change of their webhook subscription; trying again later",
			slog.String("category", "webhook"), slog.Group("attributes", "subscription_id", ID(id)), slog.Any("error", err))
	}
}

// lookUp reads what the database holds of a change whose commit was not answered. changed is what its transaction has returned.
type lookUp func(ctx context.Context, changed *Webhook) (pg.Found, error)

// inWebhookTx is for subscriptions and secrets. Their tables are small, so every plan is good. It is tried again after a
// deadlock, too, and maps errors for clients. If the commit was not answered, look tells whether it is done.
func (s *Store) inWebhookTx(ctx context.Context, look lookUp, do func(ctx context.Context, q *dbsqlc.Queries) (*Webhook,
	error)) (changed *Webhook, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	err = pg.Retry(func() error {
		return s.db.InTx(bounded, func(tx pgx.Tx) (err error) {
			changed, err = do(bounded, dbsqlc.New(tx))
			return err
		})
	})
	err = s.db.Settle(ctx, err, func(ctx context.Context) (pg.Found, error) { return look(ctx, changed) })
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return changed, nil
}

func foundIf(there bool) pg.Found {
	if there {
		return pg.Present
	}
	return pg.Absent
}
