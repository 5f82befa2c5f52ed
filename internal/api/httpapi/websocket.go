package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
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
		return foreignOrigin(in)
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
	s := &socket{api: a, conn: conn, tenant: a.tenant(in), ctx: ctx, cancel: cancel, pace: a.streams.NewPace(), flow: flow,
		subs: map[string]*socketSubscription{}}
	// The node stops. The deadline comes first: a client that does not read would hold up the stop.
	stop := context.AfterFunc(a.streams.Life(), func() {
		_ = w.conn.SetDeadline(time.Now().Add(api.LastWrites))
		s.write([]byte(`{"type":"event","event":"server.shutdown","data":` + shutdownData + `}`))
		_ = s.conn.Close(websocket.StatusGoingAway, "shutdown") // whether the client answers or not
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
		return spec.InvalidRequest("Upgrade", "websocket", nil,
			"This route speaks WebSocket: send Connection: Upgrade and Upgrade: websocket.")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return spec.InvalidRequest("Sec-WebSocket-Version", "13", r.Header.Get("Sec-WebSocket-Version"),
			"Sec-WebSocket-Version must be 13.")
	case err != nil || len(key) != 16:
		return spec.InvalidRequest("Sec-WebSocket-Key", "16 bytes in base64", nil, "Sec-WebSocket-Key must be 16 bytes in base64.")
	}
	return nil
}

// hasToken reads header values as lists, which may be spread over lines.
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

// run returns when nothing more is read or sent. The order at the end matters: cancel stops the senders, then they are waited
// for, and only then are the subscriptions closed, which only one goroutine may use at a time.
func (s *socket) run() {
	var pings sync.WaitGroup
	pings.Go(s.ping)
	// A bucket of maxSocketRate messages that fills up in a second. A refused message costs a token, too; the connection ends then anyway.
	left, at := float64(maxSocketRate), time.Now()
	for {
		// One message at a time: the next is read when the last was handled, so a client that sends too fast is slowed down
		// by TCP.
		kind, message, err := s.conn.Read(context.Background()) // a context that ends would end the connection without a word
		if err != nil {
			break
		}
		now := time.Now()
		left, at = min(maxSocketRate, left+maxSocketRate*now.Sub(at).Seconds())-1, now
		// Too large messages end the connection inside the library, with 1009.
		code, reason := websocket.StatusCode(0), ""
		switch {
		case left < 0:
			code, reason = websocket.StatusPolicyViolation, "more than 50 messages per second"
		case kind != websocket.MessageText:
			code, reason = websocket.StatusUnsupportedData, "messages are JSON objects in text frames"
		case !utf8.Valid(message):
			code, reason = websocket.StatusInvalidFramePayloadData, "messages are UTF-8"
		}
		if code != 0 {
			_ = s.conn.Close(code, reason) // it is over in any case
			break
		}
		s.handle(message)
	}
	s.cancel()
	// If the node stops, the connection is closed with a code; CloseNow would cut that off.
	if s.api.streams.Life().Err() == nil {
		_ = s.conn.CloseNow() // so is this
	}
	s.sends.Wait()
	pings.Wait()
	for _, sub := range s.subs {
		sub.stop()
	}
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

// write sends a message. A client that does not take it in time loses the connection; run finds out.
// The context is not that of the socket, for the reason given there. Concurrent writers wait for each other within the same
// time.
func (s *socket) write(message []byte) bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.api.config.Realtime.WriteTimeout)
	defer cancel()
	err := s.conn.Write(ctx, websocket.MessageText, message)
	if ctx.Err() != nil {
		s.api.logger.WarnContext(ctx, "client is too slow: WebSocket closed", slog.String("category", "http"))
	}
	return err == nil
}

// socketRequest is what a client may say, in either dialect (docs/reference/events.md, WebSocket).
// Members that are not named here are ignored. Type stands for Action, Filters for Filter, Types for EventTypes.
type socketRequest struct {
	Action         string          `json:"action"`
	Type           string          `json:"type"`
	Channel        string          `json:"channel"`
	Filter         json.RawMessage `json:"filter"`
	Filters        json.RawMessage `json:"filters"`
	EventTypes     []string        `json:"event_types"`
	Types          []string        `json:"types"`
	LastEventID    string          `json:"last_event_id"`
	SubscriptionID string          `json:"subscription_id"`
}

