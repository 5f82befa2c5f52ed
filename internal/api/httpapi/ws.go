package httpapi

import (
	"bufio"
	"context"
	"encoding/base64"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// 50 messages per second and 50 subscriptions are more than a page of a browser needs, and few enough that one connection
// cannot keep a processor busy. A ping every 30 s is within the idle timeouts that proxies commonly have.
// docs/reference/events.md, WebSocket names all of them.
const (
	subprotocol        = "ojs.v1"
	maxSocketMessage   = 65_536
	maxSocketRate      = 50 // messages per second
	maxSubscriptions   = 50
	socketPingInterval = 30 * time.Second
	socketPongTimeout  = 10 * time.Second
)

// serveSocket is GET /ws (docs/reference/events.md, WebSocket).
// It returns when the connection has ended, so the slot of the stream is held as long. Everything that can be refused is
// refused before the upgrade, as an ordinary answer.
func (a *API) serveSocket(r *request) error {
	in := r.Request()
	// First, because a client that wants something else should be told so.
	if err := checkUpgrade(in); err != nil {
		return err
	}
	if !a.allowedOrigin(in) {
		refused := spec.NewError(ojs.ErrPermissionDenied, "Pages of this origin may not open a WebSocket here.", map[string]any{"origin": in.Header.Get("Origin")})
		refused.Hint = "Open the page from the server's own host, or add its origin to the server's setting OJS_CORS_ORIGINS."
		return refused
	}
	leave, err := a.streams.Admit(a.caller(in).Client())
	if err != nil {
		return err
	}
	defer leave()
	// The wrapper is needed to set a deadline on the connection when the node stops.
	w := &hijacked{ResponseWriter: r.Response()}
	conn, err := websocket.Accept(w, in, &websocket.AcceptOptions{
		Subprotocols: []string{subprotocol}, InsecureSkipVerify: true, // the origin has been checked
	})
	// The library has answered.
	if err != nil {
		return nil
	}
	// A larger message ends the connection with 1009.
	conn.SetReadLimit(maxSocketMessage)
	flow := a.socket.Open()
	defer flow.Close()
	// Not derived from the request, whose context says nothing of a connection that was hijacked.
	ctx, cancel := context.WithCancel(a.streams.Life())
	s := &socket{api: a, conn: conn, tenant: a.tenant(in), ctx: ctx, cancel: cancel, pace: a.streams.NewPace(), flow: flow, subs: map[string]*socketSubscription{}}
	// The deadline comes first: goAway writes, and a client that does not read would hold up the stop.
	stop := context.AfterFunc(a.streams.Life(), func() {
		_ = w.conn.SetDeadline(time.Now().Add(api.LastWrites))
		s.goAway()
	})
	defer stop()
	s.run()
	return nil
}

// checkUpgrade answers as everything else does what is no handshake.
// The library would answer in plain text.
func checkUpgrade(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key")))
	switch {
	case r.Method != http.MethodGet || !hasToken(r.Header["Connection"], "upgrade") || !hasToken(r.Header["Upgrade"], "websocket"):
		return spec.InvalidRequest("Upgrade", "websocket", nil, "This route speaks WebSocket: send Connection: Upgrade and Upgrade: websocket.")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return spec.InvalidRequest("Sec-WebSocket-Version", "13", r.Header.Get("Sec-WebSocket-Version"), "Sec-WebSocket-Version must be 13.")
	case err != nil || len(key) != 16:
		return spec.InvalidRequest("Sec-WebSocket-Key", "16 bytes in base64", nil, "Sec-WebSocket-Key must be 16 bytes in base64.")
	}
	return nil
}

// Header values are lists, and may be spread over lines.
func hasToken(values []string, token string) bool {
	for _, line := range values {
		for item := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}

// allowedOrigin: browsers always send one, and a page of another site must not use what this one is trusted with.
// A request without Origin is not from a browser. CORS does not apply to WebSockets, so this check is the only one.
func (a *API) allowedOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return true
	}
	allowed := a.streams.Config().AllowedOrigins
	return slices.Contains(allowed, "*") || slices.ContainsFunc(allowed, func(o string) bool { return strings.EqualFold(o, origin) })
}

