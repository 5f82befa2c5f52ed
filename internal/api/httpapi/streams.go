package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// streamRetry is the pause after the database could not be read.
// It applies to each stream.
const streamRetry = time.Second

// streamRoute reports whether a request is for a stream, before it is routed.
// It decides whether access_token may be read, so it must name stream routes only: a key in the query of any other route
// would get into logs of proxies for nothing.
func streamRoute(r *http.Request) bool {
	path, found := strings.CutPrefix(r.URL.Path, "/ojs/v1/")
	if !found || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch path {
	case "events/stream", "events/ws", "ws", "admin/stats/stream":
		return true
	// The same route polls or streams.
	case "events":
		return wantsStream(r)
	}
	// The second segment is an id or a name, whatever it is.
	kind, rest, _ := strings.Cut(path, "/")
	_, rest, _ = strings.Cut(rest, "/")
	return kind == "jobs" && (rest == "events" || rest == "progress/stream") || kind == "queues" && rest == "events"
}

// wantsStream is false for a range such as */*.
func wantsStream(r *http.Request) bool { return names(r.Header["Accept"], mediaStream) }

// takeQueryToken moves access_token into the header, if streams may have it there, so that no log shows it.
// The header wins over the query. It changes r in place; RequestURI is changed, too, because it has the query as well. A
// query that cannot be parsed is left to the handler.
func (a *API) takeQueryToken(r *http.Request) {
	if !a.config.Realtime.AllowQueryToken || !strings.Contains(r.URL.RawQuery, "access_token=") || !streamRoute(r) {
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return
	}
	// An empty token is as none.
	if token := query.Get("access_token"); token != "" && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	query.Del("access_token")
	r.URL.RawQuery = query.Encode()
	r.RequestURI = r.URL.RequestURI()
}

// StopStreams ends all streams of this node and refuses new ones. AwaitStreams returns when they have ended.
// It must come before http.Server.Shutdown, which waits for streams as for any request.
func (a *API) StopStreams() { a.streams.Stop() }

// AwaitStreams waits for them, also for WebSockets, which http.Server no longer knows of.
// It must come after StopStreams.
func (a *API) AwaitStreams(ctx context.Context) error { return a.streams.Wait(ctx) }

// StreamCounters counts the streams by transport, for metrics.
// The keys are values of a label.
func (a *API) StreamCounters() map[string]*eventlog.StreamCounter {
	return map[string]*eventlog.StreamCounter{"sse": &a.sse, "websocket": &a.socket}
}

// Streams is the number of open streams.
// It counts gRPC streams as well.
func (a *API) Streams() int { return a.streams.Count() }

// The forms in which streams share events. Each is a whole frame of SSE; frameData is what a WebSocket sends of it.
// They are indexes below eventlog.GRPCForms into what an Item keeps, encoded once for all streams of the node. A new form
// needs a new index there.
const (
	formEvent = iota
	formCloud
	formState
	formStats
)

// typeState is the name of the frames that clients ask for, and that of the internal rows of the log.
const typeState = "job.state_changed"

// choice says which frames a stream wants of the events it reads (docs/reference/events.md, SSE).
// It is immutable after newChoice, and may be shared by streams.
type choice struct {
	states bool     // a state frame for each transition
	types  []string // patterns of other events; * for all of the catalogue
}

// Default frames.
// The frames of a route if the client names no types (docs/reference/events.md, SSE and WebSocket).
var (
	wholeCatalogue = choice{types: []string{"*"}}
	ofJob          = choice{states: true, types: []string{"job.progress", "job.heartbeat"}}
	ofQueue        = choice{states: true, types: []string{"job.progress", "job.heartbeat", "queue.*"}}
	ofAll          = choice{states: true, types: []string{"job.progress", "job.heartbeat", "queue.*", "worker.*", "workflow.*", "cron.*"}}
)

// newChoice is what event_types asks for in place of the default.
// An alias is translated before, so patterns have the names of the catalogue. The error is an *eventlog.PatternError.
func newChoice(types []string, byDefault choice) (choice, error) {
	patterns, err := eventlog.ParseTypePatterns("types", types)
	if err != nil {
		return choice{}, err
	}
	if len(patterns) == 0 {
		return byDefault, nil
	}
	var s choice
	for _, p := range patterns {
		if p == typeState {
			s.states = true
		} else {
			s.types = append(s.types, p)
		}
	}
	return s, nil
}

// query lets the log be read with the filter, as far as a filter can express the choice.
// State frames need every transition, and types cannot say so: events of all types are then read, and event picks the wanted ones.
func (s choice) query(q eventlog.Query) eventlog.Query {
	// Without state frames the log need not give internal rows.
	q.Types, q.Internal = s.types, false
	if s.states {
		q.Types, q.Internal = nil, true
	}
	return q
}

// event reports whether the event is wanted as what it is.
// Internal rows have no public form, even if a pattern matches their type.
func (s choice) event(e *eventlog.Event) bool {
	if e.Internal {
		return false
	}
	for _, p := range s.types {
		if eventlog.MatchPattern(p, e.Type) {
			return true
		}
	}
	return false
}

