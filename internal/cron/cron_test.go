package cron

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func parse(t require.TestingT, expression, zone string) *Schedule {
	s, err := Parse(expression, zone)
	require.NoError(t, err, "%q in %q", expression, zone)
	return s
}

func at(t require.TestingT, text string) time.Time {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if got, err := time.Parse(layout, text); err == nil {
			return got
		}
	}
	require.Fail(t, "no time", text)
	return time.Time{}
}

// firings are the first n after an instant.
func firings(t require.TestingT, s *Schedule, after string, n int) (texts []string) {
	from := at(t, after)
	for range n {
		next, ok := s.Next(from)
		require.True(t, ok)
		require.Equal(t, time.UTC, next.Location())
		texts = append(texts, next.Format("2006-01-02T15:04:05Z"))
		from = next
	}
	return texts
}

func TestNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expression, zone, after string
		want                    []string
	}{
		// Fields and steps.
		{"0 9 * * *", "Asia/Tokyo", "2026-03-01T12:00Z", []string{"2026-03-02T00:00:00Z"}},
		{"0 9 * * *", "America/New_York", "2026-03-06T20:00Z", []string{"2026-03-07T14:00:00Z", "2026-03-08T13:00:00Z"}},
		{"0 9 * * *", "", "2026-03-01T09:00Z", []string{"2026-03-02T09:00:00Z"}},

		// Changes of the clock, field by field.
		{"* * * * *", "UTC", "2026-01-01T00:00:30Z", []string{"2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"}},
		{"*/20 * * * * *", "UTC", "2026-01-01T00:00:20Z", []string{"2026-01-01T00:00:40Z", "2026-01-01T00:01:00Z"}},
		{"59 59 23 31 12 *", "UTC", "2026-01-01T00:00Z", []string{"2026-12-31T23:59:59Z", "2027-12-31T23:59:59Z"}},
		{"0,30 8-9 * * *", "UTC", "2026-01-01T08:30Z", []string{"2026-01-01T09:00:00Z", "2026-01-01T09:30:00Z", "2026-01-02T08:00:00Z"}},
		{"50/5 0 * * *", "UTC", "2026-01-01T00:00Z", []string{"2026-01-01T00:50:00Z", "2026-01-01T00:55:00Z", "2026-01-02T00:50:00Z"}},
		{"10-20/5 0 1 1 ?", "UTC", "2026-01-01T00:00Z", []string{"2026-01-01T00:10:00Z", "2026-01-01T00:15:00Z", "2026-01-01T00:20:00Z", "2027-01-01T00:10:00Z"}},
		{"0 0 1 jan,JUL *", "UTC", "2026-01-01T00:00Z", []string{"2026-07-01T00:00:00Z", "2027-01-01T00:00:00Z"}},
		{"0 0 * * mon-WED", "UTC", "2026-01-01T00:00Z", []string{"2026-01-05T00:00:00Z", "2026-01-06T00:00:00Z", "2026-01-07T00:00:00Z", "2026-01-12T00:00:00Z"}},
		{"0 0 * * 0", "UTC", "2026-01-01T00:00Z", []string{"2026-01-04T00:00:00Z"}},
		{"0 0 * * 7", "UTC", "2026-01-01T00:00Z", []string{"2026-01-04T00:00:00Z"}},
		{"0 0 * * 5-7", "UTC", "2026-01-01T00:00Z", []string{"2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z", "2026-01-09T00:00:00Z"}},
		{"0 0 L * *", "UTC", "2026-01-31T00:00Z", []string{"2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"}},
		{"0 0 L * *", "UTC", "2028-02-01T00:00Z", []string{"2028-02-29T00:00:00Z"}},
		{"0 0 L-3 * *", "UTC", "2026-01-01T00:00Z", []string{"2026-01-28T00:00:00Z", "2026-02-25T00:00:00Z"}},
		{"0 0 LW * *", "UTC", "2026-01-01T00:00Z", []string{"2026-01-30T00:00:00Z", "2026-02-27T00:00:00Z", "2026-03-31T00:00:00Z"}},
		{"0 0 LW * *", "UTC", "2026-05-01T00:00Z", []string{"2026-05-29T00:00:00Z", "2026-06-30T00:00:00Z"}},
		{"0 0 15W * *", "UTC", "2026-02-01T00:00Z", []string{"2026-02-16T00:00:00Z", "2026-03-16T00:00:00Z", "2026-04-15T00:00:00Z"}},
		{"0 0 15W * ?", "UTC", "2026-08-01T00:00Z", []string{"2026-08-14T00:00:00Z"}},
		{"0 0 1W * *", "UTC", "2026-07-31T00:00Z", []string{"2026-08-03T00:00:00Z"}},
		{"0 0 31w * *", "UTC", "2026-05-01T00:00Z", []string{"2026-05-29T00:00:00Z", "2026-07-31T00:00:00Z"}},
		{"0 0 ? * 5L", "UTC", "2026-01-01T00:00Z", []string{"2026-01-30T00:00:00Z", "2026-02-27T00:00:00Z"}},
		{"0 0 * * 7L", "UTC", "2026-03-01T00:00Z", []string{"2026-03-29T00:00:00Z", "2026-04-26T00:00:00Z"}},
		{"0 0 * * 7#1", "UTC", "2026-03-02T00:00Z", []string{"2026-04-05T00:00:00Z"}},
		{"* * 1 * 7L", "Europe/Berlin", "2026-03-29T01:00Z", []string{"2026-03-29T01:01:00Z", "2026-03-29T01:02:00Z"}},
		{"0 0 * * FRIL", "UTC", "2026-01-01T00:00Z", []string{"2026-01-30T00:00:00Z"}},
		{"0 0 * * 5#3", "UTC", "2026-01-01T00:00Z", []string{"2026-01-16T00:00:00Z", "2026-02-20T00:00:00Z"}},
		{"0 0 * * FRI#5", "UTC", "2026-01-01T00:00Z", []string{"2026-01-30T00:00:00Z", "2026-05-29T00:00:00Z"}},
		{"0 0 1,15 * 1", "UTC", "2026-01-01T00:00Z", []string{"2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-15T00:00:00Z", "2026-01-19T00:00:00Z"}},
		{"0 0 L * MON#1", "UTC", "2026-01-01T00:00Z", []string{"2026-01-05T00:00:00Z", "2026-01-31T00:00:00Z", "2026-02-02T00:00:00Z"}},
		{"0 0 */2 * 1", "UTC", "2026-01-01T00:00Z", []string{"2026-01-05T00:00:00Z", "2026-01-19T00:00:00Z"}},
		{"0 0 29 2 *", "UTC", "2026-01-01T00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"0 0 29 2 *", "UTC", "2096-03-01T00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"0 0 31 * *", "UTC", "2026-01-31T00:00Z", []string{"2026-03-31T00:00:00Z"}},
		{"@yearly", "UTC", "2026-01-01T00:00Z", []string{"2027-01-01T00:00:00Z"}},
		{"@annually", "UTC", "2026-06-01T00:00Z", []string{"2027-01-01T00:00:00Z"}},
		{"@monthly", "UTC", "2026-01-01T00:00Z", []string{"2026-02-01T00:00:00Z"}},
		{"@weekly", "UTC", "2026-01-01T00:00Z", []string{"2026-01-04T00:00:00Z"}},
		{"@daily", "UTC", "2026-01-01T00:00Z", []string{"2026-01-02T00:00:00Z"}},
		{"@midnight", "Asia/Tokyo", "2026-01-01T00:00Z", []string{"2026-01-01T15:00:00Z"}},
		{"@hourly", "UTC", "2026-01-01T00:00Z", []string{"2026-01-01T01:00:00Z"}},
		{"@every 1h30m", "UTC", "2026-01-01T00:00:07Z", []string{"2026-01-01T01:30:07Z", "2026-01-01T03:00:07Z"}},
		{"@every 500ms", "UTC", "2026-01-01T00:00Z", []string{"2026-01-01T00:00:01Z"}},

		// Intervals.
		{"*/30 * * * *", "America/New_York", "2026-11-01T04:30Z", []string{"2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T06:30:00Z", "2026-11-01T07:00:00Z"}},
		{"30 2 * * *", "America/New_York", "2026-03-06T12:00Z", []string{"2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-11-01T06:00Z", []string{"2026-11-02T06:30:00Z"}},
		{"*/30 1-2 * * *", "America/New_York", "2026-11-01T05:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-01T07:00:00Z", "2026-11-01T07:30:00Z", "2026-11-02T06:00:00Z"}},
		{"30 */2 * * *", "America/New_York", "2026-03-08T05:00Z", []string{"2026-03-08T05:30:00Z", "2026-03-08T08:30:00Z"}},
		{"0 * * * *", "America/New_York", "2026-03-08T06:00Z", []string{"2026-03-08T07:00:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-03-27T12:00Z", []string{"2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00Z", []string{"2026-10-02T15:45:00Z", "2026-10-04T15:15:00Z"}}, // half an hour
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-03T12:00Z", []string{"2026-04-03T14:45:00Z", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"0 9 * * *", "Pacific/Apia", "2011-12-29T12:00Z", []string{"2011-12-29T19:00:00Z", "2011-12-30T19:00:00Z"}}, // a day that was not
		{"0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00Z", []string{"2026-01-01T03:30:00Z"}},
	} {
		require.Equal(t, c.want, firings(t, parse(t, c.expression, c.zone), c.after, len(c.want)), "%s in %s after %s", c.expression, c.zone, c.after)
	}
}

func TestSkipped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expression, zone, after string
		want                    []string
	}{
		{"30 2 * * *", "America/New_York", "2026-03-07T07:30Z", []string{"2026-03-08T07:30:00Z"}},
		{"0,30 2 * * *", "America/New_York", "2026-03-07T07:30Z", []string{"2026-03-08T07:00:00Z"}}, // once a day
		{"0 2,3 * * *", "America/New_York", "2026-03-07T09:00Z", []string{"2026-03-08T07:00:00Z"}},
		{"30 2 * * *", "America/New_York", "2026-03-06T07:30Z", nil},
		{"30 2 * * *", "America/New_York", "2026-03-08T07:00Z", nil}, // it is past
		{"30 * * * *", "America/New_York", "2026-03-08T06:30Z", nil},
		{"30 */2 * * *", "America/New_York", "2026-03-08T05:30Z", nil},
		{"30 2 * * 1", "America/New_York", "2026-03-07T00:00Z", nil}, // a Sunday
		{"30 1 * * *", "America/New_York", "2026-10-31T05:30Z", nil},
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T01:30Z", []string{"2026-03-29T01:30:00Z"}},
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T15:45Z", []string{"2026-10-03T15:45:00Z"}},
		{"0 9 * * *", "Pacific/Apia", "2011-12-29T19:00Z", []string{"2011-12-30T19:00:00Z"}},
		{"30 2 * * *", "UTC", "2026-03-07T07:30Z", nil},
		{"@every 1h", "America/New_York", "2026-03-08T06:30Z", nil},
	} {
		s := parse(t, c.expression, c.zone)
		next, ok := s.Next(at(t, c.after))
		require.True(t, ok)
		var got []string
		for _, skipped := range s.Skipped(at(t, c.after), next) {
			got = append(got, skipped.Format("2006-01-02T15:04:05Z"))
		}
		require.Equal(t, c.want, got, "%s in %s after %s", c.expression, c.zone, c.after)
	}
}

