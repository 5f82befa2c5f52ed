package httpapi

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

// The forms in which streams share events. Each is a whole frame of SSE; frameData is what a WebSocket sends of it.
const (
	formEvent = iota
	formCloud
	formState
	formStats
)

const typeState = "job.state_changed"

// choice says which frames a stream wants of the events it reads (docs/reference/events.md, SSE).
type choice struct {
	states bool     // a state frame for each transition
	types  []string // patterns of other events; * for all of the catalogue
}

// Default frames.
var (
	wholeCatalogue = choice{types: []string{"*"}}
	ofJob          = choice{states: true, types: []string{"job.progress", "job.heartbeat"}}
	ofQueue        = choice{states: true, types: []string{"job.progress", "job.heartbeat", "queue.*"}}
	ofAll          = choice{states: true, types: []string{"job.progress", "job.heartbeat", "queue.*", "worker.*", "workflow.*", "cron.*"}}
)

// newChoice is what event_types asks for in place of the default.
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
func (s choice) query(q eventlog.Query) eventlog.Query {
	q.Types, q.Internal = s.types, false
	if s.states {
		q.Types, q.Internal = nil, true
	}
	return q
}

// event reports whether the event is wanted as what it is.
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
func isTransition(e *eventlog.Event) bool {
	moved := e.Internal && e.From == "" && e.To != string(ojs.StatePending)
	return e.To != "" && e.JobID != nil && !moved
}

// frames appends the frames of an event and returns how many they are.
func (a *API) frames(b []byte, item *eventlog.Item, s choice, cloud bool) ([]byte, int) {
	n := 0
	if s.state(item.Event) {
		b, n = append(b, item.Shown(formState, stateFrame)...), n+1
	}
	if s.event(item.Event) {
		b, n = append(b, a.eventFrame(item, cloud)...), n+1
	}
	return b, n
}

func (a *API) eventFrame(item *eventlog.Item, cloud bool) []byte {
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
func stateFrame(e *eventlog.Event) []byte {
	b := frameHead(make([]byte, 0, 384), e, typeState)
	b = ojs.AppendID(append(b, `{"job_id":"`...), *e.JobID)
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
	if reason := reasonOf(e); reason != nil {
		b = append(append(b, `,"reason":`...), reason...)
	}
	return endFrame(append(b, '}'))
}

func reasonOf(e *eventlog.Event) json.RawMessage {
	if e.Type != typeState && e.Type != "job.cancelled" {
		return nil
	}
	var data struct {
		Reason json.RawMessage `json:"reason"`
	}
	if json.Unmarshal([]byte(e.Data), &data) != nil {
		return nil
	}
	return data.Reason
}

const idSize = len("evt_") + 36

func frameHead(b []byte, e *eventlog.Event, name string) []byte {
	b = e.Position.Append(append(b, "id: "...))
	b = append(append(b, "\nevent: "...), name...)
	return append(b, "\ndata: "...)
}

// endFrame ends a frame. A client's result may be spread over lines, which only blanks may part in JSON.
func endFrame(b []byte) []byte {
	oneLine(b[bytes.Index(b, []byte("\ndata: "))+1:])
	return append(b, "\n\n"...)
}

func oneLine(data []byte) []byte {
	for i, c := range data {
		if c == '\n' || c == '\r' {
			data[i] = ' '
		}
	}
	return data
}

// frameData is the JSON of a frame.
func frameData(frame []byte, name string) []byte {
	return frame[len("id: ")+idSize+len("\nevent: ")+len(name)+len("\ndata: ") : len(frame)-len("\n\n")]
}

// systemFrame has an id only if a client may resume from it.
func systemFrame(name string, id *eventlog.Position, data []byte) []byte {
	var b []byte
	if id != nil {
		b = append(id.Append([]byte("id: ")), '\n')
	}
	b = append(append(b, "event: "...), name...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

const shutdownData = `{"reason":"shutdown","grace_period_ms":5000}`

// gapData is docs/reference/events.md, System frames. The count is that of numbers, of which internal rows have some.
func gapData(channel string, gap *eventlog.Gap) []byte {
	b := appendQuoted([]byte(`{"channel":`), channel)
	b = appendText(b, "gap_start", gap.Start.String())
	b = appendText(b, "gap_end", gap.End.String())
	b = strconv.AppendInt(append(b, `,"estimated_missed_count":`...), max(0, gap.End.Seq-gap.Start.Seq), 10)
	return append(b, '}')
}

func droppedData(channel string, d *eventlog.Dropped) []byte {
	b := appendQuoted([]byte(`{"channel":`), channel)
	b = strconv.AppendInt(append(b, `,"dropped_count":`...), int64(d.Count), 10)
	b = appendText(b, "oldest_dropped_id", d.Oldest.String())
	b = appendText(b, "newest_dropped_id", d.Newest.String())
	b = append(appendClock(append(b, `,"timestamp":"`...), d.Newest.Time()), '"')
	return append(b, '}')
}
