package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/webhook"
)

const crashSecret = "whsec_the-secret-of-the-crash-test"

// receiver is the endpoint of a subscription. It counts what it has accepted, and now and then fails, or accepts too slowly
// for a sender that is about to be killed.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	accepted map[string]int    // by delivery id
	events   map[string]string // delivery ids by event id
	bodies   map[string]string // by delivery id
	broken   []string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{accepted: map[string]int{}, events: map[string]string{}, bodies: map[string]string{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// crashWebhooks has nodes deliver to the loopback, and try often.
var crashWebhooks = []string{
	"OJS_WEBHOOKS_ALLOW_HTTP=true", "OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8",
	"OJS_WEBHOOKS_RETRY_SCHEDULE=50ms,100ms,200ms,400ms,800ms,1s,1s,1s,1s,1s,1s,1s",
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was killed
	}
	if rand.IntN(10) == 0 { // so that a kill finds requests on their way
		time.Sleep(time.Second)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var event struct{ ID string }
	_ = json.Unmarshal(body, &event)
	id := req.Header.Get("X-OJS-Delivery-ID")
	timestamp, _ := strconv.ParseInt(req.Header.Get("X-OJS-Timestamp"), 10, 64)
	switch {
	case req.Header.Get("X-OJS-Signature") != webhook.Sign(crashSecret, timestamp, string(body)):
		r.broken = append(r.broken, "signature of "+id)
	case r.events[event.ID] != "" && r.events[event.ID] != id:
		r.broken = append(r.broken, "two deliveries of "+event.ID)
	case r.bodies[id] != "" && r.bodies[id] != string(body):
		r.broken = append(r.broken, "another body of "+id)
	}
	r.events[event.ID], r.bodies[id] = id, string(body)
	if rand.IntN(20) == 0 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	r.accepted[id]++
}

// subscribe registers the receiver for the events that end jobs.
func (c *crashTest) subscribe(r *receiver) {
	status, answer := c.post(c.t.Context(), 0, "/ojs/v1/webhooks", map[string]any{
		"url": r.URL, "events": []string{"job.completed"}, "secret": crashSecret, "timeout_ms": 5000, "max_in_flight": 100,
	})
	require.Equal(c.t, http.StatusCreated, status, answer)
}

// verifyWebhooks: every event has one delivery, each was accepted at least once, and no two share an event.
func (c *crashTest) verifyWebhooks(url string, r *receiver) {
	t := c.t
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	require.Eventually(t, func() bool { // a lease that was lost takes 35 s
		var waiting int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM ojs.webhook_deliveries WHERE status <> 'delivered'`).Scan(&waiting))
		return waiting == 0
	}, time.Minute, 100*time.Millisecond, "deliveries were not made")

	var events, deliveries, distinct, stray int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ojs.events WHERE type = 'job.completed'),
		count(*), count(DISTINCT (event_seq, event_sub)), count(*) FILTER (WHERE NOT EXISTS (
			SELECT FROM ojs.events e WHERE e.seq = d.event_seq AND e.sub = d.event_sub AND e.type = 'job.completed'))
		FROM ojs.webhook_deliveries d`).Scan(&events, &deliveries, &distinct, &stray))
	require.Equal(t, events, deliveries)
	require.Equal(t, events, distinct)
	require.Zero(t, stray)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.broken)
	require.Len(t, r.accepted, deliveries, "what is recorded as delivered was accepted")
	twice := 0
	for _, n := range r.accepted {
		twice += min(n-1, 1)
	}
	var lost, attempts int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT COALESCE(sum(claims - attempt_count), 0), COALESCE(sum(attempt_count), 0) FROM ojs.webhook_deliveries`).Scan(&lost, &attempts))
	require.Positive(t, lost, "no lease was lost, so nothing was tested")
	t.Logf("%d deliveries, %d attempts, %d lost leases, %d accepted twice", deliveries, attempts, lost, twice)
}
