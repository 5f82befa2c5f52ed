package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

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

// Everything that can be refused is refused before the old subscription of the channel is stopped, so a bad request leaves it
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
	old := s.on(ch)
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

// on is the subscription that a new one on the channel replaces. There may be many on events.
// It is nil if there is none.
func (s *socket) on(ch channel) *socketSubscription {
	for _, sub := range s.subs {
		if sub.channel.name == ch.name && ch.name != "events" {
			return sub
		}
	}
	return nil
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

// The caller has stopped it.
func (s *socket) forget(id string) {
	delete(s.subs, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
}

// channel is the text of the client, which may be another spelling of the name.
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
			if !s.write(sub.message(item.Event, frameData(s.api.eventFrame(item, false), item.Event.Type))) {
				return false
			}
			sent++
		}
	}
	api.Pause(ctx, s.pace.Spend(sent))
	return true
}

// The result of a failed write of the notice is not looked at: the next write fails, too.
func (s *socket) wait(ctx context.Context, sub *socketSubscription) ([]*eventlog.Item, *eventlog.Gap, error) {
	if s.api.streams.Config().DropOldest {
		d, err := sub.log.Trim(ctx, s.api.streams.Config().BufferSize)
		if err != nil {
			return nil, nil, err
		}
		if d != nil {
			s.write(sub.warning(d))
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

// envelope and state frames have the same form here.
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

// It is for clients of the realtime dialect; system.events_dropped says the same with more detail.
func (s *socketSubscription) warning(d *eventlog.Dropped) []byte {
	b := strconv.AppendInt([]byte(`{"type":"warning","code":"events_dropped","count":`), int64(d.Count), 10)
	b = appendText(appendText(b, "channel", s.channel.name), "oldest_dropped_id", d.Oldest.String())
	return append(appendText(b, "newest_dropped_id", d.Newest.String()), '}')
}
