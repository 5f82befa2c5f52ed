package api

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// Limits of what one request may ask for.
// DefaultPage and MaxPage are items of most lists (docs/reference/http.md, Pagination). MaxFilterValues is per filter
// (docs/reference/events.md, Filters). maxReasonBytes is for the reason of a cancel.
const (
	DefaultPage     = 50
	MaxPage         = 200
	MaxFilterValues = 50
	maxReasonBytes  = 1024
)

// Storable reports whether a text fits a text column: valid UTF-8 without U+0000.
// JSON bodies are checked by their decoders; this is for parameters, headers, paths and metadata.
func Storable(text string) bool { return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 }

// CheckStorable refuses values that cannot be compared with text columns.
// The value is not repeated in the error, because it is not valid text.
func CheckStorable(parameter string, values ...string) error {
	for _, v := range values {
		if !Storable(v) {
			return spec.InvalidRequest(parameter, "valid UTF-8 without U+0000", nil, parameter+" must be valid UTF-8 without U+0000.")
		}
	}
	return nil
}

// CheckFilterSize refuses a filter of too many values.
func CheckFilterSize(parameter string, values []string) error {
	if len(values) <= MaxFilterValues {
		return nil
	}
	expected := "at most " + strconv.Itoa(MaxFilterValues) + " values"
	return spec.InvalidRequest(parameter, expected, len(values), parameter+" may have "+expected+".")
}

// ErrCursor refuses a cursor that no list has handed out.
// A cursor that was valid once and whose item is gone is no error: lists go on from its place.
func ErrCursor(cursor string) error {
	return spec.InvalidRequest("cursor", "a next_cursor of this list", cursor, "cursor must be a next_cursor that this list has returned.")
}

// ParseFilterID reads the id of a job or workflow that a filter names; nil without one.
// An id in a filter is refused if it is malformed, while one in a path is unknown.
func ParseFilterID(parameter, text string) (*[16]byte, error) {
	if text == "" {
		return nil, nil
	}
	id, ok := spec.ParseID(text)
	if !ok {
		return nil, spec.InvalidRequest(parameter, "a UUIDv7", text, parameter+" must be a lower-case UUIDv7.")
	}
	return &id, nil
}

// ParseAfter reads the event after which a list or stream of events begins; nil without one.
// Any well-formed id is accepted, whether an event has it or not.
func ParseAfter(text string) (*eventlog.Position, error) {
	if text == "" {
		return nil, nil
	}
	position, err := eventlog.ParsePosition(text)
	if err != nil {
		return nil, spec.InvalidRequest("after", "an event id", text,
			"after must be an event id, such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90.")
	}
	return &position, nil
}

// CheckQueue refuses what is no name of a queue.
func CheckQueue(parameter, name string) error {
	if job.ValidQueue(name) {
		return nil
	}
	return spec.InvalidRequest(parameter, "a queue name", name,
		"The queue name must be lower-case letters, digits, - and ., starting with a letter or digit, at most 128 bytes long.")
}

// NewCancel is the cancellation of a job by an actor, with an optional reason.
// The reason stands in the event of the job, which is bounded; hence the limit.
func NewCancel(actor, reason string) (queue.Cancel, error) {
	if len(reason) > maxReasonBytes || !Storable(reason) {
		return queue.Cancel{}, spec.InvalidRequest("reason", "a text of at most 1024 bytes", len(reason),
			"reason must be a text of at most 1024 bytes.")
	}
	return queue.Cancel{By: actor, Reason: reason}, nil
}

// CheckIdempotencyKey checks a key that came under the name of a header or metadata; shown is how the message calls it.
// The key is counted in characters, not in bytes.
func CheckIdempotencyKey(name, shown, key string) error {
	if Storable(key) && job.ValidIdempotencyKey(key) {
		return nil
	}
	return spec.InvalidRequest(name, "at most 256 characters of UTF-8", nil, shown+" must be a text of at most 256 characters, in UTF-8.")
}

// ParseBlockTimeout reads how long an enqueue may wait for room in a queue, which came as whole seconds under the name of a header or
// metadata. More than queue.LongestBlock counts as that.
// A number that does not fit 32 bits is as good as the maximum; a negative one or a fraction is refused.
func ParseBlockTimeout(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseUint(text, 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		return queue.LongestBlock, nil
	} else if err != nil {
		return 0, spec.InvalidRequest(name, "an integer of seconds from 0 to 60", nil, name+" must be an integer of seconds from 0 to 60.")
	}
	return min(time.Duration(seconds)*time.Second, queue.LongestBlock), nil
}

// EventError shows what the event log refuses.
// It also turns an outage into what clients are shown.
func EventError(err error) error { return pg.ClientError(eventlog.WireError(err)) }

// Average is 0 for none.
func Average(sum, n int64) float64 {
	if n == 0 {
		return 0
	}
	return float64(sum) / float64(n)
}