func TestLatest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expression, first, until, want string }{
		{"0 * * * *", "2026-01-01T00:00Z", "2026-01-01T00:00:30Z", "2026-01-01T00:00Z"},
		{"0 * * * *", "2026-01-01T00:00Z", "2026-01-01T05:00Z", "2026-01-01T05:00Z"},
		{"0 * * * *", "2026-01-01T00:00Z", "2026-01-01T05:59:59Z", "2026-01-01T05:00Z"},
		{"* * * 1 *", "2024-01-01T00:00Z", "2026-12-31T00:00Z", "2026-01-31T23:59Z"},
		{"* * * * * *", "2020-01-01T00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:01Z"},
		{"@every 7s", "2026-01-01T00:00:03Z", "2026-01-01T00:00:20Z", "2026-01-01T00:00:17Z"},
		{"@every 7s", "2026-01-01T00:00:03Z", "2026-01-01T00:00:03Z", "2026-01-01T00:00:03Z"},
	} {
		got := parse(t, c.expression, "UTC").Latest(at(t, c.first), at(t, c.until))
		require.Equal(t, at(t, c.want).UTC(), got.UTC(), "%s until %s", c.expression, c.until)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{
		"", " ", "\t", "* * * *", "* * * * * * *", "not a valid cron", "99 25 32 13 8", "0 0 0 0 0 0 0",
		"60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *", "* * * * 8", "60 * * * * *",
		"-1 * * * *", "*/0 * * * *", "5/0 * * * *", "*/ * * * *", "1- * * * *", "-5 * * * *", "5-1 * * * *", "* * * * FRI-MON", "* * * DEC-JAN *",
		"1,,2 * * * *", ", * * * *", "1.5 * * * *", "+1 * * * *", "0x1 * * * *", "*-5 * * * *", "1-5-7 * * * *", "*/2/3 * * * *", "١ * * * *",
		"? * * * *", "* ? * * *", "* * * ? *", "* * * JANUARY *", "* * * MON *", "* * * * JAN", "* * * EBF *",
		"* * * * L", "* * L-31 * *", "* * L- * *", "* * W * *", "* * 32W * *", "* * 1-5W * *", "* * * * 8L", "* * * * 1-5L", "* * * * 5#0", "* * * * 5#6", "* * * * #3", "* * * * 5#",
		"L * * * *", "* * * L *", "TZ=UTC * * * * *", "CRON_TZ=Europe/Berlin 0 9 * * *",
		"@reboot", "@Daily", "@nothing", "@", "@every", "@every ", "@every1h", "@every 1d", "@every x", "@every -5m", "@every 5", "@every 1h garbage", "@every 1us", "@every 100000h", "@daily x",
		"* * * * *\x00", "*\u00a0* * * *", "* * * * \xff", strings.Repeat("1,", 500_000) + "1 * * * *", strings.Repeat("*", 1_000_000), // that costs more than their size would take hours
	} {
		_, err := Parse(expression, "UTC")
		require.Error(t, err, "%.100q", expression)
		require.NotErrorIs(t, err, ErrTimezone)
	}
	_, err := Parse("0 * * * * * *", "UTC")
	require.EqualError(t, err, "it has 7 fields, not 5 or 6")
	for expression, says := range map[string]string{
		"* * * * 5#6": "the day-of-week field takes #1 to #5", "* * * * L": "the day-of-week field needs a day before L, such as 5L or FRIL",
	} {
		_, err := Parse(expression, "UTC")
		require.ErrorContains(t, err, says)
	}
}

