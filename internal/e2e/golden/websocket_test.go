package golden_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// socketMessages are sent on a WebSocket one after the other, each on a new connection; the members of the last group are made by rule.
var (
	socketMessages = []string{
		`{"action":"subscribe","channel":"events"}`, `{"action":"subscribe","channel":"all"}`, `{"action":"subscribe","channel":"job:$completed"}`, `{"action":"subscribe","channel":"queue:golden"}`,
		`{"action":"subscribe","channel":"job:` + unknownID + `"}`, `{"action":"subscribe","channel":"job:x"}`, `{"action":"subscribe","channel":"queue:no such thing ~"}`, `{"action":"subscribe","channel":"nowhere"}`,
		`{"action":"unsubscribe","channel":"events"}`, `{"action":"unsubscribe","subscription_id":"sub_unknown"}`, `{"action":"ping"}`, `{"type":"ping"}`, `{"action":"nonsense"}`, `{}`, `[]`, `null`, `"x"`, `nonsense`, ``, "{\"action\":\"\x00\"}",
		`{"action":"subscribe","channel":"events","unknown_member":1}`, `{"action":"subscribe","action":7,"channel":"events"}`,
	}
	socketMembers = []member{
		need(str("action", "subscribe", 0)), need(str("channel", "events", 0)), obj("filter", `{"queues":["golden"]}`), arr("event_types", `["job.completed"]`), str("last_event_id", oldEvent, 0), arr("filter.event_types", `["job.completed"]`),
		arr("filter.queues", `["golden"]`), arr("filter.job_types", `["golden"]`), arr("filter.sources", `["ojs://*"]`),
	}
)

// TestWebSocket records what the server answers to messages. The route itself, without an upgrade, is in TestHTTP.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := route{body: socketMembers}
	messages := append([]string{}, socketMessages...)
	for _, c := range r.bodies() {
		if !strings.HasPrefix(c.name, "body") && !strings.HasPrefix(c.name, "order") {
			messages = append(messages, c.body)
		}
	}
	g := newGolden("GET /ojs/v1/ws, the first answer to one message")
	seen := map[string]bool{}
	for _, text := range messages {
		if seen[text] {
			continue
		}
		seen[text] = true
		m := s.newMaker("")
		sent := m.fill(text)
		s.settle()
		n := newNormalizer(m)
		name := shorten(printable(written(text, m)))
		g.add(name, name, pretty(n.text(s.say(sent))))
	}
	g.compare(t, "websocket")
}

// say sends a message and returns the first answer, or how the server closed the connection. Messages of a moment without an answer are
// none.
func (s *server) say(text string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(s.url, "http", "ws", 1)+"/ojs/v1/ws", nil)
	require.NoError(s.t, err)
	defer func() { _ = conn.CloseNow() }()
	require.NoError(s.t, conn.Write(ctx, websocket.MessageText, []byte(text)))
	// An answer to this stands behind the one that is recorded, or is the first if there is none.
	_ = conn.Write(ctx, websocket.MessageText, []byte(`{"action":"unsubscribe","channel":"golden-end"}`))
	read, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	_, got, err := conn.Read(read)
	if err != nil {
		return "closed: " + websocket.CloseStatus(err).String()
	}
	return string(got)
}
