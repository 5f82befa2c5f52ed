package ojs

import "time"

// TimeFormat is the layout of every time the server makes (docs/reference/jobs.md, Times and durations).
const TimeFormat = "2006-01-02T15:04:05.000Z"

// FormatTime gives t in server format: UTC, exactly three fractional digits, cut, not rounded.
func FormatTime(t time.Time) string { return t.UTC().Format(TimeFormat) }
