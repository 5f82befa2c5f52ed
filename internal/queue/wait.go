package queue

import (
	"context"
	"slices"
	"time"
)

// waiter is a parked fetch: memory only, no database connection and no query of its own.
type waiter struct {
	queues []string
	wake   chan struct{}
}

// park registers a waiter. It must be registered before the claim that finds nothing, or a job that commits in between
// wakes nobody.
func (r *ready) park(queues []string) *waiter {
	w := &waiter{queues: queues, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked++
	for _, q := range queues {
		r.waiters[q] = append(r.waiters[q], w)
	}
	return w
}

// leave removes a waiter. A wake-up that it did not use goes to the next one.
func (r *ready) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked--
	for _, q := range w.queues {
		left := slices.DeleteFunc(r.waiters[q], func(o *waiter) bool { return o == w })
		if len(left) == 0 {
			delete(r.waiters, q)
		} else {
			r.waiters[q] = left
		}
	}
	select {
	case <-w.wake:
		for _, q := range w.queues {
			r.wakeLocked(q, 1)
		}
	default:
	}
}

// wake lets up to n waiters of the queue look for jobs.
func (r *ready) wake(queue string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeLocked(queue, n)
}

func (r *ready) wakeLocked(queue string, n int) {
	for _, w := range r.waiters[queue] {
		if n <= 0 {
			return
		}
		select {
		case w.wake <- struct{}{}:
			n--
		default: // is already on its way
		}
	}
}

// waiting returns the queues somebody waits for.
func (r *ready) waiting() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	queues := make([]string, 0, len(r.waiters))
	for q := range r.waiters {
		queues = append(queues, q)
	}
	return queues
}

// Parked is the number of fetches that wait for jobs.
func (s *Store) Parked() int {
	s.ready.mu.Lock()
	defer s.ready.mu.Unlock()
	return s.ready.parked
}

// BecameAvailable tells fetchers of jobs that this node's commit made available.
func (s *Store) BecameAvailable(places []Place) {
	counts := make(map[string]int, 4)
	for _, p := range places {
		s.ready.lower(p)
		counts[p.Queue]++
	}
	for queue, n := range counts {
		s.ready.wake(queue, n)
	}
}

// Announce tells fetchers of jobs that another node, or an application in SQL, made available: at least one at the
// place, none with a lower ready_seq.
func (s *Store) Announce(queue string, priority int16, seq int64) {
	s.ready.lower(Place{queue, priority, seq})
	s.ready.wake(queue, 1000)
}

// AnnounceAll is for announcements too long to be told: every queue is surveyed again.
func (s *Store) AnnounceAll() {
	s.ready.mu.Lock()
	for _, q := range s.ready.queues {
		q.surveyedAt = time.Time{}
	}
	s.ready.mu.Unlock()
	for _, q := range s.ready.waiting() {
		s.ready.wake(q, 1000)
	}
}

// Probe looks for jobs in the queues that somebody waits for, and wakes as many as it can serve: the safety net for
// announcements that got lost. So does everybody who waits for a result. It does nothing when nobody waits.
func (s *Store) Probe(ctx context.Context) error {
	s.Published()
	queues := s.ready.waiting()
	if len(queues) == 0 {
		return nil
	}
	found, err := s.survey(ctx, s.ready.surveyDue(queues, true))
	for _, f := range found {
		s.ready.wake(f.Queue, 1)
	}
	return err
}