// socketFilter matches all by empty lists.
type socketFilter struct {
	EventTypes []string `json:"event_types"`
	Types      []string `json:"types"`
	Queues     []string `json:"queues"`
	JobTypes   []string `json:"job_types"`
	Sources    []string `json:"sources"`
}

// readExact decodes members of exactly the names of the fields, which are in lower case; encoding/json alone would take Filter for filter.
func readExact(object []byte, into any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil {
		return err
	}
	maps.DeleteFunc(members, func(name string, _ json.RawMessage) bool {
		return strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf || 'A' <= r && r <= 'Z' })
	})
	exact, err := json.Marshal(members)
	if err != nil {
		return err
	}
	return json.Unmarshal(exact, into)
}

// socketError is told to the client; the connection stays open.
// code is one of docs/reference/events.md, Answers.
type socketError struct{ code, message string }

func (e *socketError) Error() string { return e.code + ": " + e.message }

// refuse shows the message as it is, so it must quote nothing that is not the client's.
func refuse(code, format string, args ...any) error {
	return &socketError{code, fmt.Sprintf(format, args...)}
}

// handle runs on the goroutine of run, so no two requests of a connection overlap, and answers come in the order of the requests.
func (s *socket) handle(message []byte) {
	var req socketRequest
	// null would unmarshal without an error.
	if err := readExact(message, &req); err != nil || !bytes.HasPrefix(bytes.TrimSpace(message), []byte{'{'}) {
		s.tell(req, refuse("invalid_request", "A message is a JSON object with action, and its members have the types of the documentation."))
		return
	}
	// The dialects have different names for it.
	if req.Action == "" {
		req.Action = req.Type
	}
	var err error
	switch req.Action {
	case "subscribe":
		err = s.subscribe(req)
	case "unsubscribe":
		err = s.unsubscribe(req)
	case "resume":
		err = s.resume(req)
	case "ping":
		// The time is that of the database as this node knows it.
		s.write([]byte(`{"type":"pong","timestamp":"` + spec.FormatTime(clock.Now()) + `"}`))
	default:
		err = refuse("invalid_request", "action must be subscribe, unsubscribe, resume or ping.")
	}
	if err != nil {
		s.tell(req, err)
	}
}

// tell sends an error in the client's terms.
// Errors that the client has not caused are logged, and shown as backend_error without their text.
func (s *socket) tell(req socketRequest, err error) {
	code, text := "backend_error", "The request could not be served at the moment; send it again."
	var refused *socketError
	var wire *ojs.Error
	switch {
	case errors.As(err, &refused):
		code, text = refused.code, refused.message
	case errors.As(err, &wire):
		code, text = wire.Code, wire.Message
	default:
		s.api.logger.WarnContext(s.ctx, "websocket request failed", slog.Any("error", err))
	}
	// channel and request tell a client which of its requests failed: answers carry no id.
	b := appendText(appendText([]byte(`{"type":"error"`), "code", code), "message", text)
	if req.Channel != "" {
		b = appendText(b, "channel", req.Channel)
	}
	if req.Action != "" {
		b = appendText(b, "request", req.Action)
	}
	s.write(append(b, '}'))
}

// readResumeID is the position of last_event_id; nil if there is none.
// Any well-formed id is a position, whether an event has it or not.
func (r socketRequest) readResumeID() (*eventlog.Position, error) {
	if r.LastEventID == "" {
		return nil, nil
	}
	position, err := eventlog.ParsePosition(r.LastEventID)
	if err != nil {
		return nil, refuse("unknown_event_id", "last_event_id must be an event id, such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90.")
	}
	return &position, nil
}

