package webhook

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// vault encrypts webhook secrets with AES-256-GCM (docs/reference/webhooks.md, Rotation). Without a key they are stored in
// plain text. It is set at the start and never changed, so it needs no lock. A key id is the beginning of the SHA-256 of
// the key: nodes agree on it without a setting, and it tells nothing of use about the key.
type vault struct {
	current string // key id, "": none
	keys    map[string]cipher.AEAD
}

// newVault takes keys of 32 bytes. The first one encrypts and decrypts, the others decrypt. No keys: seal stores plain
// text, and open reads only what is stored so.
func newVault(keys [][]byte) vault {
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
		if err := s.db.Q.WebhookSecretReseal(ctx, dbsqlc.WebhookSecretResealParams{ID: row.ID, Secret: sealed, KeyID: keyID, OldKeyID: row.KeyID}); err != nil {
			return err
		}
	}
	return nil
}
