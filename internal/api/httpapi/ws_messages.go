package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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

// Empty lists match all.
type socketFilter struct {
	EventTypes []string `json:"event_types"`
	Types      []string `json:"types"`
	Queues     []string `json:"queues"`
	JobTypes   []string `json:"job_types"`
	Sources    []string `json:"sources"`
}

// socketError is told to the client; the connection stays open.
// code is one of docs/reference/events.md, Answers.
type socketError struct{ code, message string }

func (e *socketError) Error() string { return e.code + ": " + e.message }

// The message is shown as it is, so it must quote nothing that is not the client's.
func refuse(code, format string, args ...any) error {
	return &socketError{code, fmt.Sprintf(format, args...)}
}

// It runs on the goroutine of run, so no two requests of a connection overlap, and answers come in the order of the requests.
func (s *socket) handle(message []byte) {
	var req socketRequest
	if err := json.Unmarshal(message, &req); err != nil || !isObject(message) {
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

// null would unmarshal without an error.
func isObject(message []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(message), []byte{'{'}) }

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
		if err := json.Unmarshal(sent, &f); err != nil {
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
