package queue

import (
	"context"
	"time"
)

// Waiting is the number of waiting fetches that an enqueue may take.
func (s *Store) Waiting() int {
	s.cursors.mu.Lock()
	defer s.cursors.mu.Unlock()
	offered := map[*waiter]bool{} // a waiter is in the list of each of its queues
	for _, list := range s.cursors.waiters {
		for _, w := range list {
			if w.offered() {
				offered[w] = true
			}
		}
	}
	return len(offered)
}

// Poll is one pass of the poller.
func (s *Store) Poll(ctx context.Context) error { return s.poll(ctx) }

// LookAt makes lists look at fewer jobs.
func (s *Store) LookAt(jobs int64) { s.maxLooked = jobs }

// KnownQueuesForTest returns what a node that has made sure of the queues knows after some time.
func KnownQueuesForTest(names ...string) (has func(name string, after time.Duration) bool) {
	k, start := &knownQueues{}, time.Now()
	k.add(names, start)
	return func(name string, after time.Duration) bool { return k.has(name, start.Add(after)) }
}

// SetLockedKeyTime changes how long jobs of locked unique keys are tried.
func (s *Store) SetLockedKeyTime(d time.Duration) { s.lockedKeyTime = d }

// WaitingForRoom is the number of enqueues that wait for room in a queue.
func (s *Store) WaitingForRoom() int { return int(s.roomWaiters.count.Load()) }
