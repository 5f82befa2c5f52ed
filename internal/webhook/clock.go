package webhook

import "time"

// Clock shows the time of the database, which it has read once. The clock of the node, which may be wrong, only measures how long
// ago that was. Receivers refuse requests whose timestamp is minutes away from theirs. A clock that is set while the node
// runs has no effect, as time.Since uses the monotonic one. Network and queue time of the reading make Now late by
// milliseconds, which do not matter for a tolerance of minutes.
type Clock struct {
	database time.Time
	read     time.Time // by the node, with its monotonic clock
}

// NewClock takes the time that the database has just shown.
func NewClock(database time.Time) Clock { return Clock{database, time.Now()} }

// Now is the time of the database.
func (c Clock) Now() time.Time { return c.database.Add(time.Since(c.read)) }
