package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
)

// A client of writeBytes in 10 s reads 6.4 KiB/s; a slower one loses its stream and can resume.
const (
	mediaStream = "text/event-stream"
	writeBytes  = 64 << 10 // a client that reads slowly must take so much in WriteTimeout
)

// sse is one connection that gets frames.
// One goroutine uses it, that of the request. Only undo runs elsewhere, when the node stops, and touches nothing but the
// deadline.
type sse struct {
	api *API
	// w counts and commits for echo; rc reaches the connection below it.
	w    http.ResponseWriter
	rc   *http.ResponseController
	ctx  context.Context // ends with the client or the node
	pace *api.Pace
	flow *eventlog.Stream

	// undo is nil until open has been called.
	undo func() bool // takes back what happens when the node stops
	idle *time.Timer // what Next waits for at most
	// written is when the last frame or comment was sent, from which the keep-alive counts.
	written time.Time
}

// stream answers with a stream of frames, which run writes until it returns.
// run must open the stream before it sends anything; an error that it returns before is answered as an ordinary one. A slot
// is taken before the subscription and given back when the stream has ended, so the number of subscriptions is bounded by
// that of streams.
func (a *API) stream(c echo.Context, run func(s *sse) error) error {
	r := c.Request()
	// A key has its own limit; without keys the address has one.
	leave, err := a.streams.Admit(a.caller(r).Client())
	if err != nil {
		return err
	}
	defer leave()
	flow := a.sse.Open()
	defer flow.Close()
	// It ends with the request or with the node, whichever is first.
	ctx, cancel := a.streams.Context(r.Context())
	defer cancel()
	w := c.Response().Writer
	s := &sse{
		api: a, w: c.Response(), rc: http.NewResponseController(w), ctx: ctx, pace: a.streams.NewPace(), flow: flow, idle: time.NewTimer(a.streams.Config().KeepAlive),
	}
	err = run(s)
	s.idle.Stop()
	if !c.Response().Committed {
		if a.streams.Life().Err() != nil {
			return spec.Unavailable() // it was cut short by the node, not by what it asked
		}
		return err
	}
	// Nothing is returned: the end of a stream is no error of the request.
	s.finish(r, err)
	return nil
}

// finish says goodbye if it is the node that stops, and leaves the connection as the next request expects it.
// It must run on every stream that was opened, or a connection that serves another request keeps the write deadline of the
// stream.
func (s *sse) finish(r *http.Request, err error) {
	// While the node stops, the deadline is that of the stop and says nothing about the client.
	if errors.Is(err, os.ErrDeadlineExceeded) && s.api.streams.Life().Err() == nil {
		s.api.logger.WarnContext(r.Context(), "client is too slow: stream closed", slog.String("category", "http"), slog.Group("request", "id", s.w.Header().Get("X-Request-Id"), "remote", r.RemoteAddr))
	}
	if s.undo == nil { // it was not opened
		return
	}
	// Not undo's answer tells whether the node stops: this stream may have heard of it before undo's turn came.
	undone := s.undo()
	switch {
	// If the client has left as well, there is nobody to tell.
	case s.api.streams.Life().Err() != nil && r.Context().Err() == nil:
		_ = s.send(systemFrame("server.shutdown", nil, []byte(shutdownData))) // the connection is gone anyway
	// The connection serves another request next.
	case undone:
		_ = s.rc.SetWriteDeadline(time.Time{})
	}
}

// open sends the headers at once: subscribers act right after opening. What an answer has besides is ordinary HTTP. It
// reports false if the request wants only them.
// It must come after the subscription: what happens after the client has seen the headers must be part of the stream.
func (s *sse) open(c echo.Context) (bool, error) {
	h := c.Response().Header()
	h["Content-Type"] = []string{mediaStream}
	h["Cache-Control"] = []string{"no-cache, no-transform"}
	// nginx would keep the frames back.
	h["X-Accel-Buffering"] = []string{"no"}
	c.Response().WriteHeader(http.StatusOK)
	if c.Request().Method == http.MethodHead {
		return false, nil
	}
	_ = s.rc.SetReadDeadline(time.Time{}) // the server's would end the stream; there is one on every real connection
	// A write that blocks when the node stops must end soon, or it holds up the stop until the timeout of the write.
	s.undo = context.AfterFunc(s.api.streams.Life(), func() { _ = s.rc.SetWriteDeadline(time.Now().Add(api.LastWrites)) })
	return true, s.send([]byte("retry: 3000\n\n"))
}

