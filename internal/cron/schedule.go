// The functions of this file use no clock and no storage. They compute with instants and never with local times alone: when
// clocks are set back, 01:00 of the second pass comes after 01:30 of the first (docs/reference/scheduling.md, Daylight
// saving).

package cron

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// maxBytes bounds an expression. All values of all fields, listed one by one, need 600.
	maxBytes = 1024

	// Reach is how far ahead a schedule must fire to be accepted.
	Reach = 3653 * 24 * time.Hour

	// horizon is how far Next searches: a fifth Friday in February is 28 years from the next, or 40 around 2100. Without a
	// bound an expression that never fires would be searched without end.
	horizon = 41 * 366 * 24 * time.Hour
)

// ErrTimezone is in the errors of Parse about the time zone; all other errors are about the expression.
var ErrTimezone = errors.New("timezone")

// Schedule is a parsed expression in its time zone. It is read-only, so it may be used by many goroutines.
type Schedule struct {
	every  time.Duration // of @every; else 0
	fields fields
	zone   *time.Location
}

// They are replaced by fields, so all rules for fields hold for them.
var descriptors = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// Parse reads an expression of five or six fields, a descriptor such as @daily, or @every with a duration. It accepts
// expressions that never fire; whoever registers one asks Next.
func Parse(expression, timezone string) (*Schedule, error) {
	zone, err := loadZone(timezone)
	if err != nil {
		return nil, err
	}
	if len(expression) > maxBytes {
		return nil, fmt.Errorf("longer than %d bytes", maxBytes)
	}
	text := strings.Trim(expression, " \t")
	switch {
	case text == "":
		return nil, errors.New("empty")
	case strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ="):
		return nil, errors.New("a time zone belongs in the field timezone")
	case strings.HasPrefix(text, "@every"):
		every, err := parseEvery(strings.TrimPrefix(text, "@every"))
		return &Schedule{every: every, zone: zone}, err
	case text[0] == '@':
		if text = descriptors[text]; text == "" {
			return nil, errors.New("an unknown descriptor")
		}
	}
	f, err := parseFields(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' }))
	return &Schedule{fields: f, zone: zone}, err
}

// parseEvery reads the duration of @every: units from ms to h. The result is at least a second. The text is checked first,
// because ParseDuration also takes signs and other units.
func parseEvery(text string) (time.Duration, error) {
	amount := strings.TrimLeft(text, " \t")
	if amount == text || strings.Trim(amount, "0123456789.hms") != "" {
		return 0, errors.New("@every needs a duration such as 90s or 1h30m")
	}
	d, err := time.ParseDuration(amount)
	if err != nil {
		return 0, errors.New("@every needs a duration such as 90s or 1h30m")
	}
	if d > Reach {
		return 0, errors.New("it never fires within 10 years")
	}
	return max(time.Second, d.Truncate(time.Microsecond)), nil // the database keeps microseconds
}

// Next is the first run after an instant; ok is false if there is none before the horizon. With @every, the instant must be
// the latest scheduled run, or the registration. The result is in UTC. It goes from period to period of the zone, in each
// of which wall clock and instant differ by a constant, so no local time is ambiguous. A search takes longest for an
// expression that never fires: it looks at the days of 41 years.
func (s *Schedule) Next(after time.Time) (next time.Time, ok bool) {
	if s.every > 0 {
		return after.Add(s.every), true
	}
	// Seconds are the finest unit of an expression.
	at := after.Truncate(time.Second).Add(time.Second)
	for end := after.Add(horizon); at.Before(end); {
		// Each round covers one period, about half a year in zones with daylight saving.
		p := s.period(at)
		if p.last {
			p.wallEnd = end.Add(p.offset)
		}
		// A wall clock at or behind wallEnd belongs to the next period, where it is looked for again.
		if wall, ok := s.fields.next(p.from(at, s.fields.named), p.wallEnd); ok {
			return wall.Add(-p.offset).UTC(), true
		}
		// A zone without further changes has one period without an end; the horizon bounds the search there.
		if p.last {
			break
		}
		at = p.end
	}
	return time.Time{}, false
}

// Latest is the last run at or before until. There must be a run at first. With the binary search an outage of a year costs
// about 25 calls of Next; a cron that fires each minute would need half a million without it.
func (s *Schedule) Latest(first, until time.Time) time.Time {
	if s.every > 0 {
		return first.Add(until.Sub(first) / s.every * s.every)
	}
	// Binary search: Next(x) is at or before until for every x before the wanted run, and for no x after it. Steps are
	// seconds, the finest unit of an expression.
	low, high := int64(0), int64(max(0, until.Sub(first))/time.Second)+1
	for low < high {
		middle := low + (high-low)/2
		if next, ok := s.Next(first.Add(time.Duration(middle) * time.Second)); ok && !next.After(until) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 {
		return first
	}
	latest, _ := s.Next(first.Add(time.Duration(low-1) * time.Second))
	return latest
}

// Skipped are the local times of the schedule between two instants that do not exist, because clocks were set forward. It
// returns one per such change, as the instant that the old offset would give. Expressions whose hour field begins with *
// have none: they fire at the next time that exists.
func (s *Schedule) Skipped(after, until time.Time) []time.Time {
	if s.every > 0 || !s.fields.named {
		return nil
	}
	var skipped []time.Time
	for at := after; ; {
		p := s.period(at)
		if p.last || p.end.After(until) {
			return skipped
		}
		// The gap lies between what clocks show at the end of one period and at the start of the next; if they are set back
		// it is empty.
		following := s.period(p.end)
		if wall, ok := s.fields.next(p.wallEnd, following.wallStart); ok {
			skipped = append(skipped, wall.Add(-p.offset).UTC())
		}
		at = p.end
	}
}

// period is a time span with one offset from UTC. Wall clocks (local times) are represented as times in UTC. end is
// exclusive. wallStart and wallEnd are what clocks show at its start and end by its own offset. repeatedUntil is zero at
// the beginning of time, and before wallStart if clocks were set forward.
type period struct {
	offset             time.Duration
	end                time.Time
	wallStart, wallEnd time.Time
	repeatedUntil      time.Time // wall clocks from wallStart to here were also in the period before
	last               bool      // it has no end
}

var farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// period is the one that contains an instant. It depends on the database of time zones in the binary only.
func (s *Schedule) period(at time.Time) period {
	local := at.In(s.zone)
	_, seconds := local.Zone()
	p := period{offset: time.Duration(seconds) * time.Second}
	start, end := local.ZoneBounds()
	if p.last = end.IsZero(); p.last {
		end = farFuture
	} else if !end.After(at) {
		// After the last transition in the database, Go 1.26 ends each year after 365 days, so the last day of a leap year is
		// outside its period.
		end = at.Add(time.Hour)
	}
	// All wall clocks of a period are computed with its own offset, also the one at its end.
	p.end, p.wallEnd = end.UTC(), end.UTC().Add(p.offset)
	if !start.IsZero() {
		_, before := start.Add(-time.Nanosecond).Zone()
		p.wallStart = start.UTC().Add(p.offset)
		p.repeatedUntil = start.UTC().Add(time.Duration(before) * time.Second)
	}
	return p
}

// from is the wall clock at which the search for a run begins. Named hours run only in the first pass of a repeated hour.
// Other expressions run in both passes.
func (p period) from(at time.Time, named bool) time.Time {
	wall := at.UTC().Add(p.offset)
	// These wall clocks had their run in the period before.
	if named && p.repeatedUntil.After(wall) {
		return p.repeatedUntil
	}
	return wall
}
