package queue

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Result is the outcome of a job. For a job that has not ended only ID, State and perhaps Error are set. Pruned: there was a result, but
// its TTL is over. Cut: there is a result, but it was not read, because others before it are large.
type Result = dbsqlc.JobResultListRow

// resultPace is the least time between two reads that notifications cause. The reads of all waiters share statements.
// Without it a busy node would read the result of each waiting call at every pass of the relay.
const resultPace = 100 * time.Millisecond

// AwaitResult reads the outcome of a job. If the job has not ended it parks up to wait; after that State is not terminal.
//
// It holds no connection while it waits. wait is at most what the API permits. A job that is deleted while the call waits is 404
// at the next read. A drain ends the wait with the state as it was read last.
func (s *Store) AwaitResult(ctx context.Context, id [16]byte, wait time.Duration) (*Result, error) {
	if wait <= 0 {
		return s.result(ctx, id)
	}
	w := s.resultWaiters.park(id) // before the first read, or an end right after it would not wake the call
	defer s.resultWaiters.leave(id, w)
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		res, err := s.result(ctx, id)
		if err != nil || ojs.JobState(res.State).Terminal() {
			return res, err
		}
		if !s.awaitEnd(ctx, w, timeout.C) {
			return res, nil
		}
	}
}

// awaitEnd waits until the result should be read again. It returns false if the call should end.
// An end on this node is read at once. A publication is read resultPace after the wait began, so several share a read.
func (s *Store) awaitEnd(ctx context.Context, w *resultWaiter, timeout <-chan time.Time) bool {
	var paced <-chan time.Time
	published, start := w.published, time.Now()
	for {
		select {
		case <-w.ended:
			return true
		case <-paced:
			return true
		case <-published:
			published, paced = nil, time.After(resultPace-time.Since(start))
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		case <-s.draining:
			return false
		}
	}
}

// result shares a statement with calls that wait for the same job, or read at the same time.
func (s *Store) result(ctx context.Context, id [16]byte) (*Result, error) {
	row, err := s.results.Do(ctx, id)
	if err == nil && row == nil {
		err = spec.NotFound("job", spec.FormatID(id))
	}
	return row, pg.ClientError(err)
}

// Results reads the outcomes of many jobs, with results of up to job.MaxBytes and one more; nil for unknown ones.
// Unlike reads that wait, it takes a place among the slow reads: it may have to send 8 MiB.
func (s *Store) Results(ctx context.Context, ids [][16]byte) ([]*Result, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	defer done()
	res, err := s.readResults(ctx, ids, job.MaxBytes)
	return res, pg.ClientError(err)
}

// flushResults reads results of any size: readBytes, the weight of each read, keeps a flush small.
func (s *Store) flushResults(ctx context.Context, ids [][16]byte) ([]*Result, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.readResults(ctx, ids, math.MaxInt64)
}

// readResults has nil for an unknown id, which has no row.
func (s *Store) readResults(ctx context.Context, ids [][16]byte, maxBytes int64) ([]*Result, error) {
	rows, err := s.db.Q.JobResultList(ctx, maxBytes, ids)
	if err != nil {
		return nil, err
	}
	return InOrder(len(ids), func(i int) [16]byte { return ids[i] }, rows, func(r *Result) ([16]byte, *Result) { return r.ID, r }), nil
}

// Awaited is the number of requests that wait for results.
func (s *Store) Awaited() (n int) {
	s.resultWaiters.mu.Lock()
	defer s.resultWaiters.mu.Unlock()
	for _, waiters := range s.resultWaiters.byID {
		n += len(waiters)
	}
	return n
}

// NotifyPublished makes waiters read their results again, because some node has published events. Events do not reach this
// package one by one, so it wakes all waiters.
// The notification of a relay and the poller call it. It costs three loads or empty maps while nobody waits.
func (s *Store) NotifyPublished() {
	s.resultWaiters.wakeAll()
	s.roomWaiters.wakeAll()
	s.wakeLimited()
}

// resultWaiters are the calls that wait for the end of a job. They hold memory only, no connection.
// byID is made by New and guarded by mu. A job that several calls wait for has several waiters.
type resultWaiters struct {
	mu   sync.Mutex
	byID map[[16]byte][]*resultWaiter
}

type resultWaiter struct {
	ended     chan struct{} // the job has ended on this node
	published chan struct{} // some job may have ended on some node
}

// park comes before the first read. An end between the read and a later park would wake nobody.
func (r *resultWaiters) park(id [16]byte) *resultWaiter {
	w := &resultWaiter{make(chan struct{}, 1), make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[id] = append(r.byID[id], w)
	return w
}

func (r *resultWaiters) leave(id [16]byte, w *resultWaiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	removeWaiter(r.byID, id, w)
}

// ended is called for every job that ends on this node, so it must be cheap when nobody waits.
func (r *resultWaiters) ended(id [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.byID[id] {
		signal(w.ended)
	}
}

// wakeAll wakes all waiters of the node, whatever they wait for: their reads share statements and keep to resultPace.
func (r *resultWaiters) wakeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ws := range r.byID {
		for _, w := range ws {
			signal(w.published)
		}
	}
}

// signal does not block. One signal in the channel is enough, because the waiter reads the whole result again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // has been signalled already
	}
}