// readFilter gives the query without types, the types, and the filter as it was sent.
// The types of all four places are joined. They are checked by newChoice, because job.state_changed is no type of the log.
func (r socketRequest) readFilter() (q eventlog.Query, types []string, sent json.RawMessage, err error) {
	sent = r.Filter
	// filter wins over filters if both are sent.
	if sent == nil {
		sent = r.Filters
	}
	var f socketFilter
	if sent != nil {
		if err := readExact(sent, &f); err != nil {
			return q, nil, nil, refuse("invalid_request", "filter is an object of arrays of strings: event_types, queues, job_types, sources.")
		}
	}
	types = append(append(append(append(types, r.EventTypes...), r.Types...), f.EventTypes...), f.Types...)
	q.Queues, q.JobTypes, q.Sources = f.Queues, f.JobTypes, f.Sources
	for _, list := range []struct {
		name   string
		values []string
	}{{"event_types", types}, {"queues", q.Queues}, {"job_types", q.JobTypes}, {"sources", q.Sources}} {
		if len(list.values) > api.MaxFilterValues {
			return q, nil, nil, refuse("invalid_request", "%s may have at most %d values.", list.name, api.MaxFilterValues)
		}
		for _, v := range list.values {
			if !api.Storable(v) {
				return q, nil, nil, refuse("invalid_request", "%s must not contain U+0000.", list.name)
			}
		}
	}
	if _, err := eventlog.ParseSourcePatterns("sources", q.Sources); err != nil {
		return q, nil, nil, refuse("invalid_request", "%s", err)
	}
	return q, types, sent, nil
}

// socketSubscription is one subscription of a WebSocket, and the goroutine that sends its events.
// Its fields are set before follow begins. From then on the sending goroutine uses log, and everybody else only after stop.
type socketSubscription struct {
	// id is kept when a subscription is replaced or resumed.
	id       string
	channel  channel
	query    eventlog.Query
	selected choice
	log      *eventlog.Subscription
	// cancel and done belong to the latest follow.
	cancel context.CancelFunc
	done   chan struct{}
}

// stop returns when nothing more is sent.
// It waits for the goroutine, so that no event of the old filter follows the acknowledgement of a new one. A message that is
// being written is finished before.
func (s *socketSubscription) stop() {
	s.cancel()
	<-s.done
	s.log.Close()
}

// subscribe refuses all that can be refused before the old subscription of the channel is stopped, so a bad request leaves it
// as it was.
func (s *socket) subscribe(req socketRequest) error {
	ch, err := parseChannel(req.Channel)
	if err != nil {
		return err
	}
	query, types, sent, err := req.readFilter()
	if err != nil {
		return err
	}
	// It is that of the handshake and holds for all subscriptions of the connection.
	query.Tenant = s.tenant
	selected, err := newChoice(types, defaultOf(ch))
	if err != nil {
		return refuse("invalid_request", "%s", err)
	}
	from, err := req.readResumeID()
	if err != nil {
		return err
	}
	// The one that the new one replaces. There may be many on events.
	var old *socketSubscription
	for _, sub := range s.subs {
		if sub.channel.name == ch.name && ch.name != "events" {
			old = sub
		}
	}
	// A replacement does not need another place.
	if old == nil && len(s.subs) >= maxSubscriptions {
		return refuse("limit_exceeded", "A connection may have %d subscriptions.", maxSubscriptions)
	}
	if err := s.requireSubject(ch); err != nil {
		return err
	}
	sub := &socketSubscription{channel: ch, query: ch.narrow(query), selected: selected}
	if old != nil { // goes on where the old filter was
		old.stop()
		s.forget(old.id)
		if sub.id = old.id; from == nil {
			// Only after stop: the goroutine moves the position.
			at := old.log.Position()
			from = &at
		}
	} else {
		sub.id = "sub_" + spec.FormatID(job.NewID())
	}
	if from == nil {
		from = s.start
	}
	// With a position begin reads nothing and so cannot fail here after an old subscription was stopped: its patterns were
	// checked above.
	if err := s.begin(sub, from); err != nil {
		return err
	}
	// Before follow, because the client must know the id of the subscription before its first event.
	s.write(sub.acknowledge(req.Channel, sent, types))
	s.follow(sub)
	return nil
}

// defaultOf is what a channel shows if the client names no types (docs/reference/events.md, WebSocket).
func defaultOf(ch channel) choice {
	switch {
	case ch.job != nil:
		return ofJob
	case ch.queue != "":
		return ofQueue
	case ch.name == "all":
		return ofAll
	}
	return wholeCatalogue
}

