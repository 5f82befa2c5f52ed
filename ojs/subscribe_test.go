package ojs_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
		ctx := t.Context()
		old, err := c.Enqueue(ctx, "old", nil)
		require.NoError(t, err)
		s.CutNext(1, http.MethodGet, "/ojs/manifest", false)
		s.FailNext(1, http.MethodGet, "/events*", 503, nil)
		seen := []string{}
		var made []string
		for e, err := range c.Events(ctx, ojs.EventFilter{JobTypes: []string{"old", "new"}, Since: old.CreatedAt.Add(-time.Hour)}) {
			require.NoError(t, err)
			seen = append(seen, e.Subject)
			if len(seen) == 4 {
				break
			}
			s.FailNext(1, http.MethodGet, "/events*", 503, nil)
			_, err := c.Enqueue(ctx, "other", nil)
			require.NoError(t, err)
			job, err := c.Enqueue(ctx, "new", nil)
			require.NoError(t, err)
			made = append(made, job.ID)
		}
		require.Equal(t, append([]string{old.ID}, made...), seen)
	})
}

// TestEventStream reads frames as a server may write them.
func TestEventStream(t *testing.T) {
	t.Parallel()
	streams := make(chan string, 10)
	positions := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ojs/manifest":
			_, _ = io.WriteString(w, `{"extensions":["urn:ojs:ext:realtime"]}`)
		default:
			positions <- r.Header.Get("Last-Event-ID")
			_, _ = io.WriteString(w, <-streams)
		}
	}))
	defer server.Close()
	c, err := ojs.NewClient(ojs.Config{URL: server.URL, Logger: silent})
	require.NoError(t, err)
	defer c.Close()
	streams <- "retry: 3000\n\n:heartbeat\n\nid: e1\nevent: a\ndata: {\"id\":\"e1\",\ndata: \"type\":\"a\"}\n\nid: e2\r\nevent: b\r\ndata:{\"type\":\"b\"}\r\n\r\nevent: server.shutdown\ndata: {}\n\nid: e9\ndata: {\"id\":\"e9\"" // cut off
	streams <- "id: e5\nevent: system.gap\ndata: {\"gap_start\":\"e3\"}\n\nid: e6\nevent: c\ndata: {\"id\":\"e6\",\"type\":\"c\"}\n\n"
	var got []string
	for e, err := range c.Events(t.Context(), ojs.EventFilter{After: "e0"}) {
		if gap, ok := errors.AsType[*ojs.GapError](err); ok {
			got = append(got, "gap "+string(gap.Data))
			continue
		}
		require.NoError(t, err)
		if e.ID == "" {
			t.Fatalf("an event without an id: %v", e)
		}
		if got = append(got, e.Type+" "+e.ID); e.Type == "c" {
			break
		}
	}
	require.Equal(t, []string{"a e1", "b e2", `gap {"gap_start":"e3"}`, "c e6"}, got)
	require.Equal(t, "e0 e2", receive(t, positions)+" "+receive(t, positions))
}

