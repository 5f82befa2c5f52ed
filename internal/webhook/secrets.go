package webhook

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// secretOverlap is how long the secret before the current one stays valid, if the call does not say.
// docs/reference/webhooks.md, Rotation.
const secretOverlap = 24 * time.Hour

// RotateSecret makes secret the current one. The previous one stays valid for overlap; if it is negative, for
// secretOverlap. Callers validate the secret. A commit that was not answered is looked up. After an error with an unknown
// outcome the secret may have changed all the same; the caller has to rotate again. A running attempt goes on with the secrets
// of its claim.
func (s *Store) RotateSecret(ctx context.Context, id [16]byte, secret string, overlap time.Duration) (*Webhook, error) {
	if overlap < 0 {
		overlap = secretOverlap
	}
	// Two more rotations would have removed the secret; that this one has no effect is true then, too.
	look := func(ctx context.Context, rotated *Webhook) (pg.Found, error) {
		there, err := s.db.Q.WebhookSecretExists(ctx, rotated.Secrets[0].ID)
		return foundIf(there), err
	}
	return s.changeSecrets(ctx, id, look, func(ctx context.Context, q *dbsqlc.Queries) error {
		return s.rotate(ctx, q, rotation{id, secret, overlap})
	})
}

// DropPreviousSecret makes the previous secret invalid at once. It does nothing if there is none, so it can be repeated.
func (s *Store) DropPreviousSecret(ctx context.Context, id [16]byte) (*Webhook, error) {
	look := func(ctx context.Context, _ *Webhook) (pg.Found, error) {
		there, err := s.db.Q.WebhookSecretHasPrevious(ctx, id)
		return foundIf(!there), err // whoever has dropped it
	}
	return s.changeSecrets(ctx, id, look, func(ctx context.Context, q *dbsqlc.Queries) error {
		_, err := q.WebhookSecretDeletePrevious(ctx, id)
		return err
	})
}

