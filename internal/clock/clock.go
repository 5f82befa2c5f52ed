// Package clock tells the time without trusting the clock of this machine, which may be hours off, or be set while the process runs.
// It must never decide when something is due: statements do, by the clock of the database.
package clock

import (
	"sync/atomic"
	"time"
)

var (
	began  = time.Now() // with its monotonic reading, like every time of this package that measures
	latest atomic.Pointer[reading]
)

// reading is what the database showed, and when.
type reading struct{ database, read time.Time }

// Set takes a time of the database, read by a statement that this machine has sent at asked and whose answer has just come. The timer
// of every node calls it at each sweep, so a database that was replaced by another one is followed within a minute. A busy machine
// reads answers late: what is known stays as long as it agrees with them.
func Set(database, asked time.Time) {
	took := time.Since(asked)
	if known := Now(); latest.Load() == nil || known.Before(database) || known.After(database.Add(took)) {
		latest.Store(&reading{database.Add(took / 2), time.Now()})
	}
}

// Now is the time of the database to half of a round trip; before the first Set the time of this machine. It serves what this process
// writes about itself, such as the times in ids.
func Now() time.Time {
	if r := latest.Load(); r != nil {
		return r.database.Add(time.Since(r.read))
	}
	return time.Now()
}

// Running is how long this process runs. It is for points in time that are kept as a number: setting the clock does not move it.
func Running() time.Duration { return time.Since(began) }
