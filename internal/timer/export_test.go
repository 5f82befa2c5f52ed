package timer

import "time"

// SetIntervals replaces the interval of polls and that of full sweeps.
func (t *Timer) SetIntervals(poll, full time.Duration) {
	t.PollInterval, t.intervals = poll, intervals{poll, full}
}
