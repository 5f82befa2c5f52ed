package job

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
)

// WorkerError is why an attempt failed, normalised (docs/reference/jobs.md, Job error): what a worker reported, or what the
// server found out by itself, see ServerError. Everything in it is bounded, because a job keeps all its failures in one row and
// shows them in one answer.
type WorkerError struct {
	Code         string // never empty
	Type         string // never empty
	Message      string // never empty
	Retryable    bool   // true unless the worker said false
	RetryableSet bool   // the worker said it
	ErrorClass   string // details.error_class
	Details      []byte // compact object; nil: none
	Backtrace    []string

	// No job of the same limit key starts before it (docs/reference/limits.md, When a job may start).
	RateLimitUntil time.Time // zero: none

	PolicyError string // why the job's retry policy was not applied; "": it was

	ServerMade  string // the code, if the server made it
	TimeoutKind string
	Limit       time.Duration // 0: none
	Elapsed     time.Duration
}

const (
	// maxCodeBytes and the others are those of the reference (docs/reference/jobs.md, Job error).
	maxCodeBytes      = 255 // of code and type
	maxMessageBytes   = 16_384
	maxDetailsBytes   = 65_536
	maxFrames         = 50
	maxBacktraceChars = 10_000
)

var workerErrorNames = []string{"code", "type", "message", "retryable", "details", "backtrace", "stack_trace", "rate_limit_until"}

// decodeWorkerError never fails: what does not fit is cut or replaced. A wrong kind of value counts as absent. A message that
// is no text is kept as its JSON text, because it may be the only hint that there is.
func decodeWorkerError(v jsontext.Value) WorkerError {
	f := jsonread.Open(v, workerErrorNames...)
	sent := f.Get("message")
	message, isText := jsonread.Text(sent)
	if !isText && sent != nil {
		message = string(jsonread.Compact(sent))
	}
	e := WorkerError{Code: label(f.Get("code")), Message: Shorten(message, maxMessageBytes), Retryable: true}
	if flag, ok := jsonread.Bool(f.Get("retryable")); ok {
		e.Retryable, e.RetryableSet = flag, true
	}
	e.Backtrace = frames(f.Get("backtrace"))
	if f.Get("backtrace") == nil {
		e.Backtrace = frames(f.Get("stack_trace"))
	}
	e.setDetails(f.Get("details"))
	e.complete(label(f.Get("type")))
	until, _ := jsonread.Text(f.Get("rate_limit_until"))
	// What is no time is passed over, like all that an error says wrongly.
	e.RateLimitUntil, _ = ParseTime(until)
	return e
}

// complete fills what may not be empty. kind is the type that was sent. The order of the alternatives is that of
// docs/reference/jobs.md, Job error.
func (e *WorkerError) complete(kind string) {
	e.Code = cmp.Or(e.Code, "handler_error")
	e.Type = cmp.Or(kind, e.ErrorClass, e.Code)
	e.Message = cmp.Or(e.Message, e.Type)
}

// label reads a code, type or class: lists group by them in SQL, where U+0000 cannot stand, so it goes.
func label(v jsontext.Value) string {
	text, _ := jsonread.Text(v)
	return Shorten(strings.ReplaceAll(text, "\x00", ""), maxCodeBytes)
}

// setDetails replaces details that are too large whole: half of a JSON text is none. The class of the error is read before details
// that are too large are dropped.
func (e *WorkerError) setDetails(v jsontext.Value) {
	if v == nil {
		return
	}
	if v[0] == '{' {
		for literal, value := range jsonread.Members(v) {
			if string(jsonread.Name(literal)) == "error_class" {
				e.ErrorClass = label(value)
			}
		}
		e.Details = jsonread.Compact(v)
	} else {
		e.Details = append(jsonread.AppendCompact([]byte(`{"value":`), v), '}')
	}
	// Deeper than JSON may be here counts as too large: a NACK is not refused for its details.
	if len(e.Details) > maxDetailsBytes || jsonread.Depth(e.Details) > MaxNesting {
		e.Details = append(strconv.AppendInt([]byte(`{"truncated":true,"original_bytes":`), int64(len(e.Details)), 10), '}')
	}
}

// frames reads a backtrace: an array of strings, or one text with a frame per line, where Windows line ends count as one. Elements that
// are no strings are left out. It keeps the first frames, up to 10 000 characters in all.
func frames(v jsontext.Value) []string {
	var list []string
	if text, ok := jsonread.Text(v); ok {
		list = strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	} else if v != nil && v[0] == '[' {
		for e := range jsonread.Elements(v) {
			if text, ok := jsonread.Text(e); ok && len(list) < maxFrames {
				list = append(list, text)
			}
		}
	}
	if len(list) == 1 && list[0] == "" {
		return nil
	}
	left := maxBacktraceChars
	for i, frame := range list {
		if i == maxFrames || left == 0 {
			return list[:i]
		}
		if n := utf8.RuneCountInString(frame); n <= left {
			left -= n
			continue
		}
		list[i] = string([]rune(frame)[:left])
		return list[:i+1]
	}
	return list
}