// requireSubject refuses an unknown job or queue, which would be silent for ever.
func (s *socket) requireSubject(ch channel) error {
	switch {
	// A job of another tenant is as unknown as one that does not exist.
	case ch.job != nil && s.tenant != "":
		own, err := s.api.Tenants.HasJob(s.ctx, s.tenant, *ch.job)
		if err == nil && !own {
			err = spec.NotFound("job", spec.FormatID(*ch.job))
		}
		return err
	case ch.job != nil:
		_, err := s.api.Jobs.Get(s.ctx, *ch.job)
		return err
	case ch.queue != "" && s.tenant == "": // to tenants, whether others use the queue is not shown
		known, err := s.api.Jobs.QueueExists(s.ctx, ch.queue)
		if err == nil && !known {
			err = spec.NotFound("queue", ch.queue)
		}
		return err
	}
	return nil
}

// begin makes the subscription live; follow sends.
// Without a position it waits for what this node has committed, so that the stream begins behind what its client has seen
// answered.
func (s *socket) begin(sub *socketSubscription, from *eventlog.Position) (err error) {
	if from == nil {
		s.api.Events.WaitCaughtUp(s.ctx)
	}
	if sub.log, err = s.api.Feed.Subscribe(s.ctx, sub.selected.query(sub.query), from); err != nil {
		return api.EventError(err)
	}
	sub.log.CountIn(s.flow)
	s.subs[sub.id] = sub
	s.order = append(s.order, sub.id)
	return nil
}

