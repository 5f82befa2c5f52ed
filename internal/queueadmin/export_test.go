package queueadmin

import "time"

// SetSettled shortens the wait until a change holds on every node, for tests with nodes that read it at once.
func (s *Store) SetSettled(settled, begunFor time.Duration) {
	s.settled, s.begunFor = settled, begunFor
}
