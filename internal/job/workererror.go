package job

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
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
	// The values are those of the reference (docs/reference/jobs.md, Job error).
	maxCodeBytes      = 255 // of code and type
	maxMessageBytes   = 16_384
	maxDetailsBytes   = 65_536
	maxFrames         = 50
	maxBacktraceChars = 10_000
)

var workerErrorNames = []string{"code", "type", "message", "retryable", "details", "backtrace", "stack_trace", "rate_limit_until"}

// decodeWorkerError never fails: what does not fit is cut or replaced. A wrong kind of value counts as absent. A message that
// is no text is kept as its JSON text, because it may be the only hint that there is.
func decodeWorkerError(v jsontext.Value, lim Limits) WorkerError {
	f, _ := payload.Read(v, workerErrorNames)
	e := WorkerError{Code: label(f.Get("code")), Message: Shorten(textOf(f.Get("message")), maxMessageBytes), Retryable: true}
	if flag, ok := rawjson.Bool(f.Get("retryable")); ok {
		e.Retryable, e.RetryableSet = flag, true
	}
	e.Backtrace = frames(f.Get("backtrace"))
	if f.Get("backtrace") == nil {
		e.Backtrace = frames(f.Get("stack_trace"))
	}
	e.setDetails(f.Get("details"), lim)
	e.complete(label(f.Get("type")))
	until, _ := rawjson.Text(f.Get("rate_limit_until"))
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
	text, _ := rawjson.Text(v)
	return cutLabel(text)
}

func cutLabel(text string) string { return Shorten(strings.ReplaceAll(text, "\x00", ""), maxCodeBytes) }

// Details that are too large are replaced whole: half of a JSON text is none. The class of the error is read before details
// that are too large are dropped.
func (e *WorkerError) setDetails(v jsontext.Value, lim Limits) {
	if v == nil {
		return
	}
	if v[0] == '{' {
		for literal, value := range rawjson.Members(v) {
			if string(rawjson.Name(literal)) == "error_class" {
				e.ErrorClass = label(value)
			}
		}
		e.Details = rawjson.Compact(v)
	} else {
		e.Details = append(rawjson.AppendCompact([]byte(`{"value":`), v), '}')
	}
	// Deeper than JSON may be here counts as too large: a NACK is not refused for its details.
	if len(e.Details) > maxDetailsBytes || rawjson.Depth(e.Details) > lim.Depth() {
		e.Details = append(strconv.AppendInt([]byte(`{"truncated":true,"original_bytes":`), int64(len(e.Details)), 10), '}')
	}
}

// frames reads a backtrace: an array of strings, or one text with a frame per line. Elements that are no strings are left out.
func frames(v jsontext.Value) []string {
	var list []string
	if text, ok := rawjson.Text(v); ok {
		return splitFrames(text)
	} else if v != nil && v[0] == '[' {
		for e := range rawjson.Elements(v) {
			if text, ok := rawjson.Text(e); ok && len(list) < maxFrames {
				list = append(list, text)
			}
		}
	}
	return keptFrames(list)
}

// Windows line ends count as one.
func splitFrames(text string) []string {
	return keptFrames(strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n"))
}

func keptFrames(list []string) []string {
	if len(list) == 1 && list[0] == "" {
		return nil
	}
	return bounded(list)
}

// bounded keeps the first frames, up to 10 000 characters in all. list may be changed: it was made for this error.
func bounded(list []string) []string {
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

// textOf gives the content of a string, else the JSON text of whatever was sent as a message.
func textOf(v jsontext.Value) string {
	if text, ok := rawjson.Text(v); ok || v == nil {
		return text
	}
	return string(rawjson.Compact(v))
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

// Failure gives what retry.Decide has to know of the error; the caller adds the job. Message and details are not part of it: no
// rule may depend on texts for people.
func (e WorkerError) Failure() retry.Failure {
	return retry.Failure{
		Code: e.Code, Type: e.Type, ErrorClass: e.ErrorClass, Retryable: e.Retryable, RetryableSet: e.RetryableSet, ServerMade: e.ServerMade,
	}
}
