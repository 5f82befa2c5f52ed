package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// endings parks those who wait for the end of a job: in memory, without a connection. Ends on this node wake the waiters
// of the job; the relay's announcements, which do not name jobs, wake all.
type endings struct {
	mu      sync.Mutex
	waiters map[[16]byte][]*ending
}

type ending struct {
	ended     chan struct{} // this job has ended on this node
	published chan struct{} // some job may have ended somewhere
}

func (e *endings) park(id [16]byte) *ending {
	w := &ending{make(chan struct{}, 1), make(chan struct{}, 1)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiters[id] = append(e.waiters[id], w)
	return w
}

func (e *endings) leave(id [16]byte, w *ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := slices.DeleteFunc(e.waiters[id], func(o *ending) bool { return o == w })
	if len(left) == 0 {
		delete(e.waiters, id)
	} else {
		e.waiters[id] = left
	}
}

func (e *endings) ended(id [16]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.waiters[id] {
		poke(w.ended)
	}
}

func (e *endings) published() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ws := range e.waiters {
		for _, w := range ws {
			poke(w.published)
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // is already told
	}
}

// Published tells those who wait for a result that some node has published events. So does Probe, once a second.
func (s *Store) Published() { s.endings.published() }

// resultPace is how often a waiter looks at most because of announcements. All looks of a node share statements.
const resultPace = 100 * time.Millisecond

// AwaitResult reads what became of a job, and parks up to wait while it has not ended; then State is not terminal.
func (s *Store) AwaitResult(ctx context.Context, id [16]byte, wait time.Duration) (*Result, error) {
	if wait <= 0 {
		return s.result(ctx, id)
	}
	w := s.endings.park(id) // before the first look, or an end in between would wake nobody
	defer s.endings.leave(id, w)
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		res, err := s.result(ctx, id)
		if err != nil || ojs.JobState(res.State).Terminal() {
			return res, err
		}
		if !s.parkEnding(ctx, w, timeout.C) {
			return res, nil
		}
	}
}

// parkEnding reports whether it is time for another look.
func (s *Store) parkEnding(ctx context.Context, w *ending, timeout <-chan time.Time) bool {
	var rested <-chan time.Time
	published, start := w.published, time.Now()
	for {
		select {
		case <-w.ended:
			return true
		case <-rested:
			return true
		case <-published:
			published, rested = nil, time.After(resultPace-time.Since(start))
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		case <-s.draining:
			return false
		}
	}
}

func (s *Store) result(ctx context.Context, id [16]byte) (*Result, error) {
	row, err := s.results.Do(ctx, id)
	if err == nil && row == nil {
		err = ojs.ErrNotFound("job", ojs.FormatID(id))
	}
	return row, pg.ClientError(err)
}

// Results reads what became of many jobs; nil for those that are unknown.
func (s *Store) Results(ctx context.Context, ids [][16]byte) ([]*Result, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	res, err := s.flushResults(ctx, ids)
	return res, pg.ClientError(err)
}

func (s *Store) flushResults(ctx context.Context, ids [][16]byte) ([]*Result, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobResultList(ctx, ids)
	if err != nil {
		return nil, err
	}
	return InOrder(len(ids), func(i int) [16]byte { return ids[i] }, rows, func(r *dbsqlc.JobResultListRow) ([16]byte, *Result) { return r.ID, (*Result)(r) }), nil
}

// Awaited is the number of requests that wait for results.
func (s *Store) Awaited() (n int) {
	s.endings.mu.Lock()
	defer s.endings.mu.Unlock()
	for _, ws := range s.endings.waiters {
		n += len(ws)
	}
	return n
}
