package pool

import "time"

// SetClock changes the time by which the store measures how long a queue waits.
func (s *Store) SetClock(now func() time.Time) { s.now = now }

// Waiting reports whether a fetch has found a pool full.
func (s *Store) Waiting() bool { return s.freed.waiting.Load() }

// WakesWhatEndedMeanwhile reports whether a fetch is woken that has found no room, if jobs have ended after its look and before it waits.
func (s *Store) WakesWhatEndedMeanwhile() bool {
	c, before := s.freed.wait(), s.freed.calls.Load()
	s.Freed() // nobody waits yet
	s.freed.await(before)
	return isClosed(c)
}
