package e2e_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

func TestWebSocket(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Handshake", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/ojs/v1/ws", "/ojs/v1/events/ws"} {
			s, res, err := a.dial(path, "X-Request-Id: r1")
			require.NoError(t, err)
			require.Equal(t, "ojs.v1", s.conn.Subprotocol())
			require.Equal(t, "r1", res.Header.Get("X-Request-Id"))
			a.get(path).fails(400, "invalid_request", "invalid_request")
			a.get(path, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 8").fails(400, "invalid_request", "invalid_request")
		}
		conn, _, err := websocket.Dial(t.Context(), a.url+"/ojs/v1/ws", nil)
		require.NoError(t, err)
		require.Empty(t, conn.Subprotocol())
		require.NoError(t, conn.Close(websocket.StatusNormalClosure, ""))
	})

	t.Run("EventsDialect", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		s := a.socket()
		// Members that are not known are ignored, also if their names differ in case only.
		s.send(`{"action":"subscribe","channel":"events","filter":{"event_types":["job.*"], "queues":["%s"]},"Action":"ping","CHANNEL":5,"Filter":{"queues":["x"]}}`, q)
		ack := s.receive()
		require.Equal(t, fmt.Sprintf(`{"event_types":["job.*"],"queues":["%s"]}`, q), ack.at("filter"))
		require.Equal(t, []string{"subscribed", "subscribed", "events"}, []string{ack.at("action"), ack.at("type"), ack.at("channel")})
		sub := ack.at("subscription_id")
		require.Regexp(t, `^sub_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}$`, sub)
		s.send(`{"type":"subscribe","channel":"events","filters":{"types":["job.enqueued"],"queues":["%s"],"Queues":["x"],"queueſ":5}}`, q)
		second := s.receive().at("subscription_id")
		require.NotEqual(t, sub, second)

		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		got := map[string]reply{}
		for range 2 {
			r := s.receive()
			got[r.at("subscription_id")] = r
		}
		require.Len(t, got, 2)
		for _, r := range got {
			require.Equal(t, []string{"1.0", "job.enqueued", id, q, "available"}, []string{r.at("specversion"), r.at("type"), r.at("subject"), r.at("queue"), r.at("to")})
		}
		s.send(`{"action":"unsubscribe","subscription_id":"%s"}`, second)
		r := s.receive()
		require.Equal(t, []string{"unsubscribed", "events", second}, []string{r.at("action"), r.at("channel"), r.at("subscription_id")})
		a.fetch(q)
		require.Equal(t, "job.started", s.receive().at("event"))
		s.send(`{"action":"unsubscribe","channel":"events"}`)
		require.Equal(t, sub, s.receive().at("subscription_id"))
		s.send(`{"action":"unsubscribe","channel":"events"}`)
		r = s.receive()
		require.Equal(t, "unsubscribed", r.at("type"))
		require.False(t, r.has("subscription_id"))
		s.send(`{"action":"ping"}`)
		r = s.receive()
		require.Equal(t, "pong", r.at("type"))
		require.Regexp(t, serverTime, r.at("timestamp"))
	})

	t.Run("RealtimeDialect", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.settled(id)
		s := a.socket()
		s.send(`{"action":"subscribe","channel":"job:%s"}`, id)
		sub := s.receive().at("subscription_id")
		a.fetch(q, `"worker_id":"w"`)
		r := s.receive()
		require.Equal(t, []string{"event", "job:" + id, "job.state_changed", sub}, []string{r.at("type"), r.at("channel"), r.at("event"), r.at("subscription_id")}, r.body)
		require.Equal(t, []string{id, "t", "available", "active"}, []string{r.at("data.job_id"), r.at("data.type"), r.at("data.from"), r.at("data.to")})
		require.Regexp(t, `^evt_`, r.at("id"))
		require.Regexp(t, serverTime, r.at("timestamp"))
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","active_jobs":["`+id+`"]}`).is(200)
		r = s.receive()
		require.Equal(t, []string{"job.heartbeat", id}, []string{r.at("event"), r.at("data.subject")})

		// Repeating a channel replaces the filter and loses nothing.
		s.send(`{"action":"subscribe","channel":"job:%s","event_types":["job.completed"]}`, id)
		r = s.receive()
		require.Equal(t, []string{sub, `["job.completed"]`}, []string{r.at("subscription_id"), r.at("event_types")})
		a.ack(id).is(200)
		r = s.receive()
		require.Equal(t, []string{"job.completed", "completed"}, []string{r.at("event"), r.at("data.to")})

		other := a.socket()
		other.send(`{"action":"subscribe","channel":"queue:%s"}`, q)
		other.receive()
		all := a.socket()
		all.send(`{"action":"subscribe","channel":"all","filter":{"queues":["%s"]}}`, q)
		all.receive()
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, []string{"job.state_changed", "job.state_changed"}, []string{other.receive().at("event"), all.receive().at("event")})
	})

	t.Run("Resume", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		s := a.socket()
		s.send(`{"action":"subscribe","channel":"events","filter":{"queues":["%s"]}}`, q)
		s.receive()
		var ids []string
		for range 4 {
			a.push(`"type":"t","args":[],"queue":"%s"`, q)
			ids = append(ids, s.receive().at("id"))
		}
		s.send(`{"action":"resume","last_event_id":"%s"}`, ids[1])
		require.Equal(t, ids[2:], []string{s.receive().at("id"), s.receive().at("id")})
		s.send(`{"action":"subscribe","channel":"queue:%s"}`, q) // the default start of later ones
		s.receive()
		require.Equal(t, ids[2:], []string{s.receive().at("id"), s.receive().at("id")})
		again := a.socket()
		again.send(`{"action":"subscribe","channel":"events","filter":{"queues":["%s"]},"last_event_id":"%s"}`, q, ids[2])
		again.receive()
		require.Equal(t, ids[3], again.receive().at("id"))
		again.fails("unknown_event_id", `{"action":"resume","last_event_id":"x"}`)
		again.fails("unknown_event_id", `{"action":"subscribe","channel":"all","last_event_id":"x"}`)
	})

	t.Run("ErrorsKeepTheConnectionOpen", func(t *testing.T) {
		t.Parallel()
		s := a.in(t).socket()
		for _, message := range []string{`x`, `[]`, `null`, `{}`, `{"action":"dance"}`, `{"action":1}`, `{"action":"subscribe"}`, `{"action":"subscribe","channel":"x"}`,
			`{"action":"subscribe","channel":"events","filter":[]}`, `{"action":"subscribe","channel":"events","filter":{"event_types":["A"]}}`,
			`{"action":"subscribe","channel":"events","filter":{"sources":["*a"]}}`, `{"action":"subscribe","channel":"events","filter":{"queues":["\u0000"]}}`,
			`{"action":"subscribe","channel":"events","filter":{"queues":[` + strings.Repeat(`"a",`, 50) + `"a"]}}`, `{"action":"unsubscribe"}`} {
			s.fails("invalid_request", "%s", message)
		}
		for _, names := range [][]string{{"event_types", "queues", "job_types", "sources"}, {"queues", "job_types", "sources"}, {"job_types", "sources"}} {
			filter := `"` + strings.Join(names, `":["\u0000"],"`) + `":["\u0000"]`
			require.Contains(t, s.fails("invalid_request", `{"action":"subscribe","channel":"events","filter":{%s}}`, filter).at("message"), names[0])
		}
		r := s.fails("not_found", `{"action":"subscribe","channel":"job:%s"}`, newID())
		require.Regexp(t, "^job:", r.at("channel"))
		require.Equal(t, "subscribe", r.at("request"))
		s.fails("not_found", `{"action":"subscribe","channel":"queue:%s"}`, queue())
	})

	t.Run("SubscriptionsAreLimited", func(t *testing.T) {
		t.Parallel()
		s := a.in(t).socket()
		for i := range 50 {
			s.send(`{"action":"subscribe","channel":"events","filter":{"queues":["none"]}}`)
			require.Equal(t, "subscribed", s.receive().at("action"))
			if i%25 == 0 {
				time.Sleep(600 * time.Millisecond) // a socket takes 50 messages a second, and a longer pause does no harm
			}
		}
		s.fails("limit_exceeded", `{"action":"subscribe","channel":"events"}`)
	})

	t.Run("CloseCodes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		s := a.socket()
		require.NoError(t, s.conn.Write(t.Context(), websocket.MessageBinary, []byte("{}")))
		s.closed(websocket.StatusUnsupportedData)

		s = a.socket()
		s.fails("invalid_request", "%s", `{"action":"`+repeated('x', 65_536-13)+`"}`)
		s.send("%s", repeated('x', 65_537))
		s.closed(websocket.StatusMessageTooBig)

		s = a.socket()
		require.NoError(t, s.conn.Write(t.Context(), websocket.MessageText, []byte{'"', 0xff, '"'}))
		s.closed(websocket.StatusInvalidFramePayloadData)

		s = a.socket()
		go func() {
			for range 200 { // 50 a second are allowed
				_ = s.conn.Write(t.Context(), websocket.MessageText, []byte(`{"action":"ping"}`))
			}
		}()
		s.closed(websocket.StatusPolicyViolation)
	})
}