// TestEventsBeginByTheServer: the clock of the server differs, and there is no event to begin behind.
func TestEventsBeginByTheServer(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]struct {
		status int
		body   string
	}{
		"EmptyLog": {200, `{"items":[]}`},
		"NoList":   {400, `{"error":{"code":"invalid_request","type":"invalid_request","message":"m"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			since := make(chan string, 10)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/ojs/manifest":
					_, _ = io.WriteString(w, `{}`)
				case r.URL.Query().Has("page"):
					w.Header().Set("Date", "Mon, 04 May 2026 03:02:01 GMT")
					w.WriteHeader(list.status)
					_, _ = io.WriteString(w, list.body)
				default:
					since <- r.URL.Query().Get("since")
					_, _ = io.WriteString(w, `{"events":[{"id":"e1"}]}`)
				}
			}))
			defer server.Close()
			c, err := ojs.NewClient(ojs.Config{URL: server.URL, Logger: silent})
			require.NoError(t, err)
			defer c.Close()
			for _, err := range c.Events(t.Context(), ojs.EventFilter{}) {
				require.NoError(t, err)
				break
			}
			require.Equal(t, "2026-05-04T03:02:01Z", receive(t, since))
		})
	}
}

func TestEventsEnd(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		n := 0
		for _, err := range c.Events(ctx, ojs.EventFilter{}) {
			_ = err // only how many there are
			n++
		}
		done <- n
	}()
	cancel()
	require.Zero(t, receive(t, done))

	refused, err := ojs.NewClient(ojs.Config{Transport: transportFunc(func(r *http.Request) (int, string, error) {
		switch {
		case r.URL.Path == "/ojs/manifest":
			return 200, `{}`, nil
		case r.URL.Query().Get("since") == "1970-01-01T00:00:00Z":
			return 200, `{"events":[{"id":"e7"}]}`, nil
		case r.URL.Query().Get("after") == "":
			return 200, `{"events":[]}`, nil
		}
		return 410, `{"error":{"code":"x_cursor_expired","type":"x_cursor_expired","message":"m","details":{"oldest_id":"e7"}}}`, nil
	}), Logger: silent})
	require.NoError(t, err)
	ctx, cancel = context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	var gap *ojs.GapError
	next := ""
	for e, err := range refused.Events(ctx, ojs.EventFilter{After: "e1"}) {
		if err == nil {
			next = e.ID
			break
		}
		require.ErrorAs(t, err, &gap)
	}
	require.Contains(t, gap.Error(), "e7")
	require.Equal(t, "e7", next, "it goes on with the oldest event that is kept")
}

func TestWebhookHandler(t *testing.T) {
	t.Parallel()
	const body = `{"specversion":"1.0","id":"evt_019a0000-0000-7000-8000-000000000001","type":"webhook.test","source":"ojs://demo/api","time":"2026-01-01T00:00:00.000Z","subject":"sub_019a0000-0000-7000-8000-0000000000aa","data":{"message":"hello"}}`
	const secret = "whsec_Zm9yLXRlc3RzLW9ubHktbm90LWEtc2VjcmV0LTAwMDE="
	vector := http.Header{"X-Ojs-Timestamp": {"1767225600"}, "X-Ojs-Signature": {"sha256=625c6b50cc1383e5049b5ada1a452dc81b937efea729cc20e67cd73a8bbcfa36"}}
	at := time.Unix(1767225600, 0)
	require.NoError(t, ojs.VerifyWebhook(vector, []byte(body), at.Add(4*time.Minute), "other", secret))
	require.ErrorIs(t, ojs.VerifyWebhook(vector, []byte(body), at.Add(6*time.Minute), secret), ojs.ErrWebhookAge)
	require.ErrorIs(t, ojs.VerifyWebhook(vector, []byte(body), at.Add(-6*time.Minute), secret), ojs.ErrWebhookAge)
	require.ErrorIs(t, ojs.VerifyWebhook(vector, []byte(body+" "), at, secret), ojs.ErrWebhookSignature)
	require.ErrorIs(t, ojs.VerifyWebhook(vector, []byte(body), at, "", "other"), ojs.ErrWebhookSignature)
	require.ErrorIs(t, ojs.VerifyWebhook(http.Header{}, []byte(body), at, secret), ojs.ErrWebhookSignature)
	empty := hmac.New(sha256.New, nil)
	_, _ = fmt.Fprintf(empty, "1767225600.%s", body)
	anybody := http.Header{"X-Ojs-Timestamp": {"1767225600"}, "X-Ojs-Signature": {"sha256=" + hex.EncodeToString(empty.Sum(nil))}}
	require.ErrorIs(t, ojs.VerifyWebhook(anybody, []byte(body), at, ""), ojs.ErrWebhookSignature, "a secret that was not configured lets nobody in")

	sign := func(secret string) string {
		mac := hmac.New(sha256.New, []byte(secret))
		_, _ = fmt.Fprintf(mac, "%d.%s", time.Now().Unix(), body)
		return "sha256=" + hex.EncodeToString(mac.Sum(nil))
	}
	var events []*ojs.Event
	failing := false
	handler := ojs.WebhookHandler("new", func(_ context.Context, e *ojs.Event) error {
		if failing {
			return errors.New("no")
		}
		events = append(events, e)
		return nil
	}, "old")
	call := func(signatures ...string) int {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader([]byte(body)))
		r.Header.Set("X-OJS-Timestamp", fmt.Sprint(time.Now().Unix()))
		r.Header.Set("X-OJS-Signatures", strings.Join(signatures, ","))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	require.Equal(t, 204, call(sign("new"), sign("old")))
	require.Equal(t, 204, call(sign("old")))
	require.Equal(t, 204, call(sign("newer"), sign("new")), "the server has rotated once more")
	require.Equal(t, 401, call(sign("newer")))
	require.Len(t, events, 3)
	require.Equal(t, "webhook.test", events[0].Type)
	failing = true
	require.Equal(t, 500, call(sign("new")))
}
