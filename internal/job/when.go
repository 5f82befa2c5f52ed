package job

import (
	"context"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/jsonread"
)

// When is a point in time as a client gave it. The zero value was not sent. A relative one is resolved by the statement that
// stores the job, so that a queue in memory or the clock of a node does not move it.
type When struct {
	Set      bool
	At       time.Time // absolute, cut to microseconds; its text is echoed by Extra
	Relative bool      // In counts from the database's now; the store adds the echo of what it resolves to
	In       time.Duration
}

// ResolveAges turns ages into the times that lie so long before now. It asks the clock only if there is an age.
// Of several ages all are counted from one moment. After an error some points may be resolved
// and others not; the caller gives up.
func ResolveAges(ctx context.Context, databaseTime func(context.Context) (time.Time, error), points ...*When) error {
	var now time.Time
	for _, w := range points {
		if !w.Relative {
			continue
		}
		if now.IsZero() {
			var err error
			if now, err = databaseTime(ctx); err != nil {
				return err
			}
		}
		*w = When{Set: true, At: now.Add(-w.In)}
	}
	return nil
}

// Latest is the latest of the times; zero if all are zero.
func Latest(times ...time.Time) (last time.Time) {
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// Earliest is the earliest of the times that are not zero; zero if all are zero. Zero stands for an absent bound in both
// functions, so they combine bounds of which some are not set.
func Earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// parseWhen reads a time, or a duration with or without a leading + (docs/reference/jobs.md, Times and durations).
// A date is tried first: no time is a valid duration.
func parseWhen(s string) (When, bool) {
	if at, ok := ParseTime(s); ok {
		return When{Set: true, At: at}, true
	}
	d, err := jsonread.ParseDuration(strings.TrimPrefix(s, "+"))
	if err != nil {
		return When{}, false
	}
	return When{Set: true, Relative: true, In: d}, true
}

// ParseTime reads an RFC 3339 time, also in the forms of docs/reference/jobs.md, Times and durations. Go's readers check the
// calendar, but they let pass one-digit hours, decimal commas and offsets of 24 h, so the shape is checked here.
// The result has whole microseconds, as the database stores them, so that a time which a client reads back is that which it sent. The
// text that is shown stays that of the client.
func ParseTime(s string) (time.Time, bool) {
	text, ok := canonicalTime(s)
	if !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	t = t.Truncate(time.Microsecond)
	// The zero time, which stands for no time elsewhere and which Go clients send by accident, becomes the next one.
	if t.IsZero() {
		t = t.Add(time.Microsecond)
	}
	return t, err == nil
}

// canonicalTime completes the form of a time: basic to extended, seconds and the minutes of the offset added.
func canonicalTime(s string) (string, bool) {
	const minutes, seconds = len("dddd-dd-ddTdd:dd"), len("dddd-dd-ddTdd:dd:dd")
	if len(s) > len("ddddddddTdddd") && shaped(s[:len("ddddddddTdddd")], "ddddddddTdddd") {
		rest := s[len("ddddddddTdddd"):]
		if len(rest) > 2 && shaped(rest[:2], "dd") {
			rest = ":" + rest
		}
		s = s[:4] + "-" + s[4:6] + "-" + s[6:11] + ":" + s[11:13] + rest
	}
	if len(s) <= minutes || !shaped(s[:minutes], "dddd-dd-ddTdd:dd") {
		return "", false
	}
	if s[minutes] != ':' { // without seconds there is no fraction
		zone, ok := canonicalZone(s[minutes:])
		return s[:minutes] + ":00" + zone, ok
	}
	if len(s) <= seconds || !shaped(s[minutes:seconds], ":dd") {
		return "", false
	}
	rest := s[seconds:]
	fraction := 0
	if rest[0] == '.' {
		fraction = len(rest) - len(strings.TrimLeft(rest[1:], "0123456789"))
		if fraction < 2 || fraction > 10 {
			return "", false
		}
	}
	zone, ok := canonicalZone(rest[fraction:])
	return s[:seconds+fraction] + zone, ok
}

// canonicalZone makes ±hh:mm of ±hhmm and ±hh.
func canonicalZone(s string) (string, bool) {
	if s == "Z" {
		return s, true
	}
	if s == "" || s[0] != '+' && s[0] != '-' {
		return "", false
	}
	switch digits := s[1:]; {
	case shaped(digits, "dd"):
		s += ":00"
	case shaped(digits, "dddd"):
		s = s[:3] + ":" + s[3:]
	case !shaped(digits, "dd:dd"):
		return "", false
	}
	return s, s[1:3] < "24" && s[4:] < "60"
}

// shaped compares s with a pattern in which d stands for a digit.
func shaped(s, pattern string) bool {
	if len(s) != len(pattern) {
		return false
	}
	for i := range len(s) {
		if isDigit := s[i] >= '0' && s[i] <= '9'; pattern[i] == 'd' && !isDigit || pattern[i] != 'd' && s[i] != pattern[i] {
			return false
		}
	}
	return true
}

// future reports whether w lies ahead. It only serves to refuse a contradiction; what a job waits for is decided by a statement.
// It knows the time of the database from package clock.
func (w When) future() bool {
	if w.Relative {
		return w.In > 0
	}
	return w.Set && w.At.After(clock.Now())
}

// ParseAge reads a time, or an age: Relative then means that long before now.
func ParseAge(text string) (When, bool) {
	w, ok := parseWhen(text)
	return w, ok && !strings.HasPrefix(text, "+")
}
