package jsonread

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// The two forms of durations in requests and responses (docs/reference/jobs.md, Times and durations): ISO 8601 with fixed lengths for year
// (365 d) and month (30 d), and the short form of SDKs and the CLI, such as 500ms or 7d. No library fits: the grammar excludes signs, lower
// case and fractions outside seconds.

// MaxDuration is the longest duration that is accepted (docs/reference/http.md, Bodies): 36 500 days. time.Duration holds 292 years, so
// the sum of two does not overflow.
const MaxDuration = 36500 * 24 * time.Hour

const day = 24 * time.Hour

var (
	errSyntax = errors.New("not a duration")
	errRange  = errors.New("longer than 36500 days")
)

// unit is a component of the ISO form; components must keep this order, dates before the T, times after it.
type unit struct {
	letter byte
	length time.Duration
}

var (
	dateUnits = []unit{{'Y', 365 * day}, {'M', 30 * day}, {'W', 7 * day}, {'D', day}}
	timeUnits = []unit{{'H', time.Hour}, {'M', time.Minute}, {'S', time.Second}}
)

// ParseISODuration reads P[nY][nM][nW][nD][T[nH][nM][n[.f]S]] with at least one component. The result is rounded to ms.
// The error says only what kind of mistake it is; callers name the field and repeat the value. Negative durations and lower
// case are errors.
func ParseISODuration(s string) (time.Duration, error) {
	rest, ok := strings.CutPrefix(s, "P")
	if !ok || rest == "" {
		return 0, errSyntax
	}
	date, clock, hasT := strings.Cut(rest, "T")
	if hasT && clock == "" {
		return 0, errSyntax
	}
	d, err := components(date, dateUnits)
	if err != nil {
		return 0, err
	}
	t, err := components(clock, timeUnits)
	if err != nil {
		return 0, err
	}
	// Each sum is below Max already, so this one cannot overflow.
	if d+t > MaxDuration {
		return 0, errRange
	}
	return (d + t).Round(time.Millisecond), nil
}

// components sums "nXnY…". Units must have the order of units, each at most once. Each unit that was passed over is gone, which
// keeps the order and refuses repetitions.
func components(s string, units []unit) (time.Duration, error) {
	var sum time.Duration
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if i < 0 {
			return 0, errSyntax
		}
		for len(units) > 0 && units[0].letter != s[i] {
			units = units[1:]
		}
		if len(units) == 0 {
			return 0, errSyntax
		}
		d, err := amount(s[:i], units[0].length, s[i] == 'S')
		if err != nil {
			return 0, err
		}
		sum += d
		if sum > MaxDuration {
			return 0, errRange
		}
		units, s = units[1:], s[i+1:]
	}
	return sum, nil
}

// amount is number × length. number consists of digits, with a fraction only if fraction is set. The bound is checked in
// floating point before the multiplication, which therefore cannot overflow. digits refuses signs and exponents, which
// ParseFloat would take.
func amount(number string, length time.Duration, fraction bool) (time.Duration, error) {
	whole, frac, hasPoint := strings.Cut(number, ".")
	if !digits(whole) || hasPoint && (!fraction || !digits(frac)) {
		return 0, errSyntax
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n > float64(MaxDuration)/float64(length) {
		return 0, errRange
	}
	if !hasPoint {
		return time.Duration(n) * length, nil // exact: n is a whole number below 2^53
	}
	return time.Duration(math.Round(n * float64(length))), nil
}

func digits(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }) < 0
}

// ParseDuration reads the ISO form or the short form <number><ms|s|m|h|d|w>. A P decides which form it is: no short form begins with
// one.
func ParseDuration(s string) (time.Duration, error) {
	if strings.HasPrefix(s, "P") {
		return ParseISODuration(s)
	}
	i := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if i < 0 {
		return 0, errSyntax
	}
	length, ok := shortUnit(s[i:])
	if !ok {
		return 0, errSyntax
	}
	d, err := amount(s[:i], length, true)
	return d.Round(time.Millisecond), err
}

// shortUnit takes m for a minute; the short form has no months and years.
func shortUnit(s string) (time.Duration, bool) {
	switch s {
	case "ms":
		return time.Millisecond, true
	case "s":
		return time.Second, true
	case "m":
		return time.Minute, true
	case "h":
		return time.Hour, true
	case "d":
		return day, true
	case "w":
		return 7 * day, true
	default:
		return 0, false
	}
}

// FormatDuration prints d, cut to ms, with hours, minutes and seconds only: PT36H, PT1.5S, PT0S. The result is read by ParseISO. Days
// are written as hours, because clients differ in what a day is.
func FormatDuration(d time.Duration) string {
	h, m := d/time.Hour, d%time.Hour/time.Minute
	ms := int64(d % time.Minute / time.Millisecond)
	out := []byte("PT")
	if h > 0 {
		out = append(strconv.AppendInt(out, int64(h), 10), 'H')
	}
	if m > 0 {
		out = append(strconv.AppendInt(out, int64(m), 10), 'M')
	}
	if ms > 0 || h == 0 && m == 0 {
		out = append(strconv.AppendFloat(out, float64(ms)/1000, 'f', -1, 64), 'S')
	}
	return string(out)
}