// forget gets a subscription that the caller has stopped.
func (s *socket) forget(id string) {
	delete(s.subs, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
}

// acknowledge shows for the channel the text of the client, which may be another spelling of the name.
func (s *socketSubscription) acknowledge(channel string, filter json.RawMessage, types []string) []byte {
	b := appendText([]byte(`{"action":"subscribed","type":"subscribed"`), "channel", channel)
	b = appendText(b, "subscription_id", s.id)
	if filter != nil {
		var compact bytes.Buffer
		if json.Compact(&compact, filter) == nil {
			b = append(append(b, `,"filter":`...), compact.Bytes()...)
		}
	}
	if len(types) > 0 && s.channel.name != "events" {
		if list, err := json.Marshal(types); err == nil {
			b = append(append(b, `,"event_types":`...), list...)
		}
	}
	return append(b, '}')
}

// unsubscribe ends one subscription, or all of a channel. It is no error if there is none.
// A name that is no channel is compared as it is, and so matches nothing.
func (s *socket) unsubscribe(req socketRequest) error {
	if req.SubscriptionID == "" && req.Channel == "" {
		return refuse("invalid_request", "unsubscribe needs subscription_id or channel.")
	}
	name := req.Channel
	if ch, err := parseChannel(req.Channel); err == nil {
		name = ch.name
	}
	ended := false
	// forget changes order.
	for _, id := range slices.Clone(s.order) {
		sub := s.subs[id]
		if id != req.SubscriptionID && (req.SubscriptionID != "" || sub.channel.name != name) {
			continue
		}
		sub.stop()
		s.forget(id)
		ended = true
		b := appendText([]byte(`{"action":"unsubscribed","type":"unsubscribed"`), "channel", sub.channel.name)
		s.write(append(appendText(b, "subscription_id", id), '}'))
	}
	if !ended {
		b := []byte(`{"action":"unsubscribed","type":"unsubscribed"`)
		if req.Channel != "" {
			b = appendText(b, "channel", req.Channel)
		}
		s.write(append(b, '}'))
	}
	return nil
}

// resume begins all subscriptions anew from a position.
// Subscriptions keep their ids, and their filters. Later subscriptions without a position begin there, too, so a client may
// resume before it subscribes.
func (s *socket) resume(req socketRequest) error {
	from, err := req.readResumeID()
	if err != nil {
		return err
	}
	if from == nil {
		return refuse("unknown_event_id", "resume needs last_event_id.")
	}
	// Before the subscriptions are begun anew, so that it holds even if there are none.
	s.start = from
	for _, id := range slices.Clone(s.order) {
		sub := s.subs[id]
		sub.stop()
		s.forget(id)
		// With a position it reads nothing, so it cannot fail halfway through the list.
		if err := s.begin(sub, from); err != nil {
			return err
		}
		s.follow(sub)
	}
	return nil
}

// follow sends a subscription's events until it is stopped.
// Each subscription has a goroutine, so one that catches up does not hold up the others; the pace is shared by all of the
// connection.
func (s *socket) follow(sub *socketSubscription) {
	var ctx context.Context
	ctx, sub.cancel = context.WithCancel(s.ctx)
	sub.done = make(chan struct{})
	s.sends.Go(func() {
		defer close(sub.done)
		for ctx.Err() == nil && s.send(ctx, sub) {
		}
	})
}

// send waits for events and sends them. It reports whether the connection is of use.
// A read that failed is of no consequence for the connection: the events are read again. A write that failed is final.
func (s *socket) send(ctx context.Context, sub *socketSubscription) bool {
	items, gap, err := s.wait(ctx, sub)
	if err != nil {
		if ctx.Err() == nil {
			s.api.logger.WarnContext(ctx, "websocket cannot read events; trying again", slog.Any("error", err))
			api.Pause(ctx, streamRetry)
		}
		return true
	}
	// The events behind it come with the next call.
	if gap != nil {
		return s.write(sub.system("system.gap", gap.End, gapData(sub.channel.name, gap)))
	}
	// The frames are written one by one, because each is a message.
	sent := 0
	for _, item := range items {
		if sub.selected.state(item.Event) {
			if !s.write(sub.wrapped(item.Event, typeState, frameData(item.Shown(formState, stateFrame), typeState))) {
				return false
			}
			sent++
		}
		if sub.selected.event(item.Event) {
			if !s.write(sub.message(item.Event, frameData(eventFrame(item, false), item.Event.Type))) {
				return false
			}
			sent++
		}
	}
	api.Pause(ctx, s.pace.Spend(sent))
	return true
}

// wait does not look at the result of a failed write of the notice: the next write fails, too.
func (s *socket) wait(ctx context.Context, sub *socketSubscription) ([]*eventlog.Item, *eventlog.Missed, error) {
	if s.api.config.Realtime.DropOldest() {
		d, err := sub.log.Trim(ctx, s.api.config.Realtime.BufferSize)
		if err != nil {
			return nil, nil, err
		}
		if d != nil {
			// For clients of the realtime dialect; system.events_dropped says the same with more detail.
			b := strconv.AppendInt([]byte(`{"type":"warning","code":"events_dropped","count":`), int64(d.Count), 10)
			b = appendText(appendText(b, "channel", sub.channel.name), "oldest_dropped_id", d.Oldest.String())
			s.write(append(appendText(b, "newest_dropped_id", d.Newest.String()), '}'))
			s.write(sub.system("system.events_dropped", d.Newest, droppedData(sub.channel.name, d)))
		}
	}
	return sub.log.Next(ctx, nil, s.api.streams.Batch())
}

// message is the envelope itself on channel events, and wrapped on the others.
// The envelope is shared by all streams, so it is copied before subscription_id is appended in the place of its brace.
func (s *socketSubscription) message(e *eventlog.Event, envelope []byte) []byte {
	if s.channel.name != "events" {
		return s.wrapped(e, e.Type, envelope)
	}
	b := append(make([]byte, 0, len(envelope)+64), envelope[:len(envelope)-1]...)
	return append(appendText(b, "subscription_id", s.id), '}')
}

// wrapped gives envelopes and state frames the same form.
func (s *socketSubscription) wrapped(e *eventlog.Event, name string, data []byte) []byte {
	b := s.event(len(data), name, data)
	b = append(e.Position.Append(append(b, `,"id":"`...)), '"')
	b = append(appendClock(append(b, `,"timestamp":"`...), e.Time), '"')
	return append(appendText(b, "subscription_id", s.id), '}')
}

// system is an event that is not stored.
// The time is that of the position, not of the notice.
func (s *socketSubscription) system(name string, id eventlog.Position, data []byte) []byte {
	b := append(id.Append(append(s.event(len(data), name, data), `,"id":"`...)), '"')
	b = append(appendClock(append(b, `,"timestamp":"`...), id.Time()), '"')
	return append(appendText(b, "subscription_id", s.id), '}')
}

// event appends the beginning of a message, still open. data must be valid JSON.
func (s *socketSubscription) event(size int, name string, data []byte) []byte {
	b := append(make([]byte, 0, size+320), `{"type":"event"`...)
	b = appendText(appendText(b, "channel", s.channel.name), "event", name)
	return append(append(b, `,"data":`...), data...)
}