// changeSecrets locks the subscription, so that two rotations at the same time leave two valid secrets and not three. The
// answer is read in the transaction, with the secrets that it leaves.
func (s *Store) changeSecrets(ctx context.Context, id [16]byte, look lookUp,
	change func(ctx context.Context, q *dbsqlc.Queries) error) (*Webhook, error) {
	return s.inWebhookTx(ctx, look, func(ctx context.Context, q *dbsqlc.Queries) (*Webhook, error) {
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
	return row, err
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
func (s *Store) secretsOf(ctx context.Context, q *dbsqlc.Queries, webhooks [][16]byte) (secrets map[[16]byte][]Secret, sealed [][16]byte,
	err error) {
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

// vault encrypts webhook secrets with AES-256-GCM (docs/reference/webhooks.md, Rotation). Without a key they are stored in
// plain text. It is set at the start and never changed, so it needs no lock. A key id is the beginning of the SHA-256 of
// the key: nodes agree on it without a setting, and it tells nothing of use about the key.
type vault struct {
	current string // key id, "": none
	keys    map[string]cipher.AEAD
}

// newVault takes keys of 32 bytes. The first one encrypts and decrypts, the others decrypt. No keys: seal stores plain
// text, and open reads only what is stored so.
func newVault(keys []config.Key) vault {
	v := vault{keys: make(map[string]cipher.AEAD, len(keys))}
	for i, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			panic(fmt.Sprintf("webhook key: %v", err)) // the configuration has checked the length
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			panic(fmt.Sprintf("webhook key: %v", err))
		}
		sum := sha256.Sum256(key)
		id := hex.EncodeToString(sum[:4])
		v.keys[id] = gcm
		// Without keys, current is "", which names no key.
		if i == 0 {
			v.current = id
		}
	}
	return v
}

// seal returns the nonce and the sealed secret as one value. Without keys the secret stays readable, and keyID is "". The
// nonce is random, 12 bytes; a key seals far fewer secrets than would make two equal ones likely.
func (v vault) seal(secret string) (sealed []byte, keyID string, err error) {
	gcm := v.keys[v.current]
	if gcm == nil {
		return []byte(secret), "", nil
	}
	nonce := make([]byte, gcm.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, "", err
	}
	return gcm.Seal(nonce, nonce, []byte(secret), nil), v.current, nil
}

// open returns errUnknownKey if this node does not have the key. Another node may have it, while keys are being changed.
// Another error means that the stored bytes were changed.
func (v vault) open(sealed []byte, keyID string) (string, error) {
	if keyID == "" {
		return string(sealed), nil
	}
	gcm := v.keys[keyID]
	if gcm == nil || len(sealed) < gcm.NonceSize() {
		return "", errUnknownKey
	}
	secret, err := gcm.Open(nil, sealed[:gcm.NonceSize()], sealed[gcm.NonceSize():], nil)
	if err != nil {
		return "", fmt.Errorf("open webhook secret: %w", err)
	}
	return string(secret), nil
}

// ResealSecrets encrypts with the current key all secrets that are stored in plain text or under another key. Call it at
// start: it fails if a secret cannot be decrypted. Nodes that start together do the same work; the id of the old key in the
// statement lets one of them win, and both results can be opened. Nodes that still run without the new key cannot open what
// was resealed: hence NEW,OLD on all of them before OLD is removed. Secrets that have expired are left out.
func (s *Store) ResealSecrets(ctx context.Context) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WebhookSecretListByKey(ctx, s.vault.current)
	if err != nil {
		return err
	}
	for _, row := range rows {
		secret, err := s.vault.open(row.Secret, row.KeyID)
		if err != nil {
			return err
		}
		if s.vault.current == "" {
			continue // without a current key, secrets stay as they are
		}
		sealed, keyID, err := s.vault.seal(secret)
		if err != nil {
			return err
		}
		if err := s.db.Q.WebhookSecretReseal(ctx, dbsqlc.WebhookSecretResealParams{ID: row.ID, Secret: sealed, KeyID: keyID,
			OldKeyID: row.KeyID}); err != nil {
			return err
		}
	}
	return nil
}

// Sign is the value of X-OJS-Signature. The key is the whole secret, with its prefix (docs/reference/webhooks.md, Request).
// The test vector is in docs/reference/webhooks.md, Signatures.
func Sign(secret string, timestamp int64, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(strconv.AppendInt(nil, timestamp, 10))
	mac.Write([]byte{'.'})
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// SignStandard is one value of webhook-signature, as Standard Webhooks defines it. A secret whose rest is not base64 is
// taken as text, prefix included: refusing it would stop the deliveries of a subscription that works with X-OJS-Signature.
func SignStandard(secret, id string, timestamp int64, body string) string {
	key := []byte(secret)
	if encoded, ok := strings.CutPrefix(secret, "whsec_"); ok {
		if decoded, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			key = decoded
		}
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + strconv.FormatInt(timestamp, 10) + "." + body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// signer chooses the secret for X-OJS-Signature. While two are valid, a receiver may know only one of them: odd attempts use
// the one that signed the latest success, at first the older one, and even attempts the other (docs/reference/webhooks.md,
// Rotation). secrets has the newest first, so the older one is at index 1. The server learns from the first success which
// secret the receiver has, so that later deliveries succeed at their first attempt.
func signer(secrets []Secret, proven [16]byte, attempt int) Secret {
	switch len(secrets) {
	case 0: // the table was changed by hand; the receiver cannot verify the request then
		return Secret{}
	case 1:
		return secrets[0]
	}
	first, second := secrets[1], secrets[0]
	if proven == second.ID {
		first, second = second, first
	}
	if attempt%2 == 1 {
		return first
	}
	return second
}

// sign makes a signature with each valid secret, so that a receiver that knows any of them can verify the request. X-OJS-Signature has
// room for one only; see signer.
func (m *Message) sign(h http.Header, now time.Time) {
	// One time for all signatures and both headers, or a receiver could not verify each of them.
	timestamp := now.Unix()
	h.Set("X-OJS-Timestamp", strconv.FormatInt(timestamp, 10))
	all := make([]string, len(m.Secrets))
	standard := make([]string, len(m.Secrets))
	for i, s := range m.Secrets {
		all[i], standard[i] = Sign(s.Value, timestamp, m.Body), SignStandard(s.Value, m.ID, timestamp, m.Body)
	}
	h.Set("X-OJS-Signature", Sign(m.Signer.Value, timestamp, m.Body))
	h.Set("X-OJS-Signatures", strings.Join(all, ","))
	if m.Standard {
		h.Set("webhook-id", m.ID)
		h.Set("webhook-timestamp", strconv.FormatInt(timestamp, 10))
		h.Set("webhook-signature", strings.Join(standard, " "))
	}
}
