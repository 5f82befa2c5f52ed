package cron

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the machine may have no time zone database, or an old one
)

// The functions of this file use no clock and no storage. They compute with instants and never with local times alone: when
// clocks are set back, 01:00 of the second pass comes after 01:30 of the first (docs/reference/scheduling.md, Daylight
// saving).

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

// descriptors are replaced by fields, so all rules for fields hold for them.
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
		from := at.UTC().Add(p.offset)
		// Named hours run only in the first pass of a repeated hour: these wall clocks had their run in the period before. Other
		// expressions run in both passes.
		if s.fields.named && p.repeatedUntil.After(from) {
			from = p.repeatedUntil
		}
		// A wall clock at or behind wallEnd belongs to the next period, where it is looked for again.
		if wall, ok := s.fields.next(from, p.wallEnd); ok {
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

// zoneName rejects paths outside the database of time zones. The zones of right/ count leap seconds.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)+$`)

// zones keeps names that exist only, so clients cannot fill it.
var zones sync.Map // by name; there are 600

// loadZone finds UTC, or an IANA zone by its full name. Abbreviations and offsets are ambiguous, and Local differs from node
// to node. Letter case counts (docs/reference/scheduling.md, Time zones). Two callers that load a zone at once both store
// it, which does no harm.
func loadZone(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	if !zoneName.MatchString(name) || strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return nil, fmt.Errorf("%w must be UTC or an IANA name such as Europe/Berlin", ErrTimezone)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%w is unknown; send UTC or an IANA name such as Europe/Berlin", ErrTimezone)
	}
	zones.Store(name, zone)
	return zone, nil
}

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
	named                       bool // the hour field does not begin with *: its local times fire once a day, or never if skipped
}

// parseFields returns errors that are parts of a sentence, which cronProblem completes.
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
	}{{secondField, texts[0], &f.second}, {minuteField, texts[1], &f.minute}, {hourField, texts[2], &f.hour},
		{monthField, texts[4], &f.month}} {
		// A list of values, ranges and steps. Names may be in any letter case.
		for item := range strings.SplitSeq(strings.ToUpper(part.text), ",") {
			values, err := part.field.item(item)
			if err != nil {
				return f, err
			}
			*part.set |= values
		}
	}
	month, week := texts[3], texts[5]
	// A field such as */2 counts as free although it restricts (docs/reference/scheduling.md, Expressions).
	free := func(text string) bool { return text[0] == '*' || text[0] == '?' }
	f.days.either = !free(month) && !free(week)
	for item := range strings.SplitSeq(strings.ToUpper(month), ",") {
		if err := f.days.addMonthDay(item, month == "?"); err != nil {
			return f, err
		}
	}
	for item := range strings.SplitSeq(strings.ToUpper(week), ",") {
		if err := f.days.addWeekday(item, week == "?"); err != nil {
			return f, err
		}
	}
	return f, nil
}

// item reads a value, a range or a step, in capitals. An error names the field and not the item: the item may be long.
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

// days are the two fields that choose days. A set has bit n for value n. If either is false both fields must match, which
// is the same as one field where the other takes every day.
//
// The letters L, W and # are those of docs/reference/scheduling.md, Expressions. They cannot be values of a set of days,
// because which day they mean depends on the month.
type days struct {
	ofMonth  set
	fromEnd  set  // L, L-3: that many days before the last
	nearest  set  // 15W: the weekday nearest to it, in the same month
	lastWork bool // LW

	ofWeek   set    // 0 to 6
	lastWeek set    // 5L
	nth      [6]set // 5#3 is 5 in nth[3]

	either bool // both fields restrict, so one match is enough
}

