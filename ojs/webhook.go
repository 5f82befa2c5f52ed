package ojs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reasons for which a delivery is refused.
var (
	ErrWebhookSignature = errors.New("ojs: the signature of the webhook is not valid")
	ErrWebhookAge       = errors.New("ojs: the webhook is older than it may be, or the clocks differ")
)

const (
	webhookMaxAge  = 5 * time.Minute
	webhookMaxBody = 1 << 20
)

// VerifyWebhook checks the signature and the age of a delivery. One of the secrets has to fit; two are needed only by receivers that take
// deliveries from before a rotation. body must be the bytes as they came, before any decoding. A delivery may differ by five
// minutes from now; the signature is checked first, so that the age is that of a genuine delivery.
func VerifyWebhook(header http.Header, body []byte, now time.Time, secrets ...string) error {
	timestamp := header.Get("X-OJS-Timestamp")
	given := append(strings.Split(header.Get("X-OJS-Signatures"), ","), header.Get("X-OJS-Signature"))
	if !slices.ContainsFunc(secrets, func(secret string) bool { return signedBy(secret, timestamp, body, given) }) {
		return ErrWebhookSignature
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if age := now.Sub(time.Unix(seconds, 0)); err != nil || age > webhookMaxAge || age < -webhookMaxAge {
		return ErrWebhookAge
	}
	return nil
}

// signedBy compares all signatures, in constant time each: how long it takes does not tell which one fits.
func signedBy(secret, timestamp string, body []byte, given []string) bool {
	if secret == "" {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(timestamp + "."))
	_, _ = mac.Write(body)
	want := []byte("sha256=" + hex.EncodeToString(mac.Sum(nil)))
	found := false
	for _, g := range given {
		found = hmac.Equal(want, []byte(strings.TrimSpace(g))) || found
	}
	return found
}

// WebhookHandler receives deliveries: it checks them by [VerifyWebhook] and hands each event to receive. An error makes the server
// deliver again later. A delivery may come twice: drop events by their id. previous are secrets that are valid besides secret, for
// receivers that learn of a rotation late or early. A body above 1 MiB is refused with 400, a wrong signature or age with 401.
// receive runs within the request: if it takes longer than the server waits for an answer, the event is delivered again.
func WebhookHandler(secret string, receive func(context.Context, *Event) error, previous ...string) http.Handler {
	notNil("the receiver of webhooks", receive == nil)
	secrets := append([]string{secret}, previous...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, webhookMaxBody))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		if err := VerifyWebhook(r.Header, body, time.Now(), secrets...); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		e := &Event{}
		if err := json.Unmarshal(body, e); err != nil {
			http.Error(w, "the body is no event", http.StatusBadRequest)
			return
		}
		e.Type = strings.TrimPrefix(e.Type, "org.openjobspec.") // of the form of CloudEvents
		if err := receive(r.Context(), e); err != nil {
			http.Error(w, "the event was not processed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
