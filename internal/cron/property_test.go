package cron

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// walker finds firings by looking at every minute of real time, with rules of its own.
type walker struct {
	fields [5]string
	zone   *time.Location
}

func (w walker) next(after time.Time, minutes int) (time.Time, bool) {
	at := after.UTC().Truncate(time.Minute)
	for range minutes {
		at = at.Add(time.Minute)
		if w.fires(at) {
			return at, true
		}
	}
	return time.Time{}, false
}

func (w walker) fires(at time.Time) bool {
	l := at.In(w.zone)
	if !among(w.fields[0], l.Minute(), 59) || !among(w.fields[1], l.Hour(), 23) || !among(w.fields[3], int(l.Month()), 12) || !w.day(l) {
		return false
	}
	return strings.HasPrefix(w.fields[1], "*") || !w.shownBefore(at)
}

// shownBefore: the same local time was there within the last three hours already.
func (w walker) shownBefore(at time.Time) bool {
	clock := func(t time.Time) int64 {
		_, offset := t.In(w.zone).Zone()
		return t.Unix() + int64(offset)
	}
	if clock(at)-clock(at.Add(-3*time.Hour)) == 3*3600 {
		return false // no change, so no time twice
	}
	for back := time.Minute; back <= 3*time.Hour; back += time.Minute {
		if clock(at.Add(-back)) == clock(at) {
			return true
		}
	}
	return false
}

func (w walker) day(l time.Time) bool {
	inMonth, inWeek := false, false
	for item := range strings.SplitSeq(w.fields[2], ",") {
		inMonth = inMonth || w.monthItem(item, l)
	}
	for item := range strings.SplitSeq(w.fields[4], ",") {
		inWeek = inWeek || w.weekItem(item, l)
	}
	if w.fields[2][0] == '*' || w.fields[4][0] == '*' {
		return inMonth && inWeek
	}
	return inMonth || inWeek
}

func (w walker) monthItem(item string, l time.Time) bool {
	last := time.Date(l.Year(), l.Month()+1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, -1)
	switch {
	case item == "L":
		return l.Day() == last.Day()
	case strings.HasPrefix(item, "L-"):
		n, _ := strconv.Atoi(item[2:])
		return l.Day() == last.AddDate(0, 0, -n).Day() && n < last.Day()
	case item == "LW":
		for last.Weekday() == time.Saturday || last.Weekday() == time.Sunday {
			last = last.AddDate(0, 0, -1)
		}
		return l.Day() == last.Day()
	case strings.HasSuffix(item, "W"):
		n, _ := strconv.Atoi(strings.TrimSuffix(item, "W"))
		best, distance := 0, 99
		for day := 1; day <= last.Day() && n <= last.Day(); day++ {
			weekday := time.Date(l.Year(), l.Month(), day, 0, 0, 0, 0, time.UTC).Weekday()
			if d := max(day-n, n-day); weekday != time.Saturday && weekday != time.Sunday && d < distance {
				best, distance = day, d
			}
		}
		return l.Day() == best
	}
	return among(item, l.Day(), 31)
}

func (w walker) weekItem(item string, l time.Time) bool {
	weekday := int(l.Weekday())
	is := func(days string) bool { return among(days, weekday, 7) || weekday == 0 && among(days, 7, 7) } // 7 is Sunday, too
	if day, nth, ok := strings.Cut(item, "#"); ok {
		n, _ := strconv.Atoi(nth)
		return is(day) && (l.Day()+6)/7 == n
	}
	if day, ok := strings.CutSuffix(item, "L"); ok {
		return is(day) && l.AddDate(0, 0, 7).Month() != l.Month()
	}
	return is(item)
}

// among reads lists of numbers, ranges and steps.
func among(field string, n, highest int) bool {
	for item := range strings.SplitSeq(field, ",") {
		span, step, stepped := strings.Cut(item, "/")
		low, high := 0, highest
		if highest == 12 || highest == 31 {
			low = 1
		}
		if span != "*" {
			first, last, ranged := strings.Cut(span, "-")
			low, _ = strconv.Atoi(first)
			switch {
			case ranged:
				high, _ = strconv.Atoi(last)
			case !stepped:
				high = low
			}
		}
		by := 1
		if stepped {
			by, _ = strconv.Atoi(step)
		}
		if n >= low && n <= high && (n-low)%by == 0 {
			return true
		}
	}
	return false
}

