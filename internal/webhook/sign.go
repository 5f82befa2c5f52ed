package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

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
