package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// RotateSecret makes secret the current one. The previous one stays valid for overlap; if it is negative, for
// secretOverlap. Callers validate the secret. A commit that was not answered is looked up. After an error with an unknown
// outcome the secret may have changed all the same; the caller has to rotate again. A running attempt goes on with the secrets
// of its claim.
func (s *Store) RotateSecret(ctx context.Context, id [16]byte, secret string, overlap time.Duration) (*Webhook, error) {
	if overlap < 0 {
		overlap = secretOverlap
	}
	return s.changeSecrets(ctx, id, s.lookForSecret, func(ctx context.Context, q *dbsqlc.Queries) error {
		return s.rotate(ctx, q, rotation{id, secret, overlap})
	})
}

// DropPreviousSecret makes the previous secret invalid at once. It does nothing if there is none, so it can be repeated.
func (s *Store) DropPreviousSecret(ctx context.Context, id [16]byte) (*Webhook, error) {
	return s.changeSecrets(ctx, id, s.lookForNoPrevious, func(ctx context.Context, q *dbsqlc.Queries) error {
		_, err := q.WebhookSecretDeletePrevious(ctx, id)
		return err
	})
}

// changeSecrets locks the subscription, so that two rotations at the same time leave two valid secrets and not three. The
// answer is read in the transaction, with the secrets that it leaves.
func (s *Store) changeSecrets(ctx context.Context, id [16]byte, found look, change func(ctx context.Context, q *dbsqlc.Queries) error) (*Webhook, error) {
	return s.inWebhookTx(ctx, found, func(ctx context.Context, q *dbsqlc.Queries) (*Webhook, error) {
		row, err := lockWebhook(ctx, q, id)
		if err != nil {
			return nil, err
		}
		if err := change(ctx, q); err != nil {
			return nil, err
		}
		return s.oneWebhook(ctx, q, []Record{row}, id)
	})
}

// rotation is a new secret of a subscription; the current one stays valid for overlap.
type rotation struct {
	webhook [16]byte
	secret  string
	overlap time.Duration
}

// rotate stores a new current secret. At most two are valid, so the one before the current one is deleted. The caller has
// locked the subscription. The order matters: the previous secret goes first, then the current one becomes the previous,
// and only then the new one is the current. The other way round the delete would take the one that is to stay valid.
func (s *Store) rotate(ctx context.Context, q *dbsqlc.Queries, r rotation) error {
	if _, err := q.WebhookSecretDeletePrevious(ctx, r.webhook); err != nil {
		return err
	}
	if err := q.WebhookSecretRetire(ctx, int64(r.overlap/time.Second), r.webhook); err != nil {
		return err
	}
	_, err := s.addSecret(ctx, q, r.webhook, r.secret)
	return err
}

// addSecret seals a secret. Its last four characters stay readable: people tell secrets apart by them. It is sealed with
// the current key of this node.
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

var errUnknownKey = errors.New("a webhook secret is sealed with a key that is not configured: set OJS_WEBHOOKS_ENCRYPTION_KEY to the key it was stored with, " +
	"or to NEW,OLD to change keys")

// Secret is a valid secret in plain text. ID goes into the row of the delivery, so that the server learns which secret the
// receiver knows (see signer).
type Secret struct {
	ID    [16]byte
	Value string
}

// String keeps the value out of logs.
func (s Secret) String() string { return "secret " + spec.FormatID(s.ID) }

// secretsOf opens the valid secrets, newest first. sealed are the subscriptions with one that cannot be opened here. One
// secret that cannot be opened makes the whole subscription sealed: a request that lacks one of two signatures would fail
// at receivers that know only that secret. Secrets of a sealed subscription may be in the map and must not be used.
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

// SecretsOf returns the valid secrets of one subscription. It is for test events, which do not claim.
func (s *Store) SecretsOf(ctx context.Context, webhook [16]byte) ([]Secret, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	secrets, sealed, err := s.secretsOf(ctx, s.db.Q, [][16]byte{webhook})
	if err == nil && len(sealed) > 0 {
		err = errors.Join(spec.NewError(ojs.ErrUnavailable, "The secret of this webhook is sealed with a key that this node does not have; ask another node, or the operator.", nil), errUnknownKey)
	}
	return secrets[webhook], pg.ClientError(err)
}

// secretOverlap is how long the secret before the current one stays valid, if the call does not say.
// docs/reference/webhooks.md, Rotation.
const secretOverlap = 24 * time.Hour
