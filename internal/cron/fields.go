package cron

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// set has bit n for each value n. Values are 0 to 59 at most, so 64 bits hold every field.
type set uint64

func (s set) has(n int) bool { return s&(1<<n) != 0 }

// from is the smallest value of at least n. ok is false if there is none.
func (s set) from(n int) (int, bool) {
	rest := s >> n << n
	return bits.TrailingZeros64(uint64(rest)), rest != 0
}

// field describes the valid values of one field. low and high are the smallest and the largest value that an expression may
// name.
type field struct {
	name      string
	low, high int
	names     string // of values from low on, three letters each
}

var (
	secondField = field{"second", 0, 59, ""}
	minuteField = field{"minute", 0, 59, ""}
	hourField   = field{"hour", 0, 23, ""}
	dayField    = field{"day-of-month", 1, 31, ""}
	monthField  = field{"month", 1, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"}
	weekField   = field{"day-of-week", 0, 7, "SUNMONTUEWEDTHUFRISAT"}
)

// fields is an expression of five or six fields. named decides what daylight saving does (docs/reference/scheduling.md,
// Daylight saving).
type fields struct {
	second, minute, hour, month set
	days                        days
	named                       bool // the hour field does not begin with *: its local times fire once a day, or never if the clock skips them
}

// Errors are parts of a sentence, which cronProblem completes.
func parseFields(texts []string) (f fields, err error) {
	if len(texts) == 5 {
		texts = append([]string{"0"}, texts...)
	}
	if len(texts) != 6 {
		return f, fmt.Errorf("it has %d fields, not 5 or 6", len(texts))
	}
	// Index 2 is the hour, as a second is in front of all fields by now.
	f.named = texts[2][0] != '*'
	for _, part := range []struct {
		field field
		text  string
		set   *set
	}{{secondField, texts[0], &f.second}, {minuteField, texts[1], &f.minute}, {hourField, texts[2], &f.hour}, {monthField, texts[4], &f.month}} {
		if *part.set, err = part.field.parse(part.text); err != nil {
			return f, err
		}
	}
	f.days, err = parseDays(texts[3], texts[5])
	return f, err
}

// parse reads a list of values, ranges and steps. An error of one item fails the list, and names the field.
func (f field) parse(text string) (values set, err error) {
	for item := range strings.SplitSeq(strings.ToUpper(text), ",") {
		s, err := f.item(item)
		if err != nil {
			return 0, err
		}
		values |= s
	}
	return values, nil
}

// a/n means from a to the maximum, a alone only a.
func (f field) item(text string) (set, error) {
	span, stepText, stepped := strings.Cut(text, "/")
	low, high := f.low, f.high
	if span != "*" {
		first, last, ranged := strings.Cut(span, "-")
		var err error
		if low, err = f.value(first); err != nil {
			return 0, err
		}
		if ranged {
			if high, err = f.value(last); err != nil {
				return 0, err
			}
		} else if !stepped {
			high = low
		}
	}
	step := 1
	if stepped {
		var ok bool
		if step, ok = number(stepText); !ok || step == 0 {
			return 0, fmt.Errorf("the %s field has a step that is not a positive number", f.name)
		}
	}
	if low > high {
		return 0, fmt.Errorf("the %s field has a reversed range", f.name)
	}
	var values set
	// A step above the range leaves its first value.
	for n := low; n <= high; n += step {
		values |= 1 << n
	}
	return values, nil
}

// value reads a number or a name in capitals.
func (f field) value(text string) (int, error) {
	// Positions that are no multiple of three lie across two names.
	if i := strings.Index(f.names, text); len(text) == 3 && i >= 0 && i%3 == 0 {
		return f.low + i/3, nil
	}
	n, ok := number(text)
	switch {
	case !ok:
		return 0, fmt.Errorf("the %s field has something that is no value", f.name)
	case n < f.low || n > f.high:
		return 0, fmt.Errorf("the %s field takes values from %d to %d", f.name, f.low, f.high)
	}
	return n, nil
}

// number reads up to four digits and nothing else. Four digits are enough for every value and step, and cannot overflow.
func number(text string) (int, bool) {
	if text == "" || len(text) > 4 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// next is the first matching local time at or after from and before end. It steps by months and days, so a year takes at
// most a few hundred steps; from and end are wall clocks represented in UTC, where every day has 24 hours.
func (f *fields) next(from, end time.Time) (time.Time, bool) {
	clock := from.Sub(from.Truncate(24 * time.Hour))
	for day := from.Add(-clock); day.Before(end); clock = 0 {
		if !f.month.has(int(day.Month())) {
			day = time.Date(day.Year(), day.Month()+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		// On the first day the search begins at its time, on all others at midnight.
		if f.days.match(day) {
			if at, ok := f.clock(clock); ok {
				return day.Add(at), day.Add(at).Before(end)
			}
		}
		day = day.Add(24 * time.Hour)
	}
	return time.Time{}, false
}

// clock is the first matching time of a day at or after from. Lower fields are searched from their start as soon as a
// higher one has moved on. m and s are the bounds of the first hour only.
func (f *fields) clock(from time.Duration) (time.Duration, bool) {
	h, m, s := int(from/time.Hour), int(from/time.Minute%60), int(from/time.Second%60)
	for hour, ok := f.hour.from(h); ok; hour, ok = f.hour.from(hour + 1) {
		if hour > h {
			m, s = 0, 0
		}
		for minute, ok := f.minute.from(m); ok; minute, ok = f.minute.from(minute + 1) {
			if minute > m {
				s = 0
			}
			if second, ok := f.second.from(s); ok {
				return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second, true
			}
			s = 0
		}
		m, s = 0, 0
	}
	return 0, false
}
