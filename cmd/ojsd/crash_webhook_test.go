package main

import (
	"context"
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

// receiver is the endpoint of a subscription. It counts what it has accepted, now and then fails, and holds requests back
// while its gate is closed.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	accepted map[string]int    // by delivery id
	events   map[string]string // delivery ids by event id
	bodies   map[string]string // by delivery id
	broken   []string

	gate         chan struct{} // requests wait until it is closed; nil: they do not wait
	blocked, cut int
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
	if !r.pass(req.Context()) {
		return // the sender was killed
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

// pass holds a request back while the gate is closed. It returns false if the sender has gone meanwhile.
func (r *receiver) pass(ctx context.Context) bool {
	r.mu.Lock()
	gate := r.gate
	if gate != nil {
		r.blocked++
	}
	r.mu.Unlock()
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cut++
		return false
	}
}

// closeGate has all requests from now on wait until openGate.
func (r *receiver) closeGate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate, r.blocked, r.cut = make(chan struct{}), 0, 0
}

func (r *receiver) openGate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.gate)
	r.gate = nil
}

// waiting is how many requests were blocked since closeGate, and how many of them have lost their sender.
func (r *receiver) waiting() (blocked, cut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blocked, r.cut
}

// killWhileDelivering kills the first node while a delivery of it waits for its answer, so that its lease is lost. Which
// node makes a delivery shows only when its connection ends with the process, so it is tried until one of them was hit.
func (c *crashTest) killWhileDelivering(r *receiver) {
	for range 20 {
		r.closeGate()
		require.Eventually(c.t, func() bool { blocked, _ := r.waiting(); return blocked >= 10 }, time.Minute, time.Millisecond, "no deliveries")
		c.nodes[0].kill()
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, cut := r.waiting(); cut > 0 {
				r.openGate()
				return
			}
		}
		r.openGate()
		c.nodes[0].start()
	}
	require.Fail(c.t, "the first node makes no deliveries")
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
		var waiting int // also for the fan-out, which follows the publication
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ojs.events WHERE type = 'job.completed') - count(*) FILTER (WHERE status = 'delivered')
			+ count(*) FILTER (WHERE status <> 'delivered') FROM ojs.webhook_deliveries`).Scan(&waiting))
		return waiting <= 0
	}, 3*time.Minute, 100*time.Millisecond, "deliveries were not made")

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
