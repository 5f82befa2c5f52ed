package ojs

import "time"

// TimeFormat is the layout of all times in responses and events (docs/reference/jobs.md, Times and durations).
const TimeFormat = "2006-01-02T15:04:05.000Z"

// FormatTime formats t in UTC with three fractional digits, which are cut, not rounded.
func FormatTime(t time.Time) string { return t.UTC().Format(TimeFormat) }
