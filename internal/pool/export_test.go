package pool

import "time"

// SetClock changes the time by which the store measures how long a queue waits.
func (s *Store) SetClock(now func() time.Time) { s.now = now }

// Waiting reports whether a fetch has found a pool full.
func (s *Store) Waiting() bool { return s.freed.waiting.Load() }
