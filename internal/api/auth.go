package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
)

// Keys are the accepted API keys. Without any, the node is open.
type Keys []key

type key struct {
	sum       [sha256.Size]byte
	principal string
}

// NewKeys keeps only hashes of the keys.
func NewKeys(texts []string) Keys {
	hashed := make(Keys, len(texts))
	for i, text := range texts {
		sum := sha256.Sum256([]byte(text))
		hashed[i] = key{sum, "key:" + hex.EncodeToString(sum[:4])}
	}
	return hashed
}

// Bearer reads the value of an Authorization header. principal is how events name the caller (docs/reference/events.md, Payloads).
func (k Keys) Bearer(header string) (principal string, ok bool) {
	scheme, token, found := strings.Cut(header, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return k.Token(strings.TrimSpace(token))
}

// Token compares with every key in constant time; hashing first makes the length irrelevant.
func (k Keys) Token(token string) (principal string, ok bool) {
	if token == "" {
		return "", false
	}
	sum := sha256.Sum256([]byte(token))
	for _, key := range k {
		if subtle.ConstantTimeCompare(sum[:], key.sum[:]) == 1 {
			principal, ok = key.principal, true
		}
	}
	return principal, ok
}
