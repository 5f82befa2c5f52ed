package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
)

// Keys are the accepted API keys. Without any, the node is open.
// It never changes after NewKeys, so it needs no lock.
type Keys []key

// principal is "key:" and the first four bytes of the hash in hexadecimal: enough to tell keys apart in events, and nothing
// to find the key by.
type key struct {
	sum       [sha256.Size]byte
	principal string
}

// NewKeys keeps only hashes of the keys.
// The texts themselves are not kept, so that a dump of the memory does not show them. Empty texts are no keys: Token refuses
// them.
func NewKeys(texts []string) Keys {
	hashed := make(Keys, len(texts))
	for i, text := range texts {
		sum := sha256.Sum256([]byte(text))
		hashed[i] = key{sum, "key:" + hex.EncodeToString(sum[:4])}
	}
	return hashed
}

// Bearer reads the value of an Authorization header. principal is how events name the caller (docs/reference/events.md, Payloads).
// Without keys nothing matches: the caller must ask for len(k) before it refuses a request.
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
	// The loop does not end at a match, or its length would tell which key matched.
	for _, key := range k {
		if subtle.ConstantTimeCompare(sum[:], key.sum[:]) == 1 {
			principal, ok = key.principal, true
		}
	}
	return principal, ok
}