// hijacked keeps the connection that the library takes over, whose own way to close it may take 10 s.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack is what the library calls.
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// socket is one WebSocket. The goroutine of run handles what the client says; each subscription has one that sends.
// Messages may be written by several goroutines at once; the library orders them.
type socket struct {
	api  *API
	conn *websocket.Conn
	// ctx must not be used for reads and writes of the connection: the library drops the connection when such a context ends,
	// before the close frame is sent.
	ctx    context.Context // ends with the connection or the node
	cancel context.CancelFunc
	pace   *api.Pace
	flow   *eventlog.Stream
	tenant string // whose events it shows; "": those of all
	sends  sync.WaitGroup

	// Only run's goroutine touches these.
	subs  map[string]*socketSubscription // by id
	order []string                       // ids, oldest first
	// start is nil until a resume.
	start *eventlog.Position // of subscriptions that name none
}

// It returns when nothing more is read or sent. The order at the end matters: cancel stops the senders, then they are waited
// for, and only then are the subscriptions closed, which only one goroutine may use at a time.
func (s *socket) run() {
	var pings sync.WaitGroup
	pings.Go(s.ping)
	rate := rateLimit{left: maxSocketRate, at: time.Now()}
	for {
		// One message at a time: the next is read when the last was handled, so a client that sends too fast is slowed down
		// by TCP.
		kind, message, err := s.conn.Read(context.Background()) // a context that ends would end the connection without a word
		if err != nil {
			break
		}
		if code, reason := closeReason(kind, message, &rate); code != 0 {
			_ = s.conn.Close(code, reason) // it is over in any case
			break
		}
		s.handle(message)
	}
	s.cancel()
	// If the node stops, goAway closes the connection with a code; CloseNow would cut that off.
	if s.api.streams.Life().Err() == nil {
		_ = s.conn.CloseNow() // so is this
	}
	s.sends.Wait()
	pings.Wait()
	for _, sub := range s.subs {
		sub.stop()
	}
}

// closeReason says with which code a message ends the connection, 0 if it does not.
// Too large messages end the connection inside the library, with 1009.
func closeReason(kind websocket.MessageType, message []byte, rate *rateLimit) (websocket.StatusCode, string) {
	switch {
	case !rate.take():
		return websocket.StatusPolicyViolation, "more than 50 messages per second"
	case kind != websocket.MessageText:
		return websocket.StatusUnsupportedData, "messages are JSON objects in text frames"
	case !utf8.Valid(message):
		return websocket.StatusInvalidFramePayloadData, "messages are UTF-8"
	}
	return 0, ""
}

// rateLimit is a bucket of maxSocketRate messages that fills up in a second.
// Only the goroutine of run uses it.
type rateLimit struct {
	left float64
	at   time.Time
}

// A refused message costs a token, too; the connection ends then anyway.
func (l *rateLimit) take() bool {
	now := time.Now()
	l.left = min(maxSocketRate, l.left+maxSocketRate*now.Sub(l.at).Seconds())
	l.at = now
	l.left--
	return l.left >= 0
}

// ping finds clients that are gone without having said so.
// It needs run to be reading, because the library handles a pong while it reads.
func (s *socket) ping() {
	ticker := time.NewTicker(socketPingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(s.ctx, socketPongTimeout)
		// It waits for the pong.
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil && s.ctx.Err() == nil {
			_ = s.conn.Close(websocket.StatusGoingAway, "no pong within 10 s") // nobody may be there
			return
		}
	}
}

// goAway tells the client that the node stops.
// It runs on the goroutine of the stop, at most once.
func (s *socket) goAway() {
	s.write([]byte(`{"type":"event","event":"server.shutdown","data":` + shutdownData + `}`))
	_ = s.conn.Close(websocket.StatusGoingAway, "shutdown") // whether it answers or not
}

// write sends a message. A client that does not take it in time loses the connection; run finds out.
// The context is not that of the socket, for the reason given there. Concurrent writers wait for each other within the same
// time.
func (s *socket) write(message []byte) bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.api.streams.Config().WriteTimeout)
	defer cancel()
	err := s.conn.Write(ctx, websocket.MessageText, message)
	if ctx.Err() != nil {
		s.api.logger.WarnContext(ctx, "client is too slow: WebSocket closed", slog.String("category", "http"))
	}
	return err == nil
}
