package job

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/spec"
)

// Encode gives the job error object that is stored: an element of `errors`, and `error` (docs/reference/jobs.md, Job error). A zero at
// leaves out occurred_at and timestamp, for a statement that adds the database's time; an empty workerID its member. SQL reads
// code and type from the head of the text (ojs.error_code), so the order of the first four members is fixed.
// Statements append the time to this text themselves (ojs.error_at), because it must be that of their own transaction.
func (e WorkerError) Encode(attempt int, at time.Time, workerID string) []byte {
	b := make([]byte, 0, 256+len(e.Message)+len(e.Details))
	b = strconv.AppendInt(append(b, `{"attempt":`...), int64(attempt), 10)
	b = appendText(append(b, `,"code":`...), e.Code)
	b = appendText(append(b, `,"type":`...), e.Type)
	b = appendText(append(b, `,"message":`...), e.Message)
	b = strconv.AppendBool(append(b, `,"retryable":`...), e.Retryable)
	if e.Details != nil {
		b = append(append(b, `,"details":`...), e.Details...)
	}
	if len(e.Backtrace) > 0 {
		b = append(b, `,"backtrace":[`...)
		for i, frame := range e.Backtrace {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendText(b, frame)
		}
		b = append(b, ']')
	}
	if workerID != "" {
		b = appendText(append(b, `,"worker_id":`...), workerID)
	}
	if e.PolicyError != "" {
		b = appendText(append(b, `,"policy_error":`...), e.PolicyError)
	}
	b = e.appendTimeout(b)
	if !at.IsZero() {
		text := spec.FormatTime(at)
		b = append(append(append(b, `,"occurred_at":"`...), text...), '"')
		b = append(append(append(b, `,"timestamp":"`...), text...), '"')
	}
	return append(b, '}')
}

// Seconds have whole milliseconds, because the limits have.
func (e WorkerError) appendTimeout(b []byte) []byte {
	if e.TimeoutKind != "" {
		b = appendText(append(b, `,"timeout_kind":`...), e.TimeoutKind)
	}
	if e.Limit > 0 {
		b = jsontext.AppendFloat(append(b, `,"limit_seconds":`...), seconds(e.Limit), 64)
		b = jsontext.AppendFloat(append(b, `,"elapsed_seconds":`...), seconds(e.Elapsed), 64)
	}
	return b
}

// maxEventErrorBytes leaves room for the rest of an event's data, which may have 24 576 bytes (docs/reference/events.md, Size of data).
const maxEventErrorBytes = 24_000

// EventError gives the `error` member of events (docs/reference/events.md, Payloads).
func (e WorkerError) EventError() []byte { return e.EventErrorWithin(maxEventErrorBytes) }

// EventErrorWithin is EventError with at most limit bytes, for events that carry it twice. What is too long is cut in the
// order of docs/reference/events.md, Size of data: stack trace to 4 096 bytes, message to 2 048, then both by halves, because escapes count too.
// Details are never part of it (docs/reference/events.md, Size of data).
func (e WorkerError) EventErrorWithin(limit int) []byte {
	trace, message := strings.Join(e.Backtrace, "\n"), e.Message
	b := e.event(message, trace)
	if len(b) > limit {
		trace = Shorten(trace, 4096)
		b = e.event(message, trace)
	}
	if len(b) > limit {
		message = Shorten(message, 2048)
		b = e.event(message, trace)
	}
	// It ends: both texts become empty, and what remains is a code and a type of at most 255 bytes each, even if every byte
	// needs six characters as an escape.
	for len(b) > limit && len(trace)+len(message) > 0 {
		trace, message = Shorten(trace, len(trace)/2), Shorten(message, len(message)/2)
		b = e.event(message, trace)
	}
	return b
}

// The order of members is fixed too: SQL cuts code and message out of the text of long notifications (ojs.error_members).
func (e WorkerError) event(message, trace string) []byte {
	b := appendText(append(make([]byte, 0, 128+len(message)+len(trace)), `{"code":`...), e.Code)
	b = appendText(append(b, `,"type":`...), e.Type)
	b = appendText(append(b, `,"message":`...), message)
	b = strconv.AppendBool(append(b, `,"retryable":`...), e.Retryable)
	if trace != "" {
		b = appendText(append(b, `,"stack_trace":`...), trace)
	}
	return append(b, '}')
}

// appendText appends s as a JSON string. AppendQuote's error speaks of invalid UTF-8 only, which cannot come this far and
// would be replaced.
func appendText(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// seconds of d, in whole ms.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