func TestWebSocketAccess(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) {
		c.Server.APIKeys, c.Realtime.AllowQueryToken, c.Realtime.MaxConnectionsPerClient = []string{"k"}, true, 3
		c.Server.CORSOrigins = []string{"https://admin.example"}
	})
	status := func(path string, headers ...string) int {
		_, res, err := a.dial(path, headers...)
		if err == nil {
			return 101
		}
		require.NotNil(t, res, "%v", err)
		return res.StatusCode
	}
	require.Equal(t, 401, status("/ojs/v1/ws"))
	require.Equal(t, 401, status("/ojs/v1/ws?access_token=x"))
	require.Equal(t, 403, status("/ojs/v1/ws", "Authorization: Bearer k", "Origin: https://evil.example"))
	require.Equal(t, 403, status("/ojs/v1/ws", "Authorization: Bearer k", "Origin: null"))
	require.Equal(t, 101, status("/ojs/v1/ws?access_token=k"))
	require.Equal(t, 101, status("/ojs/v1/ws", "Authorization: Bearer k", "Origin: https://admin.example"))
	require.Equal(t, 101, status("/ojs/v1/ws", "Authorization: Bearer k", "Origin: "+a.url))
	require.Equal(t, 429, status("/ojs/v1/ws", "Authorization: Bearer k"))
}