// TestWalk: what the property compares with must itself know the forms whose meaning two numbers share.
func TestWalk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ week, zone, after, want string }{
		{"0L", "Europe/Berlin", "2026-03-29T01:00Z", "2026-03-29T01:01Z"},
		{"7L", "Europe/Berlin", "2026-03-29T01:00Z", "2026-03-29T01:01Z"},
		{"0#1", "UTC", "2026-03-31T00:00Z", "2026-04-01T00:00Z"}, // by its day of the month
		{"7#1", "UTC", "2026-04-04T23:30Z", "2026-04-05T00:00Z"},
		{"7#4", "UTC", "2026-04-25T23:30Z", "2026-04-26T00:00Z"},
	} {
		w := walker{fields: [5]string{"*", "*", "1", "*", c.week}}
		s := parse(t, strings.Join(w.fields[:], " "), c.zone)
		w.zone = s.zone
		walked, ok := w.next(at(t, c.after), 3*24*60)
		require.True(t, ok, c)
		require.Equal(t, at(t, c.want), walked, c)
		found, ok := s.Next(at(t, c.after))
		require.True(t, ok, c)
		require.Equal(t, at(t, c.want), found, c)
	}
}

func drawField(t *rapid.T, name string, low, high int, special ...string) string {
	item := rapid.Custom(func(t *rapid.T) string {
		a := rapid.IntRange(low, high).Draw(t, "a")
		b := rapid.IntRange(a, high).Draw(t, "b")
		step := rapid.IntRange(1, high).Draw(t, "step")
		forms := []string{"*", strconv.Itoa(a), fmt.Sprintf("%d-%d", a, b), fmt.Sprintf("*/%d", step), fmt.Sprintf("%d/%d", a, step), fmt.Sprintf("%d-%d/%d", a, b, step)}
		return rapid.SampledFrom(append(forms, special...)).Draw(t, "form")
	})
	return strings.Join(rapid.SliceOfN(item, 1, 3).Draw(t, name), ",")
}

// Every firing is the one that a walk through all minutes finds, around changes of clocks in particular.
func TestNextIsWhatAWalkFinds(t *testing.T) {
	t.Parallel()
	changes := map[string][]string{
		"UTC": {"2026-02-27T00:00:00Z"}, "America/New_York": {"2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"},
		"Europe/Berlin": {"2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"}, "Australia/Lord_Howe": {"2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"},
		"Pacific/Apia": {"2011-12-30T10:00:00Z"}, "America/Sao_Paulo": {"2018-11-04T03:00:00Z", "2018-02-18T02:00:00Z"}, // at midnight
	}
	names := make([]string, 0, len(changes))
	for name := range changes {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "zone")
		change := at(t, rapid.SampledFrom(changes[name]).Draw(t, "change"))
		after := change.Add(time.Duration(rapid.IntRange(-3*24*3600, 4*3600).Draw(t, "offset")) * time.Second)
		day, week := fmt.Sprint(rapid.IntRange(1, 31).Draw(t, "day")), fmt.Sprint(rapid.IntRange(0, 7).Draw(t, "weekday"))
		w := walker{fields: [5]string{
			drawField(t, "minute", 0, 59), drawField(t, "hour", 0, 23), drawField(t, "dom", 1, 31, "L", "L-3", "LW", day+"W"),
			drawField(t, "month", 1, 12), drawField(t, "dow", 0, 7, week+"L", week+"#1", week+"#4"),
		}}
		s := parse(t, strings.Join(w.fields[:], " "), name)
		w.zone = s.zone
		const days = 8
		want, found := w.next(after, days*24*60)
		got, ok := s.Next(after)
		if found {
			require.True(t, ok)
			require.Equal(t, want, got)
		} else if ok {
			require.True(t, got.After(after.Add((days*24*60-1)*time.Minute)), "%s is too early", got)
		}
		if ok {
			require.True(t, got.After(after), "strictly later")
			require.Equal(t, got, s.Latest(got, got))
			again, _ := s.Next(got)
			require.Equal(t, got, s.Latest(got, again.Add(-time.Second)))
			require.Equal(t, again, s.Latest(got, again))
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"* * * * *", "0 9 * * 1-5", "*/15 8-18 1,15W L-3 2 FRI#3", "0 0 LW * 5L", "@every 1h30m", "@daily", "TZ=UTC * * * * *", "59 59 23 31 12 ?", "1/7 * ? JAN SUN", "0 2 29 2 *"} {
		f.Add(text, int64(1_772_900_000))
	}
	f.Fuzz(func(t *testing.T, text string, seconds int64) {
		s, err := Parse(text, "America/New_York")
		if err != nil {
			return
		}
		after := time.Unix(seconds%4_000_000_000, 0)
		next, ok := s.Next(after)
		if ok && !next.After(after) {
			t.Fatalf("%q fires at %s, not after %s", text, next, after)
		}
		if ok && !s.Latest(next, next).Equal(next) {
			t.Fatalf("%q: %s is not its own latest", text, next)
		}
	})
}