// state reports whether a state frame is wanted of it.
func (s choice) state(e *eventlog.Event) bool { return s.states && isTransition(e) }

// isTransition: rows with a to-state, except the one that only moves a job into another queue's counts.
// A move writes two rows: one without to-state for the queue that the job leaves, and this one, without from-state, for the
// other. Clients would take it for a new job. A new pending job has the same form and is told apart by its state.
func isTransition(e *eventlog.Event) bool {
	moved := e.Internal && e.From == "" && e.To != string(ojs.StatePending)
	return e.To != "" && e.JobID != nil && !moved
}

// eventFrame estimates a capacity that avoids a second allocation.
func eventFrame(item *eventlog.Item, cloud bool) []byte {
	form := formEvent
	if cloud {
		form = formCloud
	}
	return item.Shown(form, func(e *eventlog.Event) []byte {
		b := frameHead(make([]byte, 0, len(e.Head)+len(e.Compat)+len(e.Data)+160), e, e.Type)
		return endFrame(e.Append(b, true, cloud))
	})
}

// stateFrame is docs/reference/events.md, State frames.
// It is made once for each event and kept with it.
func stateFrame(e *eventlog.Event) []byte {
	// 384 bytes hold a frame with names of usual length.
	b := frameHead(make([]byte, 0, 384), e, typeState)
	b = spec.AppendID(append(b, `{"job_id":"`...), *e.JobID)
	b = appendText(append(b, '"'), "queue", e.Queue)
	b = appendText(b, "type", e.JobType)
	if e.From != "" {
		b = appendText(b, "from", e.From)
	}
	b = appendText(b, "to", e.To)
	b = append(appendClock(append(b, `,"timestamp":"`...), e.Time), '"')
	if e.Attempt != nil {
		b = strconv.AppendInt(append(b, `,"attempt":`...), int64(*e.Attempt), 10)
	}
	if e.Type == typeState || e.Type == "job.cancelled" { // the others have none
		if reason := membersOf(e.Data)["reason"]; reason != nil {
			b = append(append(b, `,"reason":`...), reason...)
		}
	}
	return endFrame(append(b, '}'))
}

// idSize is the length of every event id, which frameData relies on.
const idSize = len("evt_") + 36

// frameHead has its three lines in a fixed order, which frameData relies on.
func frameHead(b []byte, e *eventlog.Event, name string) []byte {
	b = e.Position.Append(append(b, "id: "...))
	b = append(append(b, "\nevent: "...), name...)
	return append(b, "\ndata: "...)
}

// endFrame ends a frame. A client's result may be spread over lines, which only blanks may part in JSON.
// A line break inside of data would end the field. Inside of a JSON string it is escaped, so only blanks between tokens are
// replaced.
func endFrame(b []byte) []byte {
	oneLine(b[bytes.Index(b, []byte("\ndata: "))+1:])
	return append(b, "\n\n"...)
}

// oneLine changes data in place.
func oneLine(data []byte) []byte {
	for i, c := range data {
		if c == '\n' || c == '\r' {
			data[i] = ' '
		}
	}
	return data
}

// frameData is the JSON of a frame.
// name must be the one that the frame was made with. WebSocket messages share the encoding of SSE in this way.
func frameData(frame []byte, name string) []byte {
	return frame[len("id: ")+idSize+len("\nevent: ")+len(name)+len("\ndata: ") : len(frame)-len("\n\n")]
}

// systemFrame has an id only if a client may resume from it.
// A client that resumes from the id of a gap or of dropped events does not get the same notice again.
func systemFrame(name string, id *eventlog.Position, data []byte) []byte {
	var b []byte
	if id != nil {
		b = append(id.Append([]byte("id: ")), '\n')
	}
	b = append(append(b, "event: "...), name...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

// shutdownData has for grace period that of docs/reference/events.md, SSE: the stream ends within 5 s.
const shutdownData = `{"reason":"shutdown","grace_period_ms":5000}`

// gapData is docs/reference/events.md, System frames. The count is that of numbers, of which internal rows have some.
// Numbers of transactions that were rolled back count, too.
func gapData(channel string, gap *eventlog.Missed) []byte {
	b := appendQuoted([]byte(`{"channel":`), channel)
	b = appendText(b, "gap_start", gap.Start.String())
	b = appendText(b, "gap_end", gap.End.String())
	b = strconv.AppendInt(append(b, `,"estimated_missed_count":`...), max(0, gap.End.Seq-gap.Start.Seq), 10)
	return append(b, '}')
}

// droppedData has the time of the newest dropped event, not of the drop: the id has it, and no clock of the node is shown.
func droppedData(channel string, d *eventlog.Dropped) []byte {
	b := appendQuoted([]byte(`{"channel":`), channel)
	b = strconv.AppendInt(append(b, `,"dropped_count":`...), int64(d.Count), 10)
	b = appendText(b, "oldest_dropped_id", d.Oldest.String())
	b = appendText(b, "newest_dropped_id", d.Newest.String())
	b = append(appendClock(append(b, `,"timestamp":"`...), d.Newest.Time()), '"')
	return append(b, '}')
}