func TestWebSocketGapAndShutdown(t *testing.T) {
	t.Parallel()
	a := setup(t, patientStop)
	for range 2 {
		a.push(`"type":"t","args":[]`)
	}
	eventually(t, func() bool { return a.get("/ojs/v1/events").count("events") == 2 })
	old := a.get("/ojs/v1/events").at("events.0.id")
	a.post("/ojs/v1/admin/reset", "").is(200)
	kept := a.push(`"type":"t","args":[]`)
	s := a.socket()
	s.send(`{"action":"subscribe","channel":"all","event_types":["job.enqueued"],"last_event_id":"%s"}`, old)
	s.receive()
	r := s.receive()
	require.Equal(t, []string{"event", "system.gap", old, "all"}, []string{r.at("type"), r.at("event"), r.at("data.gap_start"), r.at("data.channel")})
	require.Equal(t, kept, s.receive().at("data.subject"))

	stopped := make(chan error, 1)
	go func() { stopped <- a.app.Stop() }()
	r = s.receive()
	require.Equal(t, []string{"event", "server.shutdown", "5000"}, []string{r.at("type"), r.at("event"), r.at("data.grace_period_ms")})
	s.closed(websocket.StatusGoingAway)
	require.NoError(t, <-stopped)
}

// TestWebSocketDrops shows what a client gets that reads late, on a node that drops events.
func TestWebSocketDrops(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) {
		c.Realtime.RateLimitPerSecond, c.Realtime.Overflow, c.Realtime.BufferSize = 0, "drop", 500
	})
	s := a.socket()
	s.send(`{"action":"subscribe","channel":"all","event_types":["job.enqueued"]}`)
	s.receive()
	a.fillUp(t)
	last := a.push(`"type":"last","args":[]`)
	shown, dropped, warned := 0, 0, 0
	for {
		r := s.receive()
		switch {
		case r.at("type") == "warning":
			require.Equal(t, []string{"events_dropped", "all"}, []string{r.at("code"), r.at("channel")})
			require.Regexp(t, "^evt_", r.at("oldest_dropped_id"))
			n, err := strconv.Atoi(r.at("count"))
			require.NoError(t, err)
			warned += n
		case r.at("event") == "system.events_dropped":
			require.Equal(t, r.at("id"), r.at("data.newest_dropped_id"))
			n, err := strconv.Atoi(r.at("data.dropped_count"))
			require.NoError(t, err)
			dropped += n
		default:
			shown++
		}
		if r.at("data.subject") == last {
			break
		}
	}
	require.Positive(t, dropped)
	require.Equal(t, warned, dropped)
	require.Equal(t, 12_001, shown+dropped)
}

// TestWebSocketCatchesUp: a client that reads late loses nothing.
func TestWebSocketCatchesUp(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Realtime.RateLimitPerSecond = 0 })
	s := a.socket()
	s.send(`{"action":"subscribe","channel":"events"}`)
	s.receive()
	a.fillUp(t)
	seen := map[string]bool{}
	for range 12_000 {
		r := s.receive()
		require.Equal(t, "job.enqueued", r.at("type"))
		seen[r.at("id")] = true
	}
	require.Len(t, seen, 12_000)
}

// TestWebSocketResume: a client that resumes, on whichever node, sees each event once.
func TestWebSocketResume(t *testing.T) {
	t.Parallel()
	one, two := nodes(t)
	nodes := []*node{one, two}
	const n = 200
	var pushing sync.WaitGroup
	pushing.Go(func() {
		for range n {
			nodes[1].push(`"type":"t","args":[],"queue":"q"`)
		}
	})
	seen := map[string]bool{}
	last := "evt_00000000-0000-7000-8000-000000000000"
	for i := 0; len(seen) < n; i++ {
		s := nodes[i%2].socket()
		s.send(`{"action":"subscribe","channel":"all","event_types":["job.enqueued"],"last_event_id":"%s"}`, last)
		require.Equal(t, "subscribed", s.receive().at("type"))
		if i == 2 {
			go func(a *node) { _ = a.app.Stop() }(nodes[0])
		}
		for k := 0; len(seen) < n && (k < 30 || i == 2); k++ {
			r := s.receive()
			if r.at("event") != "job.enqueued" {
				break
			}
			last = r.at("id")
			require.False(t, seen[r.at("data.subject")])
			seen[r.at("data.subject")] = true
		}
		_ = s.conn.CloseNow()
		if i == 2 {
			require.NoError(t, nodes[0].app.Stop())
			nodes[0] = two.another()
		}
	}
	pushing.Wait()
}
