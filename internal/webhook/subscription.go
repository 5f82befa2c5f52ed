package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/jackc/pgx/v5"
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

// WebhookID is the id of a subscription as clients see it.
func WebhookID(id [16]byte) string { return WebhookPrefix + ojs.FormatID(id) }

// DeliveryID is that of a delivery.
func DeliveryID(id [16]byte) string { return DeliveryPrefix + ojs.FormatID(id) }

// Webhook is a subscription with its valid secrets, newest first.
type Webhook struct {
	Record
	Secrets []SecretRecord
}

// Match is what of a subscription the relay compares: patterns in the form of ojs.event_matches.
type Match struct {
	Types, Sources []string
}

// Create stores a subscription with its secret.
func (s *Store) Create(ctx context.Context, in *Definition, match Match) (*Webhook, error) {
	var made *Webhook
	err := s.inWebhookTx(ctx, func(q *dbsqlc.Queries) error {
		if err := q.WebhookLock(ctx); err != nil {
			return err
		}
		id := job.NewID()
		rows, err := q.WebhookInsert(ctx, dbsqlc.WebhookInsertParams{
			ID: id, Url: in.URL, Events: in.Events, Filter: in.Filter, Types: pg.Strings(match.Types), Sources: pg.Strings(match.Sources),
			Queues: pg.Strings(in.Queues), JobTypes: pg.Strings(in.JobTypes), Metadata: in.Metadata, Active: in.Active, TimeoutMs: in.TimeoutMS,
			MaxInFlight: in.MaxInFlight, Ordering: in.Ordering, PayloadFormat: in.PayloadFormat, StandardWebhooks: in.StandardWebhooks,
			MaxWebhooks: s.config.MaxWebhooks,
		})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return ojs.NewError(ojs.KindValidation, "There are too many webhook subscriptions; delete one that is not needed.",
				map[string]any{"field": "subscriptions", "max_subscriptions": s.config.MaxWebhooks})
		}
		secret, err := s.addSecret(ctx, q, id, in.Secret)
		made = &Webhook{Record(rows[0]), []SecretRecord{secret}}
		if err != nil {
			return err
		}
		return q.WebhookNotify(ctx) // from now on events have an audience
	})
	return made, err
}

// notNil: an empty array, not SQL's NULL.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (s *Store) inWebhookTx(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.ClientError(pg.Retry(func() error {
		return pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) error { return do(dbsqlc.New(tx)) })
	}))
}