// send writes and flushes.
// After an error the stream must end: part of a frame may have been written.
func (s *sse) send(frames []byte) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.api.streams.Config().WriteTimeout))
	// If the node has stopped already, the deadline above has replaced the shorter one that undo's function had set.
	if s.api.streams.Life().Err() != nil {
		_ = s.rc.SetWriteDeadline(time.Now().Add(api.LastWrites))
	}
	if _, err := s.w.Write(frames); err != nil {
		return err
	}
	s.written = time.Now()
	return s.rc.Flush()
}

// next waits for events and keeps the connection alive meanwhile. It ends with an error only if the stream has to.
// Errors of reading are not errors of the stream: it rests and goes on, so clients see a pause and no gap while the database
// is away.
func (s *sse) next(sub *eventlog.Subscription) ([]*eventlog.Item, *eventlog.Gap, error) {
	for {
		s.idle.Reset(time.Until(s.written.Add(s.api.streams.Config().KeepAlive)))
		// It returns when events match, when idle fires, or with an error.
		items, gap, err := sub.Next(s.ctx, s.idle.C, s.api.streams.Batch())
		switch {
		case s.ctx.Err() != nil:
			return nil, nil, s.ctx.Err()
		case err != nil:
			if err := s.failed(err); err != nil {
				return nil, nil, err
			}
		case len(items) > 0 || gap != nil:
			return items, gap, nil
		}
		if err := s.keepAlive(); err != nil {
			return nil, nil, err
		}
	}
}

// The comment also finds a client that is gone, which only a write shows.
func (s *sse) keepAlive() error {
	if time.Since(s.written) < s.api.streams.Config().KeepAlive {
		return nil
	}
	return s.send([]byte(":heartbeat\n\n"))
}

// failed rests after the database could not be read: all clients coming back at once would help nobody.
// It returns an error only if the stream has to end.
func (s *sse) failed(err error) error {
	s.api.logger.WarnContext(s.ctx, "stream cannot read events; trying again", slog.Any("error", err))
	api.Pause(s.ctx, streamRetry)
	return s.ctx.Err()
}

// eventStream is what a stream of events sends.
// channel is the name in system frames. selected is applied after the filters of the subscription, which cannot express it.
type eventStream struct {
	*sse
	channel  string
	sub      *eventlog.Subscription
	selected choice
	cloud    bool

	// filter narrows further what is shown; nil: not at all.
	filter *eventlog.Matcher

	// ends tells after which event the stream is over; nil: never.
	ends func(*eventlog.Event) bool
}

// The loop has no timeout: a stream ends with its client, its node, an error of a write, or ends.
func (s *eventStream) run() error {
	for {
		// Before the read, so that a client learns of a loss before it sees the events behind it.
		if err := s.trim(); err != nil {
			return err
		}
		items, gap, err := s.next(s.sub)
		if err != nil {
			return err
		}
		// The client is told before the events behind the gap.
		if gap != nil {
			if err := s.send(systemFrame("system.gap", &gap.End, gapData(s.channel, gap))); err != nil {
				return err
			}
		}
		over, err := s.show(items)
		if over || err != nil {
			return err
		}
	}
}

// show sends the frames of events, many at once. It reports whether the stream is over.
// Frames of several events share a write; a write of each would cost a system call for each. The pace delays the next batch,
// not the frames of this one.
func (s *eventStream) show(items []*eventlog.Item) (over bool, err error) {
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	*buf = (*buf)[:0]
	sent := 0
	for i, item := range items {
		if s.filter == nil || s.filter.Match(item.Event) {
			var n int
			*buf, n = s.api.frames(*buf, item, s.selected, s.cloud)
			sent += n
		}
		// Also for events that are not shown: the end of a job ends its stream, whatever the client asked for.
		over = s.ends != nil && s.ends(item.Event)
		last := over || i == len(items)-1
		if len(*buf) >= writeBytes || last && len(*buf) > 0 {
			if err = s.send(*buf); err != nil {
				return over, err
			}
			*buf = (*buf)[:0]
		}
		if over {
			return over, nil
		}
	}
	api.Pause(s.ctx, s.pace.Spend(sent))
	return false, nil
}

// trim lets a slow client lose its oldest events, if that is how the server is set up.
// Without that setting a slow client is served from the table. An error rests and is no error, unless the stream has to end.
func (s *eventStream) trim() error {
	if !s.api.streams.Config().DropOldest {
		return nil
	}
	d, err := s.sub.Trim(s.ctx, s.api.streams.Config().BufferSize)
	if err != nil {
		return s.failed(err)
	}
	if d == nil {
		return nil
	}
	b := append(strconv.AppendInt([]byte(":events-dropped "), int64(d.Count), 10), "\n\n"...)
	return s.send(append(b, systemFrame("system.events_dropped", &d.Newest, droppedData(s.channel, d))...))
}