// addMonthDay reads one item of the list: L, LW, L-3, 15W, or what every field takes. whole is for ?, which stands for any
// day. An error names the field and not the item: the item may be long.
func (d *days) addMonthDay(item string, whole bool) error {
	back, isBack := strings.CutPrefix(item, "L-")
	near, isNear := strings.CutSuffix(item, "W")
	switch {
	case whole:
		item = "*"
	case item == "L":
		d.fromEnd |= 1
		return nil
	case item == "LW":
		d.lastWork = true
		return nil
	// 30 days before the last exist in months of 31 days only.
	case isBack:
		n, ok := number(back)
		if !ok || n > 30 {
			return fmt.Errorf("the %s field takes L-1 to L-30", dayField.name)
		}
		d.fromEnd |= 1 << n
		return nil
	case isNear:
		n, err := dayField.value(near)
		if err == nil {
			d.nearest |= 1 << n
		}
		return err
	}
	s, err := dayField.item(item)
	d.ofMonth |= s
	return err
}

// addWeekday reads one item of the list: 5L, 5#3, or what every field takes. A bare L is refused
// (docs/reference/scheduling.md, Expressions).
func (d *days) addWeekday(item string, whole bool) error {
	last, isLast := strings.CutSuffix(item, "L")
	day, nth, isNth := strings.Cut(item, "#")
	switch {
	case whole:
		item = "*"
	case item == "L":
		return fmt.Errorf("the %s field needs a day before L, such as 5L or FRIL", weekField.name)
	case isLast:
		n, err := weekField.value(last)
		if err == nil {
			d.lastWeek |= 1 << (n % 7)
		}
		return err
	case isNth:
		n, err := weekField.value(day)
		if err != nil {
			return err
		}
		k, ok := number(nth)
		if !ok || k < 1 || k > 5 {
			return fmt.Errorf("the %s field takes #1 to #5", weekField.name)
		}
		d.nth[k] |= 1 << (n % 7)
		return nil
	}
	s, err := weekField.item(item)
	if s.has(7) { // 7 is Sunday, as 0
		s = s&^(1<<7) | 1
	}
	d.ofWeek |= s
	return err
}

// match reports whether the fields choose a day. day is a local date at midnight, represented in UTC.
func (d *days) match(day time.Time) bool {
	month := d.matchMonthDay(day)
	if d.either {
		return month || d.matchWeekday(day)
	}
	return month && d.matchWeekday(day)
}

// matchMonthDay looks at the length of the month only for expressions that need it. Most expressions have none of them, and
// a search over years looks at thousands of days.
func (d *days) matchMonthDay(day time.Time) bool {
	n := day.Day()
	if d.ofMonth.has(n) {
		return true
	}
	if d.fromEnd == 0 && d.nearest == 0 && !d.lastWork {
		return false
	}
	last := lastDay(day)
	if d.fromEnd.has(last - n) {
		return true
	}
	// A month that is too short for the day has no run for it.
	for want, ok := d.nearest.from(1); ok; want, ok = d.nearest.from(want + 1) {
		if want <= last && n == nearestWork(day, want, last) {
			return true
		}
	}
	return d.lastWork && n == nearestWork(day, last, last)
}

// matchWeekday takes 5L for the last one if a week later is another month; 5#3 compares the number of the week in the month.
func (d *days) matchWeekday(day time.Time) bool {
	w, n := int(day.Weekday()), day.Day()
	return d.ofWeek.has(w) || d.nth[(n-1)/7+1].has(w) || d.lastWeek.has(w) && n+7 > lastDay(day)
}

// lastDay is day 0 of the next month.
func lastDay(day time.Time) int {
	return time.Date(day.Year(), day.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// nearestWork is the Monday to Friday nearest to day n of the month. It stays in the month: the 1st, a Saturday, becomes
// Monday the 3rd, and the last, a Sunday, the Friday before.
func nearestWork(month time.Time, n, last int) int {
	// No zone is needed: the day of the week of a date is the same everywhere.
	switch time.Date(month.Year(), month.Month(), n, 0, 0, 0, 0, time.UTC).Weekday() {
	case time.Saturday:
		if n == 1 {
			return 3
		}
		return n - 1
	case time.Sunday:
		if n == last {
			return n - 2
		}
		return n + 1
	}
	return n
}
