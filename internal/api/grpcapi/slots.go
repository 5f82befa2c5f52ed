package grpcapi

import (
	"context"
	"sync"
	"time"
)

// slots are the jobs of one stream that are still active, each with the start of the run that was sent. A job that came back and
// was sent again has a later start, so that news of its earlier run frees nothing. All times are the database's.
// The goroutine that claims takes slots, the one that follows frees them.
type slots struct {
	most  int
	freed chan struct{} // has an element when it is worth looking again

	mu   sync.Mutex
	held map[[16]byte]time.Time
}

// most is at least 1; the size of held is at most most.
func newSlots(most int) *slots {
	return &slots{most: max(most, 1), freed: make(chan struct{}, 1), held: map[[16]byte]time.Time{}}
}

// wait returns the number of free slots when there is one.
// A token in freed may be stale; the loop counts again.
func (s *slots) wait(ctx context.Context) (int, error) {
	for {
		s.mu.Lock()
		free := s.most - len(s.held)
		s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case free > 0:
			return free, nil
		}
		select {
		case <-s.freed:
		case <-ctx.Done():
		}
	}
}

func (s *slots) take(id [16]byte, started time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id] = started
}

// release frees the slot of a job that ended at a time, if that is after its start.
// An event of an earlier run has a time before the start of this one.
func (s *slots) release(id [16]byte, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if started, ok := s.held[id]; ok && ended.After(started) {
		s.free(id)
	}
}

// drop frees the slot of a job unless it has been sent again since.
func (s *slots) drop(id [16]byte, started time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.held[id]; ok && at.Equal(started) {
		s.free(id)
	}
}

// free wants s.mu held.
func (s *slots) free(id [16]byte) {
	delete(s.held, id)
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// all copies what is held.
// The copy may be changed by its caller.
func (s *slots) all() (held map[[16]byte]time.Time, ids [][16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held = make(map[[16]byte]time.Time, len(s.held))
	for id, started := range s.held {
		held[id], ids = started, append(ids, id)
	}
	return held, ids
}
