package ojs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Event is a change of a job, worker, cron, queue or workflow. Types and their data: docs/reference/events.md, Payloads.
type Event struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"` // also a position in the log
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	Time        time.Time       `json:"time"`
	Subject     string          `json:"subject"` // of a job event the id of the job
	Data        json.RawMessage `json:"data"`

	// Of an event of a job, from Subject and Data.
	JobID   string `json:"-"`
	JobType string `json:"-"`
	Queue   string `json:"-"` // also of other events that name one
}

// UnmarshalJSON reads an event as servers show it: the type is the member type, or event; the job is named in data, or beside it.
func (e *Event) UnmarshalJSON(data []byte) error {
	type envelope Event
	var older struct {
		Event     string    `json:"event"`
		Timestamp time.Time `json:"timestamp"`
		ofJob
	}
	if err := json.Unmarshal(data, (*envelope)(e)); err != nil {
		return err
	}
	if e.Type == "" {
		if err := json.Unmarshal(data, &older); err != nil {
			return err
		}
		e.Type, e.Time = older.Event, older.Timestamp
	}
	var of ofJob
	_ = json.Unmarshal(e.Data, &of) // data of another form names no job
	e.JobID, e.JobType, e.Queue = cmp.Or(of.JobID, older.JobID), cmp.Or(of.JobType, older.JobType), cmp.Or(of.Queue, older.Queue)
	if e.JobID == "" && strings.HasPrefix(e.Type, "job.") {
		e.JobID = e.Subject
	}
	return nil
}

// ofJob are the members by which an event names its job.
type ofJob struct {
	JobID   string `json:"job_id"`
	JobType string `json:"job_type"`
	Queue   string `json:"queue"`
}

// DecodeData reads the data of the event.
func (e *Event) DecodeData(into any) error { return json.Unmarshal(e.Data, into) }

// EventFilter chooses events. All conditions that are set must hold. Values of one field are alternatives.
type EventFilter struct {
	Types      []string // such as job.completed, or a prefix as in job.*
	Queues     []string
	JobTypes   []string
	JobID      string
	WorkflowID string
	After      string    // id of an event: everything behind it
	Since      time.Time // if After is not set; neither: from now on
}

func (f EventFilter) query() url.Values {
	query := url.Values{}
	setText(query, "types", strings.Join(f.Types, ","))
	setText(query, "queues", strings.Join(f.Queues, ","))
	setText(query, "job_types", strings.Join(f.JobTypes, ","))
	setText(query, "job_id", f.JobID)
	setText(query, "workflow_id", f.WorkflowID)
	return query
}

// GapError says that events were removed before they were read: read the current state, then go on. The subscription does so with
// the oldest event that is kept. A gap comes from retention, or from a stream that was too slow. Filters do not matter: events
// that were not meant for this subscription may be the only ones missing.
type GapError struct {
	Data json.RawMessage // as the server says it
}

// Error says what is missing.
func (e *GapError) Error() string { return fmt.Sprintf("ojs: events are missing: %s", e.Data) }

// Events subscribes to events until ctx is done or the loop ends. It uses the event stream of the server, or polls a server without one,
// and goes on behind the last event after an interruption, so that no event is lost. Errors after which it goes on are of type [*GapError]
// only; any other is the last thing that it yields. An event may come twice after an interruption; drop events by their ID where that
// matters. To go on after a restart of the program, store the ID of the last event that was processed and set After to it.
func (c *Client) Events(ctx context.Context, filter EventFilter) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		s := &subscription{client: c, filter: filter, yield: yield}
		for ctx.Err() == nil && !s.ended {
			m, err := c.Manifest(ctx)
			if err == nil && s.filter.After == "" && s.filter.Since.IsZero() {
				err = s.begin(ctx)
			}
			switch {
			case err != nil:
				s.interrupted(ctx, err)
			case m.Has(extensionRealtime):
				s.stream(ctx)
			default:
				s.poll(ctx)
			}
		}
	}
}

// subscription is one loop over events. Its position is filter.After: that of the last event that was shown.
type subscription struct {
	client   *Client
	filter   EventFilter
	yield    func(*Event, error) bool
	ended    bool // the loop has ended, or an error that ends it was yielded
	failures int
}

// begin finds the newest event, so that an interruption before the first event loses nothing.
func (s *subscription) begin(ctx context.Context) error {
	var newest struct {
		Items []*Event `json:"items"` // a server that cannot list the newest event first has none
	}
	r := httpRequest{method: http.MethodGet, path: "/events", query: url.Values{"page": {"1"}, "per_page": {"1"}}}
	header, err := s.client.try(ctx, r, 0, &newest) // once: the loop over events repeats it
	switch {
	case err != nil && Retryable(err):
		return err
	// From here on an interruption can be resumed behind an id, whatever the clocks say.
	case err == nil && len(newest.Items) == 1:
		s.filter.After = newest.Items[0].ID
	default:
		s.filter.Since = serverTime(header)
	}
	return nil
}

