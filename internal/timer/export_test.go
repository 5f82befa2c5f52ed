package timer

import "time"

// SetLooks sets the intervals of the looks that a timer takes although it knows of nothing due.
func (t *Timer) SetLooks(look, full time.Duration) { t.looks = looks{look, look, full} }