func TestNeverFires(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{"0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 L-30 2 *", "0 0 31W 2 *", "0 0 0 31 2 ?"} {
		schedule := parse(t, expression, "America/New_York")
		for range 100 { // trying minute after minute would end by the time limit of the test
			_, ok := schedule.Next(at(t, "2026-01-01T00:00Z"))
			require.False(t, ok, expression)
		}
	}
	next, ok := parse(t, "0 0 * 2 5#5", "UTC").Next(at(t, "2010-01-01T00:00Z"))
	require.True(t, ok)
	require.Equal(t, at(t, "2036-02-29T00:00Z").UTC(), next, "further than Reach, but known")
}

func TestZones(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "America/Port-au-Prince", "Etc/GMT+5", "Asia/Kathmandu", "US/Eastern"} {
		require.NotNil(t, parse(t, "* * * * *", name))
	}
	for _, name := range []string{
		"EST", "PST", "Local", "local", "+05:00", "UTC+5", "utc", "GMT", "Z", "CET", "EST5EDT", "Europe/Nowhere", "/etc/localtime", "../UTC", "Europe/../UTC", "Europe//Berlin",
		"Europe/", "/Berlin", "Europe", "europe/berlin", "Europe/Berlin ", " Europe/Berlin", "right/Europe/Berlin", "posix/Europe/Berlin", "Europe/Berlin\x00", strings.Repeat("a/", 5000) + "b",
	} {
		_, err := Parse("* * * * *", name)
		require.True(t, errors.Is(err, ErrTimezone), "%q: %v", name, err)
	}
}