// serverTime is where a subscription without an id begins: an empty log has none, and a server without the list gives none. A clock
// of this process that is ahead would pass over the first events. The header has whole seconds, rounded down, so that at most the
// events of one second before the subscription are shown. Without it the clock of this process is what is left.
func serverTime(header http.Header) time.Time {
	if at, err := http.ParseTime(header.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}

// interrupted waits before the next try, or ends with an error that another try does not change. An expired position is shown
// as a gap, and the loop goes on with the oldest event that is kept.
func (s *subscription) interrupted(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil || s.ended:
	case errors.Is(err, ErrCursorExpired):
		data, _ := json.Marshal(map[string]string{"gap_start": s.filter.After, "oldest_id": ErrorDetail(err, "oldest_id")})
		s.filter.After, s.filter.Since = "", time.Unix(0, 0)
		s.ended = !s.yield(nil, &GapError{data})
	case !Retryable(err):
		s.ended = true
		s.yield(nil, err)
	default:
		s.client.logger.DebugContext(ctx, "event subscription was interrupted", "error", err)
		_ = sleep(ctx, retryWait(err, s.failures))
		s.failures++
	}
}

// show yields an event and moves the position behind it. The position moves before the event is shown: an event that ends the
// loop counts as read.
func (s *subscription) show(e *Event) bool {
	s.failures = 0
	s.filter.After = e.ID
	s.ended = !s.yield(e, nil)
	return !s.ended
}

// stream reads the event stream until it breaks. A stream that ends in good order counts as interrupted too: the server stops,
// and another node goes on.
func (s *subscription) stream(ctx context.Context) {
	query := s.filter.query()
	r := httpRequest{method: http.MethodGet, path: "/events/stream", query: query, header: http.Header{"Accept": {"text/event-stream"}}}
	if s.filter.After != "" {
		r.header.Set("Last-Event-Id", s.filter.After)
	} else {
		setTime(query, "since", s.filter.Since)
	}
	answer, err := s.client.open(ctx, r)
	if err != nil {
		s.interrupted(ctx, err)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= 300 {
		body, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
		s.interrupted(ctx, refusal(r, httpAnswer{answer.StatusCode, answer.Header, body}))
		return
	}
	err = s.frames(answer.Body)
	s.interrupted(ctx, &TransportError{Method: r.method, Path: r.path, Err: fmt.Errorf("the stream has ended: %w", err)})
}

// streamSilence is how long a stream may show nothing. Servers send a comment every 15 s, so it is broken then.
const streamSilence = time.Minute

// frames reads frames of server-sent events until the stream ends. Closing the stream from a timer is the only way to end a
// read that waits for ever on a connection that is gone.
func (s *subscription) frames(stream io.ReadCloser) error {
	lines := bufio.NewReaderSize(stream, 64<<10)
	silence := time.AfterFunc(streamSilence, func() { _ = stream.Close() })
	defer silence.Stop()
	var f frame
	for !s.ended {
		silence.Reset(streamSilence)
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			f.add(line)
			continue
		}
		if err := s.frame(f); err != nil {
			return err
		}
		f = frame{}
	}
	return nil
}

// frame is a frame of server-sent events.
type frame struct {
	id, event string
	data      []byte
}

// add passes over comments, such as keep-alives, which have an empty name.
func (f *frame) add(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "id":
		f.id = string(value)
	case "event":
		f.event = string(value)
	case "data":
		if f.data != nil {
			f.data = append(f.data, '\n')
		}
		f.data = append(f.data, value...)
	}
}

// frame moves no position for an event of the server itself, such as its shutdown, which has no place in the log.
func (s *subscription) frame(f frame) error {
	if f.data == nil {
		return nil
	}
	switch {
	case f.event == "system.gap" || f.event == "system.events_dropped":
		s.filter.After = f.id
		s.ended = !s.yield(nil, &GapError{f.data})
		return nil
	case strings.HasPrefix(f.event, "server.") || strings.HasPrefix(f.event, "system."):
		return nil
	}
	e := &Event{}
	if err := json.Unmarshal(f.data, e); err != nil {
		return err
	}
	if e.ID == "" {
		e.ID = f.id
	}
	s.show(e)
	return nil
}

// EventPage is a part of the log of events.
type EventPage struct {
	Events  []*Event `json:"events"`
	Cursor  string   `json:"cursor"` // After of the next page
	HasMore bool     `json:"has_more"`
}

// ListEvents reads events from the log, the oldest first. Store Cursor with what has been processed: the page behind it has each event
// that follows once. Cursor may be ahead of the last event of the page, if events that do not pass the filter follow. With
// HasMore the page may be empty. A position that is too old is [ErrCursorExpired].
func (c *Client) ListEvents(ctx context.Context, filter EventFilter, limit int) (*EventPage, error) {
	query := filter.query()
	setText(query, "after", filter.After)
	if filter.After == "" {
		setTime(query, "since", filter.Since)
	}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	page := &EventPage{}
	if err := c.Do(ctx, get("/events", query), page); err != nil {
		return nil, err
	}
	return page, nil
}

const eventPollInterval = time.Second

// poll reads the log every second, until a request fails.
func (s *subscription) poll(ctx context.Context) {
	for ctx.Err() == nil && !s.ended {
		page, err := s.client.ListEvents(ctx, s.filter, 1000)
		if err != nil {
			s.interrupted(ctx, err)
			return
		}
		for _, e := range page.Events {
			if !s.show(e) {
				return
			}
		}
		if page.Cursor != "" {
			s.filter.After = page.Cursor
		}
		if !page.HasMore {
			_ = sleep(ctx, jitter(eventPollInterval, 0.8, 1.2))
		}
	}
}

func setText(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

func setTime(query url.Values, name string, t time.Time) {
	if !t.IsZero() {
		query.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}