// Shorten cuts s to at most n bytes, between characters. s must be valid UTF-8, which JSON and gRPC guarantee here.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Failure gives what DecideFailure has to know of the error; the caller adds the job. Message and details are not part of it: no
// rule may depend on texts for people.
func (e WorkerError) Failure() Failure {
	return Failure{
		Code: e.Code, Type: e.Type, ErrorClass: e.ErrorClass, Retryable: e.Retryable,
		RetryableSet: e.RetryableSet, ServerMade: e.ServerMade,
	}
}

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
		b = jsonread.AppendTexts(append(b, `,"backtrace":`...), e.Backtrace)
	}
	if workerID != "" {
		b = appendText(append(b, `,"worker_id":`...), workerID)
	}
	if e.PolicyError != "" {
		b = appendText(append(b, `,"policy_error":`...), e.PolicyError)
	}
	if e.TimeoutKind != "" {
		b = appendText(append(b, `,"timeout_kind":`...), e.TimeoutKind)
	}
	if e.Limit > 0 { // whole milliseconds, because the limits have
		b = jsontext.AppendFloat(append(b, `,"limit_seconds":`...), seconds(e.Limit), 64)
		b = jsontext.AppendFloat(append(b, `,"elapsed_seconds":`...), seconds(e.Elapsed), 64)
	}
	if !at.IsZero() {
		text := spec.FormatTime(at)
		b = append(append(append(b, `,"occurred_at":"`...), text...), '"')
		b = append(append(append(b, `,"timestamp":"`...), text...), '"')
	}
	return append(b, '}')
}

// maxEventErrorBytes leaves room for the rest of an event's data, which may have 24 576 bytes (docs/reference/events.md, Size of data).
const maxEventErrorBytes = 24_000

// EventError gives the `error` member of events (docs/reference/events.md, Payloads).
func (e WorkerError) EventError() []byte { return e.EventErrorWithin(maxEventErrorBytes) }

// EventErrorWithin is EventError with at most limit bytes, for events that carry it twice. What is too long is cut in the order of
// docs/reference/events.md, Size of data: stack trace to 4 096 bytes, message to 2 048, then both by halves, because escapes count too.
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

// event has a fixed order of members, too: SQL cuts code and message out of the text of long notifications and of stored errors
// (ojs.error_brief).
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

// Codes of failures that the server finds out by itself (docs/reference/retries.md, Server-made errors).
// They are stored with jobs, and clients compare them. SQL writes some of these failures by itself (ojs.deadline_error), with
// the same codes.
const (
	VisibilityTimeout = "visibility_timeout"
	WorkerDeath       = "worker_death"
	Timeout           = "timeout"
	Stalled           = "stalled"
	TotalTimeout      = "total_timeout"
	EnqueueTTLExpired = "enqueue_ttl_expired"
	Expired           = "expired"
	RateLimited       = "rate_limited"
	Overflow          = "overflow"
	QueueDeleted      = "queue_deleted"
)

// serverError is a row of docs/reference/retries.md, Server-made errors.
type serverError struct {
	timeoutKind string
	retryable   bool
	message     string
}

var serverErrors = map[string]serverError{
	VisibilityTimeout: {"", true, "The reservation ran out before the job was acknowledged."},
	WorkerDeath:       {"", true, "The worker that held the job is dead."},
	Timeout:           {"execution", true, "The attempt ran longer than its execution timeout."},
	Stalled:           {"stalled", true, "The worker was silent for longer than the heartbeat timeout."},
	TotalTimeout:      {"total", false, "The job was not done within its total timeout."},
	EnqueueTTLExpired: {"enqueue_ttl", false, "The job was not started within its enqueue TTL."},
	Expired:           {"", false, "The job expired before it was started."},
	RateLimited:       {"", false, "The job was dropped because its rate limit was reached."},
	Overflow:          {"", false, "The job was dropped because its queue was full."},
	QueueDeleted:      {"", false, "The queue of the job was deleted."},
}

// ServerError is a failure that the server found out by itself. limit and elapsed are shown if limit is not 0.
// An unknown code is a mistake of this program, so it panics. Packages worker and queue make them, for lost reservations,
// deadlines and jobs that are dropped; the text is fixed, so that clients can group by it.
func ServerError(code string, limit, elapsed time.Duration) WorkerError {
	s, ok := serverErrors[code]
	if !ok {
		panic("job: no such server error: " + code)
	}
	return WorkerError{
		Code: code, Type: code, Message: s.message, Retryable: s.retryable, RetryableSet: true,
		ServerMade: code, TimeoutKind: s.timeoutKind, Limit: limit, Elapsed: elapsed,
	}
}
