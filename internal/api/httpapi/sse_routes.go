package httpapi

import (
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// streamRequest is what a client asks of a stream (docs/reference/events.md, SSE).
// selected decides which frames are shown, query which rows are read. from is nil for a live stream.
type streamRequest struct {
	channel  string // as system frames name it
	query    eventlog.Query
	selected choice
	from     *eventlog.Position
	cloud    bool
}

// All errors are answered before the stream begins. The filters of the query are checked by the patterns of the log once more
// when the stream subscribes.
func (a *API) readStreamRequest(c echo.Context, byDefault choice) (streamRequest, error) {
	req := streamRequest{channel: "events"}
	var err error
	if req.from, err = readResume(c); err != nil {
		return req, err
	}
	if req.query, err = readEventFilter(c); err != nil {
		return req, err
	}
	req.query.Tenant = a.tenant(c.Request())
	if req.cloud, err = readFormat(c); err != nil {
		return req, err
	}
	if req.selected, err = newChoice(req.query.Types, byDefault); err != nil {
		return req, api.EventError(err)
	}
	if _, err = eventlog.ParseSourcePatterns("sources", req.query.Sources); err != nil {
		return req, api.EventError(err)
	}
	// On the routes of a job or a queue the path wins over the channel.
	if text := c.QueryParam("channel"); text != "" {
		err = req.narrow(text)
	}
	return req, err
}

// readResume takes the header before the query; nil without either.
// A browser sends the header when it reconnects, while the query still has the place where it began; so the header wins.
func readResume(c echo.Context) (*eventlog.Position, error) {
	for _, sent := range []struct{ name, text string }{
		{"Last-Event-ID", c.Request().Header.Get("Last-Event-ID")}, {"last_event_id", c.QueryParam("last_event_id")}, {"after", c.QueryParam("after")},
	} {
		if sent.text == "" {
			continue
		}
		position, err := eventlog.ParsePosition(sent.text)
		if err != nil {
			return nil, spec.InvalidRequest(sent.name, "an event id", sent.text, sent.name+" must be an event id, such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90.")
		}
		return &position, nil
	}
	return nil, nil
}

// narrow applies a channel, which is shorthand for job_id or queues.
// It replaces job_id and queues, if they were sent as well.
func (r *streamRequest) narrow(channel string) error {
	ch, err := parseChannel(channel)
	if err != nil {
		return err
	}
	r.channel = ch.name
	r.query = ch.narrow(r.query)
	return nil
}

// channel is what a subscription is about: all, events, a job or a queue.
// At most one of job and queue is set. name is in canonical form, by which a WebSocket finds the subscription of a channel.
type channel struct {
	name  string
	job   *[16]byte
	queue string
}

// It does not ask whether job or queue exist.
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
	return channel{}, spec.InvalidRequest("channel", "all, events, job:<id> or queue:<name>", text, "channel must be all, events, job:<id> or queue:<name>.")
}

// q is a copy.
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
	// The look comes after the subscription, see follow.
	known := func(*eventStream) error { return a.requireQueue(r, name) }
	if req.query.Tenant != "" { // whether others use the queue is not shown
		known = nil
	}
	return a.stream(r, func(s *sse) error { return s.follow(r, req, known) })
}

// It asks whether the queue ever had a job or a setting.
func (a *API) requireQueue(c echo.Context, name string) error {
	known, err := a.Jobs.QueueExists(c.Request().Context(), name)
	if err == nil && !known {
		err = spec.NotFound("queue", name)
	}
	return err
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
	last, err := s.api.lastTransition(c, job.ID)
	if err != nil {
		return err
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
		return s.send(systemFrame(typeState, nil, stateOf(job)))
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

// lastTransition is the newest published one of a job; nil if there is none.
// It waits for publication first, up to 100 ms, so the end is nearly always found.
func (a *API) lastTransition(c echo.Context, id [16]byte) (*eventlog.Event, error) {
	const newest = 50 // heartbeats may follow each other, but none follows the end
	ctx := c.Request().Context()
	a.Events.WaitCaughtUp(ctx)
	events, _, err := a.Events.ListNewest(ctx, eventlog.Query{JobID: &id, Internal: true, Limit: newest}, 0)
	if err != nil {
		return nil, api.EventError(err)
	}
	for i := range events {
		if isTransition(&events[i]) {
			return &events[i], nil
		}
	}
	return nil, nil
}

// stateOf is a state frame made of the job itself.
// It has no from, attempt and reason, which the job does not keep.
func stateOf(job *job.Record) []byte {
	b := spec.AppendID([]byte(`{"job_id":"`), job.ID)
	b = appendText(append(b, '"'), "queue", job.Queue)
	b = appendText(b, "type", job.Type)
	b = appendText(b, "to", job.State)
	return append(appendTime(b, "timestamp", job.FinishedAt), '}')
}