// lockWebhook reads a subscription that the transaction is about to change.
func lockWebhook(ctx context.Context, q *dbsqlc.Queries, id [16]byte) (Record, error) {
	rows, err := q.WebhookGetForUpdate(ctx, id)
	switch {
	case err != nil:
		return Record{}, err
	case len(rows) == 0:
		return Record{}, ErrNoWebhook(WebhookID(id))
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

func (s *Store) oneWebhook(ctx context.Context, q *dbsqlc.Queries, rows []Record, id [16]byte) (*Webhook, error) {
	if len(rows) == 0 {
		return nil, ErrNoWebhook(WebhookID(id))
	}
	list, err := s.withSecrets(ctx, q, rows)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return &list[0], nil
}

// ErrNoWebhook says that there is no such subscription.
func ErrNoWebhook(id string) error { return ojs.ErrNotFound("webhook_subscription", id) }

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

// Filter is what a list of subscriptions was asked for.
type Filter struct {
	Active *bool
	URL    string
	Before *[16]byte // exclusive; nil: from the newest
	Offset int
	Limit  int
}

// List lists subscriptions, newest first, and counts those that match.
func (s *Store) List(ctx context.Context, l Filter) ([]Webhook, int64, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	p := dbsqlc.WebhookListParams{Url: l.URL, Before: lastID, SkipRows: int32(l.Offset), MaxRows: int32(l.Limit)}
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

// Change has change decide from the subscription as it is, and stores that. A secret is a rotation.
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
			Reactivate: in.Active && !before.Active,
		})
		if err != nil {
			return err
		}
		if in.Secret != "" {
			if err := s.rotate(ctx, q, id, in.Secret, secretOverlap); err != nil {
				return err
			}
		}
		changed, err = s.oneWebhook(ctx, q, []Record{Record(row)}, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return changed, s.follow(ctx, &before, changed)
}

// follow lets what waits follow a change of its subscription, in pieces.
func (s *Store) follow(ctx context.Context, before *Record, now *Webhook) error {
	var err error
	if now.Ordering != before.Ordering {
		err = s.inPieces(ctx, func(q *dbsqlc.Queries) (int64, error) {
			if err := q.WebhookLockByID(ctx, [][16]byte{now.ID}); err != nil {
				return 0, err
			}
			return q.WebhookDeliveryReorder(ctx, dbsqlc.WebhookDeliveryReorderParams{WebhookID: now.ID, Ordered: now.Ordering == "subject", MaxRows: pieceRows})
		})
	}
	if err == nil && now.Active && !before.Active {
		err = s.inPieces(ctx, func(q *dbsqlc.Queries) (int64, error) { return q.WebhookDeliveryResume(ctx, now.ID, pieceRows) })
	}
	return errors.Join(err, pg.ClientError(s.db.Q.WebhookNotify(ctx))) // limits may have changed, too
}

func webhookOf(row *Record) Definition {
	filter := FilterOf(row.Filter) // as it was sent: the columns have patterns in another form
	return Definition{
		URL: row.Url, Events: row.Events, Queues: filter.Queues, JobTypes: filter.JobTypes, Sources: filter.Sources, Filter: row.Filter, Metadata: row.Metadata,
		Active: row.Active, TimeoutMS: row.TimeoutMs, MaxInFlight: row.MaxInFlight, Ordering: row.Ordering, PayloadFormat: row.PayloadFormat,
		StandardWebhooks: row.StandardWebhooks,
	}
}

// Delete removes a subscription and cancels what waits for it.
func (s *Store) Delete(ctx context.Context, id [16]byte) error {
	err := s.inWebhookTx(ctx, func(q *dbsqlc.Queries) error {
		gone, err := q.WebhookDelete(ctx, id)
		if err == nil && len(gone) == 0 {
			err = ErrNoWebhook(WebhookID(id))
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.cancelDeliveries(ctx, id)
}

// RotateSecret makes secret the current one; the one before stays valid for overlap, negative: as configured.
func (s *Store) RotateSecret(ctx context.Context, id [16]byte, secret string, overlap time.Duration) (*Webhook, error) {
	if overlap < 0 {
		overlap = secretOverlap
	}
	return s.changeSecrets(ctx, id, func(q *dbsqlc.Queries) error { return s.rotate(ctx, q, id, secret, overlap) })
}

// DropPreviousSecret ends the overlap now.
func (s *Store) DropPreviousSecret(ctx context.Context, id [16]byte) (*Webhook, error) {
	return s.changeSecrets(ctx, id, func(q *dbsqlc.Queries) error {
		_, err := q.WebhookSecretDeletePrevious(ctx, id)
		return err
	})
}

func (s *Store) changeSecrets(ctx context.Context, id [16]byte, change func(q *dbsqlc.Queries) error) (*Webhook, error) {
	var changed *Webhook
	err := s.inWebhookTx(ctx, func(q *dbsqlc.Queries) error {
		row, err := lockWebhook(ctx, q, id)
		if err != nil {
			return err
		}
		if err := change(q); err != nil {
			return err
		}
		changed, err = s.oneWebhook(ctx, q, []Record{Record(row)}, id)
		return err
	})
	return changed, err
}

// rotate: at most two secrets are valid, so that the one before the current one goes at once. The caller holds the row.
func (s *Store) rotate(ctx context.Context, q *dbsqlc.Queries, id [16]byte, secret string, overlap time.Duration) error {
	if _, err := q.WebhookSecretDeletePrevious(ctx, id); err != nil {
		return err
	}
	if err := q.WebhookSecretRetire(ctx, int64(overlap/time.Second), id); err != nil {
		return err
	}
	_, err := s.addSecret(ctx, q, id, secret)
	return err
}

func (s *Store) addSecret(ctx context.Context, q *dbsqlc.Queries, webhook [16]byte, secret string) (SecretRecord, error) {
	sealed, keyID, err := s.vault.seal(secret)
	if err != nil {
		return SecretRecord{}, err
	}
	id := job.NewID()
	row, err := q.WebhookSecretInsert(ctx, dbsqlc.WebhookSecretInsertParams{
		ID: id, WebhookID: webhook, Secret: sealed, KeyID: keyID, Hint: secret[max(0, len(secret)-4):],
	})
	return SecretRecord(row), err
}

func records(rows []dbsqlc.Webhook) []Record {
	return sliceutil.Map(rows, func(w dbsqlc.Webhook) Record { return Record(w) })
}

// Replay delivers events of a time span again: what was abandoned, or all that matches and is kept. It returns how many.
func (s *Store) Replay(ctx context.Context, id [16]byte, r Replay) (int64, error) {
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
	began, err := s.db.Now(ctx)
	if err != nil {
		return 0, pg.ClientError(err)
	}
	var total int64
	for {
		var n int64
		err := s.replayPage(ctx, w, func(q *dbsqlc.Queries) error {
			row, err := q.WebhookReplayFailed(ctx, dbsqlc.WebhookReplayFailedParams{
				WebhookID: id, Began: pg.Timestamp(began), Since: pg.Timestamp(since), Until: pg.Timestamp(until), MaxRows: replayRows,
			})
			n = row.Deliveries
			return err
		})
		if total += n; err != nil || n < replayRows {
			return total, err
		}
	}
}

const replayRows = 1000

// replayPage holds the subscription, so that two replays do not both make what is missing, and nobody misses being woken.
func (s *Store) replayPage(ctx context.Context, w *Webhook, replay func(q *dbsqlc.Queries) error) error {
	return pg.ClientError(s.inPlannedTx(ctx, func(q *dbsqlc.Queries) error {
		if err := q.WebhookLockByID(ctx, [][16]byte{w.ID}); err != nil {
			return err
		}
		if err := replay(q); err != nil || w.Ordering != "subject" {
			return err
		}
		return q.WebhookDeliveryQueueOrdered(ctx, w.ID)
	}))
}

// replayAll reads the log once, in pieces that are transactions of their own.
func (s *Store) replayAll(ctx context.Context, w *Webhook, since, until time.Time) (total int64, err error) {
	p := dbsqlc.WebhookReplayAllParams{WebhookID: w.ID, Since: pg.Timestamp(since), Until: pg.Timestamp(until), MaxRows: replayRows}
	for {
		var row dbsqlc.WebhookReplayAllRow
		err := s.replayPage(ctx, w, func(q *dbsqlc.Queries) (err error) {
			row, err = q.WebhookReplayAll(ctx, p)
			return err
		})
		if total += row.Deliveries; err != nil || row.Scanned < replayRows || row.Over {
			return total, err
		}
		p.AfterSeq, p.AfterSub = row.LastSeq, row.LastSub
	}
}

var errUnknownKey = errors.New("a webhook secret is sealed with a key that is not configured: set OJS_WEBHOOKS_ENCRYPTION_KEY to the key it was stored with, " +
	"or to NEW,OLD to change keys")
