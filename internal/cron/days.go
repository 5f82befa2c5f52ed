package cron

import (
	"fmt"
	"strings"
	"time"
)

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

// Items are compared in capitals, so names may be in any letter case.
func parseDays(month, week string) (d days, err error) {
	// A field such as */2 counts as free although it restricts (docs/reference/scheduling.md, Expressions).
	free := func(text string) bool { return text[0] == '*' || text[0] == '?' }
	d.either = !free(month) && !free(week)
	for item := range strings.SplitSeq(strings.ToUpper(month), ",") {
		if err := d.addMonthDay(item, month == "?"); err != nil {
			return d, err
		}
	}
	for item := range strings.SplitSeq(strings.ToUpper(week), ",") {
		if err := d.addWeekday(item, week == "?"); err != nil {
			return d, err
		}
	}
	return d, nil
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
	return d.lastWork && n == nearestWorkBefore(day, last)
}

// 5L is the last one if a week later is another month; 5#3 compares the number of the week in the month.
func (d *days) matchWeekday(day time.Time) bool {
	w, n := int(day.Weekday()), day.Day()
	return d.ofWeek.has(w) || d.nth[(n-1)/7+1].has(w) || d.lastWeek.has(w) && n+7 > lastDay(day)
}

// Day 0 of the next month is the last of this one.
func lastDay(day time.Time) int {
	return time.Date(day.Year(), day.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// nearestWork is the Monday to Friday nearest to day n of the month. It stays in the month: the 1st, a Saturday, becomes
// Monday the 3rd, and the last, a Sunday, the Friday before.
func nearestWork(month time.Time, n, last int) int {
	switch weekday(month, n) {
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

// nearestWorkBefore is the last Monday to Friday up to day n. LW uses it with the last day of the month.
func nearestWorkBefore(month time.Time, n int) int {
	switch weekday(month, n) {
	case time.Saturday:
		return n - 1
	case time.Sunday:
		return n - 2
	}
	return n
}

// The zone does not matter: the day of the week of a date is the same everywhere.
func weekday(month time.Time, n int) time.Weekday {
	return time.Date(month.Year(), month.Month(), n, 0, 0, 0, 0, time.UTC).Weekday()
}
