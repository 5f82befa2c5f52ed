package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
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
		api: a, w: c.Response(), rc: http.NewResponseController(w), ctx: ctx, pace: a.streams.NewPace(),
		flow: flow, idle: time.NewTimer(a.config.Realtime.KeepAlive),
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
		s.api.logger.WarnContext(r.Context(), "client is too slow: stream closed", slog.String("category", "http"),
			slog.Group("request", "id", s.w.Header().Get("X-Request-Id"), "remote", r.RemoteAddr))
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
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.api.config.Realtime.WriteTimeout))
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
func (s *sse) next(sub *eventlog.Subscription) ([]*eventlog.Item, *eventlog.Missed, error) {
	for {
		s.idle.Reset(time.Until(s.written.Add(s.api.config.Realtime.KeepAlive)))
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

// keepAlive sends a comment, which also finds a client that is gone, which only a write shows.
func (s *sse) keepAlive() error {
	if time.Since(s.written) < s.api.config.Realtime.KeepAlive {
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

// run has no timeout: a stream ends with its client, its node, an error of a write, or ends.
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
			// The state frame comes first; both have the same id, so a client that resumes from it misses neither.
			if s.selected.state(item.Event) {
				*buf, sent = append(*buf, item.Shown(formState, stateFrame)...), sent+1
			}
			if s.selected.event(item.Event) {
				*buf, sent = append(*buf, eventFrame(item, s.cloud)...), sent+1
			}
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
	if !s.api.config.Realtime.DropOldest() {
		return nil
	}
	d, err := s.sub.Trim(s.ctx, s.api.config.Realtime.BufferSize)
	if err != nil {
		return s.failed(err)
	}
	if d == nil {
		return nil
	}
	b := append(strconv.AppendInt([]byte(":events-dropped "), int64(d.Count), 10), "\n\n"...)
	return s.send(append(b, systemFrame("system.events_dropped", &d.Newest, droppedData(s.channel, d))...))
}

// streamRequest is what a client asks of a stream (docs/reference/events.md, SSE).
// selected decides which frames are shown, query which rows are read. from is nil for a live stream.
type streamRequest struct {
	channel  string // as system frames name it
	query    eventlog.Query
	selected choice
	from     *eventlog.Position
	cloud    bool
}

// readStreamRequest answers all errors before the stream begins. The filters of the query are checked by the patterns of the log once more
// when the stream subscribes.
func (a *API) readStreamRequest(r *request, byDefault choice) (streamRequest, error) {
	req := streamRequest{channel: "events", from: r.resume(), query: a.eventFilter(r), cloud: r.cloudEvents()}
	if r.err != nil {
		return req, r.err
	}
	var err error
	if req.selected, err = newChoice(req.query.Types, byDefault); err != nil {
		return req, api.EventError(err)
	}
	if _, err = eventlog.ParseSourcePatterns("sources", req.query.Sources); err != nil {
		return req, api.EventError(err)
	}
	// On the routes of a job or a queue the path wins over the channel.
	if text := r.QueryParam("channel"); text != "" {
		ch, err := parseChannel(text)
		if err != nil {
			return req, err
		}
		req.channel, req.query = ch.name, ch.narrow(req.query)
	}
	return req, nil
}

// resume takes the header before the query; nil without either.
// A browser sends the header when it reconnects, while the query still has the place where it began; so the header wins.
func (r *request) resume() *eventlog.Position {
	for _, sent := range []struct{ name, text string }{
		{"Last-Event-ID", r.Request().Header.Get("Last-Event-ID")}, {"last_event_id", r.QueryParam("last_event_id")},
		{"after", r.QueryParam("after")},
	} {
		if sent.text == "" {
			continue
		}
		position, err := eventlog.ParsePosition(sent.text)
		if err != nil {
			r.refuse(spec.InvalidRequest(sent.name, "an event id", sent.text,
				sent.name+" must be an event id, such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90."))
		}
		return &position
	}
	return nil
}

// channel is what a subscription is about: all, events, a job or a queue.
// At most one of job and queue is set. name is in canonical form, by which a WebSocket finds the subscription of a channel.
type channel struct {
	name  string
	job   *[16]byte
	queue string
}

// parseChannel does not ask whether job or queue exist.
func parseChannel(text string) (channel, error) {
	kind, subject, found := strings.Cut(text, ":")
	if !found && (kind == "all" || kind == "events") {
		return channel{name: kind}, nil
	}
	switch {
	case kind == "job" && found:
		if id, ok := spec.ParseID(subject); ok {
			return channel{name: "job:" + spec.FormatID(id), job: &id}, nil
		}
	case kind == "queue" && found && job.ValidQueue(subject):
		return channel{name: text, queue: subject}, nil
	}
	return channel{}, spec.InvalidRequest("channel", "all, events, job:<id> or queue:<name>", text,
		"channel must be all, events, job:<id> or queue:<name>.")
}

// narrow gets a copy of the query.
func (ch channel) narrow(q eventlog.Query) eventlog.Query {
	if ch.job != nil {
		q.JobID = ch.job
	}
	if ch.queue != "" {
		q.Queues = []string{ch.queue}
	}
	return q
}

// streamEvents is GET /events/stream.
// It is also the answer to GET /events with an Accept of text/event-stream.
func (a *API) streamEvents(r *request) error {
	req, err := a.readStreamRequest(r, wholeCatalogue)
	if err != nil {
		return err
	}
	return a.stream(r, func(s *sse) error { return s.follow(r, req, nil) })
}

// follow subscribes and sends what comes. found may refuse the stream before it begins.
// found runs between the subscription and the opening, so that nothing between its look and the first event is lost.
func (s *sse) follow(c echo.Context, req streamRequest, found func(*eventStream) error) error {
	s.catchUp(req)
	sub, err := s.api.Feed.Subscribe(s.ctx, req.selected.query(req.query), req.from)
	if err != nil {
		return api.EventError(err)
	}
	defer sub.Close()
	sub.CountIn(s.flow)
	stream := &eventStream{sse: s, channel: req.channel, sub: sub, selected: req.selected, cloud: req.cloud}
	if found != nil {
		if err := found(stream); err != nil {
			return err
		}
	}
	if goOn, err := s.open(c); err != nil || !goOn {
		return err
	}
	return stream.run()
}

// catchUp lets a live stream begin behind what its client has seen answered.
// A stream from an id or a time reads the log anyway and need not wait.
func (s *sse) catchUp(req streamRequest) {
	if !req.replays() {
		s.api.Events.WaitCaughtUp(s.ctx)
	}
}

func (r *streamRequest) replays() bool { return r.from != nil || !r.query.Since.IsZero() }

// streamQueue is GET /queues/{name}/events.
// The queue in the path wins over the parameter queues. An unknown queue is 404, because a stream for a misspelt name would
// be silent for ever.
func (a *API) streamQueue(r *request) error {
	req, err := a.readStreamRequest(r, ofQueue)
	if err != nil {
		return err
	}
	name := param(r, "name")
	if !job.ValidQueue(name) {
		return spec.NotFound("queue", name)
	}
	req.channel, req.query.Queues = "queue:"+name, []string{name}
	// Whether the queue ever had a job or a setting. The look comes after the subscription, see follow.
	known := func(*eventStream) error {
		known, err := a.Jobs.QueueExists(r.Request().Context(), name)
		if err == nil && !known {
			err = spec.NotFound("queue", name)
		}
		return err
	}
	if req.query.Tenant != "" { // whether others use the queue is not shown
		known = nil
	}
	return a.stream(r, func(s *sse) error { return s.follow(r, req, known) })
}

// streamJob is GET /jobs/{id}/events. It ends when the job has.
// The id in the path wins over the parameter job_id.
func (a *API) streamJob(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	req, err := a.readStreamRequest(r, ofJob)
	if err != nil {
		return err
	}
	req.channel, req.query.JobID = "job:"+spec.FormatID(id), &id
	return a.stream(r, func(s *sse) error { return s.followJob(r, req) })
}

// followJob reads every row of the job, whatever is wanted of it, because it must see the end.
// The order of the reads makes the end certain. The head is read first, then the job, then the stream begins at the head or
// before it. If the job has not ended when it is read, its end is behind the head, so the stream will see it.
func (s *sse) followJob(c echo.Context, req streamRequest) error {
	a, id := s.api, *req.query.JobID
	s.catchUp(req)
	// What is published up to here cannot be the end of the present run, if the job has not ended now.
	head, err := a.Events.Head(s.ctx)
	if err != nil {
		return pg.ClientError(err)
	}
	job, err := a.Jobs.Get(s.ctx, id) // after the head: what ends the job from now on lies behind it
	if err != nil {
		return err
	}
	from := req.from
	if !req.replays() {
		from = &head
	}
	query := req.query
	// The subscription has only the filters that cannot hide the end; the others are applied to what is shown.
	// selected chooses by type when frames are made.
	query.Types, query.Internal = nil, true
	filter, err := eventlog.NewMatcher(query)
	if err != nil {
		return api.EventError(err)
	}
	sub, err := a.Feed.Subscribe(s.ctx, eventlog.Query{JobID: &id, Internal: true, Since: query.Since}, from)
	if err != nil {
		return api.EventError(err)
	}
	defer sub.Close()
	sub.CountIn(s.flow)
	stream := &eventStream{sse: s, channel: req.channel, sub: sub, selected: req.selected, cloud: req.cloud, filter: &filter}
	if !ojs.JobState(job.State).Terminal() {
		if goOn, err := s.open(c); err != nil || !goOn {
			return err
		}
		// An end before the head belongs to an earlier life: the job was retried by hand since.
		stream.ends = func(e *eventlog.Event) bool { return head.Before(e.Position) && endsJob(e) }
		return stream.run()
	}
	return stream.runEnded(c, job, req.replays())
}

func endsJob(e *eventlog.Event) bool { return isTransition(e) && ojs.JobState(e.To).Terminal() }

// runEnded replays what was asked for and shows the latest transition of a job that is over.
// The end may not be published yet, although the job shows it: the row is committed before the relay has seen its event.
func (s *eventStream) runEnded(c echo.Context, job *job.Record, replay bool) error {
	const newest = 50 // heartbeats may follow each other, but none follows the end
	// It waits for publication first, up to 100 ms, so the end is nearly always found.
	ctx := c.Request().Context()
	s.api.Events.WaitCaughtUp(ctx)
	events, _, err := s.api.Events.ListNewest(ctx, eventlog.Query{JobID: &job.ID, Internal: true, Limit: newest}, 0)
	if err != nil {
		return api.EventError(err)
	}
	var last *eventlog.Event
	if i := slices.IndexFunc(events, func(e eventlog.Event) bool { return isTransition(&e) }); i >= 0 {
		last = &events[i]
	}
	if goOn, err := s.open(c); err != nil || !goOn {
		return err
	}
	switch {
	// The job is the only witness then, and its frame has no id.
	case last == nil: // retention has taken it
		if !s.selected.states {
			return nil
		}
		// It has no from, attempt and reason, which the job does not keep.
		b := spec.AppendID([]byte(`{"job_id":"`), job.ID)
		b = appendText(append(b, '"'), "queue", job.Queue)
		b = appendText(appendText(b, "type", job.Type), "to", job.State)
		return s.send(systemFrame(typeState, nil, append(appendTime(b, "timestamp", job.FinishedAt), '}')))
	case !endsJob(last): // not published yet
		// It waits for the end, which comes within the time of a publication.
		s.ends = func(e *eventlog.Event) bool { return last.Position.Before(e.Position) && endsJob(e) }
		return s.run()
	// The replay ends with the transition that is known to be the last.
	case replay && s.sub.Position().Before(last.Position):
		s.ends = func(e *eventlog.Event) bool { return !e.Position.Before(last.Position) }
		return s.run()
	}
	// Nothing was asked to be replayed, or the client has seen it all: it gets the latest transition, so that it learns that
	// the job is over.
	_, err = s.show([]*eventlog.Item{{Event: last}})
	return err
}

// streamProgress is GET /jobs/{id}/progress/stream (docs/reference/events.md, Progress stream): the current object, then each change.
// The order matters: it subscribes, then reads the job, then opens the stream, so no change lies between the object and the
// events.
func (a *API) streamProgress(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	return a.stream(r, func(s *sse) error { return s.followProgress(r, id) })
}

// followProgress takes from events only that something has changed; the object is read from the table each time. It may be newer than the
// event, and several events of one batch are shown once.
func (s *sse) followProgress(c echo.Context, id [16]byte) error {
	sub, err := s.api.Feed.Subscribe(s.ctx, eventlog.Query{JobID: &id, Internal: true}, nil)
	if err != nil {
		return pg.ClientError(err)
	}
	defer sub.Close()
	sub.CountIn(s.flow)
	job, err := s.api.Progress.Get(s.ctx, id)
	if err != nil {
		return err
	}
	if goOn, err := s.open(c); err != nil || !goOn {
		return err
	}
	if over, err := s.showProgress(job, sub.Position(), true); over || err != nil {
		return err
	}
	for {
		items, gap, err := s.next(sub)
		if err != nil {
			return err
		}
		// After a gap nothing is known, so both are assumed.
		reported, changed := gap != nil, gap != nil
		for _, item := range items {
			reported = reported || item.Event.Type == "job.progress"
			changed = changed || reported || item.Event.To != "" || item.Event.From != ""
		}
		if !changed {
			continue
		}
		job, err := s.readProgress(id) // an event does not carry what the worker sent besides
		if err != nil || job == nil {
			return err
		}
		if over, err := s.showProgress(*job, sub.Position(), reported); over || err != nil {
			return err
		}
	}
}

// readProgress reads the object of a job whose events tell that it has changed; nil if the job was deleted or pruned. While the database is
// away it tries again: the events do not come again, and the last of them may have been the end of the job, without which the stream would
// stay open for ever.
func (s *sse) readProgress(id [16]byte) (*queue.Progress, error) {
	for {
		job, err := s.api.Progress.Get(s.ctx, id)
		if err == nil {
			return &job, nil
		}
		var wire *ojs.Error
		if errors.As(err, &wire) && wire.Type == string(ojs.ErrNotFound) {
			return nil, nil
		}
		if err := s.failed(err); err != nil {
			return nil, err
		}
		if err := s.keepAlive(); err != nil {
			return nil, err
		}
	}
}

// ends name the last frame.
// It is only read.
var ends = map[ojs.JobState]string{ojs.StateCompleted: "completed", ojs.StateDiscarded: "failed", ojs.StateCancelled: "cancelled"}

// showProgress sends the object under both names, and how the job ended if it has.
// at is the position of the stream, so a client may show how far it has come; the stream itself cannot be resumed. With a
// final state it reports over, after the last frame.
func (s *sse) showProgress(p queue.Progress, at eventlog.Position, reported bool) (over bool, err error) {
	var b []byte
	if reported {
		// A line break between tokens of a client's object would end the field data.
		p.Data = oneLine(p.Data)
		data := showProgress(p).append(nil)
		b = systemFrame("progress", &at, data)
		b = append(append(at.Append(append(b, "id: "...)), "\ndata: "...), data...)
		b = append(b, "\n\n"...)
	}
	end, over := ends[p.State]
	if over {
		data := object{{"progress", p.Progress}, {"state", string(p.State)}, {"updated_at", p.UpdatedAt}}.append(nil)
		b = append(b, systemFrame(end, &at, data)...)
	}
	if len(b) == 0 {
		return false, nil
	}
	return over, s.send(b)
}

// statsView is the latest overview, which all stats streams of a node share.
// The zero value is ready to use.
type statsView struct {
	// latest is replaced whole; a shot never changes. nil until the first read.
	latest atomic.Pointer[statsShot]
	mu     sync.Mutex // held by the one that reads
}

// statsShot has its time by the clock of the process.
type statsShot struct {
	at   time.Time
	data []byte
}

// get reads the overview at most once per interval, whoever asks. While one reads, the others take the one before.
// An error is returned to the one that read; the others still have the old shot. The first callers wait for the first read.
func (v *statsView) get(ctx context.Context, jobs *queue.Store, interval time.Duration) ([]byte, error) {
	shot := v.latest.Load()
	if shot != nil && (time.Since(shot.at) < interval || !v.mu.TryLock()) {
		return shot.data, nil
	}
	if shot == nil {
		v.mu.Lock()
	}
	defer v.mu.Unlock()
	// Another caller may have read while this one waited for the lock.
	if shot = v.latest.Load(); shot != nil && time.Since(shot.at) < interval {
		return shot.data, nil
	}
	o, err := jobs.Overview(ctx)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(newStats(o))
	if err != nil {
		return nil, err
	}
	v.latest.Store(&statsShot{time.Now(), data})
	return data, nil
}

// newStats has the names that the clients of the stream read. queues have no finished states. workers.total counts all workers;
// workers.active has the latest to send a heartbeat, of all states, up to the bound of queue.Store.Overview. Rates are per second, of the
// last minute. error_rate is in per cent: failed attempts of all that ended, 0 if none did.
func newStats(o queue.Overview) object {
	const seconds = 60 // of the counts
	total, errorRate, workers := int64(0), 0.0, make([]object, len(o.Workers))
	for i, w := range o.Workers {
		state := w.State
		// Clients of this stream know no such state.
		if state == "terminate" {
			state = "quiet"
		}
		total = w.Total
		workers[i] = object{{"id", w.ID}, {"state", state}, {"activeJobs", w.ActiveJobs},
			{"lastHeartbeatAt", spec.FormatTime(w.LastBeatAt.Time)}}
	}
	if finished := o.Latest.Completed + o.Latest.Failed; finished > 0 {
		errorRate = 100 * o.Latest.Failed / finished
	}
	queues := make([]object, len(o.Queues))
	for i, q := range o.Queues {
		queues[i] = object{{"queue", q.Queue}, {"available", q.Available}, {"active", q.Active}, {"scheduled", q.Scheduled},
			{"retryable", q.Retryable}}
	}
	return object{
		{"queues", queues},
		{"throughput", object{
			{"processed_per_second", o.Latest.Completed / seconds}, {"failed_per_second", o.Latest.Failed / seconds},
			{"enqueued_per_second", o.Latest.Enqueued / seconds},
		}},
		{"workers", object{{"total", total}, {"active", workers}}}, {"error_rate", errorRate},
	}
}

// liveTypes are shown between two overviews.
// They are public types, so no internal row is read.
var liveTypes = []string{"job.enqueued", "job.completed", "job.failed", "job.cancelled", "queue.paused", "queue.resumed"}

// streamStats is GET /admin/stats/stream (docs/reference/events.md, Statistics stream).
// It is for operators and has no filters. It begins live and cannot be resumed.
func (a *API) streamStats(r *request) error {
	return a.stream(r, func(s *sse) error {
		sub, err := a.Feed.Subscribe(s.ctx, eventlog.Query{Types: liveTypes}, nil)
		if err != nil {
			return api.EventError(err)
		}
		defer sub.Close()
		sub.CountIn(s.flow)
		if goOn, err := s.open(r); err != nil || !goOn {
			return err
		}
		return s.runStats(sub)
	})
}

// runStats gives the overview its own time and is not put off by events. A gap in the events is not told: the next overview shows the
// present.
func (s *sse) runStats(sub *eventlog.Subscription) error {
	interval := s.api.config.Realtime.StatsInterval
	due := time.Now()
	for {
		// Events that come all the time must not put the overview off.
		if !time.Now().Before(due) {
			// The context is that of the node, because others wait for the same read; a client that leaves must not end it. After a failure
			// the stream goes on.
			data, err := s.api.stats.get(s.api.streams.Life(), s.api.Jobs, interval)
			if err != nil {
				s.api.logger.WarnContext(s.ctx, "stats stream cannot read the overview; trying again", slog.Any("error", err))
				err = s.ctx.Err()
			} else {
				err = s.send(systemFrame("metrics", nil, data))
			}
			if err != nil {
				return err
			}
			// From now and not from due: after a pause the overviews are not made up for.
			due = time.Now().Add(interval)
		}
		s.idle.Reset(min(time.Until(due), time.Until(s.written.Add(s.api.config.Realtime.KeepAlive))))
		items, _, err := sub.Next(s.ctx, s.idle.C, s.api.streams.Batch())
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		if err != nil {
			if err := s.failed(err); err != nil {
				return err
			}
		}
		// items is empty when the time of the overview or of the keep-alive has come.
		if err := s.live(items); err != nil {
			return err
		}
		if err := s.keepAlive(); err != nil {
			return err
		}
	}
}

// live applies no filter, unlike show.
func (s *sse) live(items []*eventlog.Item) error {
	if len(items) == 0 {
		return nil
	}
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	*buf = (*buf)[:0]
	for _, item := range items {
		*buf = append(*buf, item.Shown(formStats, liveFrame)...)
	}
	if err := s.send(*buf); err != nil {
		return err
	}
	api.Pause(s.ctx, s.pace.Spend(len(items)))
	return nil
}

// liveFrame is flat.
// type and job_type are both the type of the job; the type of the event is the name of the frame.
func liveFrame(e *eventlog.Event) []byte {
	b := frameHead(make([]byte, 0, 384), e, e.Type)
	b = append(e.Position.Append(append(b, `{"id":"`...)), '"')
	if e.JobID != nil {
		b = append(spec.AppendID(append(b, `,"job_id":"`...), *e.JobID), '"')
		b = appendText(appendText(b, "type", e.JobType), "job_type", e.JobType)
	}
	b = appendText(b, "queue", e.Queue)
	b = append(appendClock(append(b, `,"timestamp":"`...), e.Time), '"')
	if e.Attempt != nil {
		b = strconv.AppendInt(append(b, `,"attempt":`...), int64(*e.Attempt), 10)
	}
	if e.DurationMS != nil {
		b = strconv.AppendInt(append(b, `,"duration":`...), *e.DurationMS, 10)
	}
	if e.Type == "job.failed" {
		if message := membersOf(string(membersOf(e.Data)["error"]))["message"]; message != nil {
			b = append(append(b, `,"error":`...), message...)
		}
	}
	return endFrame(append(b, '}'))
}
