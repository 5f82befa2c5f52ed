package queue

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

// Enqueues to a full queue whose policy is to block wait in memory: they hold no connection and no lock, and try again when a job has left
// the queue. Who tries first then gets the room: they do not queue up.

const (
	// LongestBlock is the longest wait for room in a queue.
	// It is the largest OJS-Block-Timeout (docs/reference/backpressure.md, At the bound).
	LongestBlock = 60 * time.Second

	// roomPace is the least time between two tries that notifications of other nodes cause; they do not say which queue has room.
	// A loaded relay publishes many times a second. Without the pace every waiter would lock the row of its queue each time.
	roomPace = 100 * time.Millisecond

	// roomPoll is after how long a waiter tries again although nothing has told it to.
	// It covers notifications that were lost, and room that no event of this kind makes, such as a higher bound.
	roomPoll = time.Second
)

// roomWaiters are the enqueues that wait for room, by queue.
// The zero value is ready. A call is in one list, that of the queue that refused it last.
type roomWaiters struct {
	// It equals the number of calls in byQueue. changed reads it without mu: a call that parks at that moment tries once more
	// after it has parked.
	count   atomic.Int64
	mu      sync.Mutex
	byQueue map[string][]*roomWaiter
}

// roomWaiter is one call that waits. A channel of capacity 1 keeps a wake-up that comes while it tries.
type roomWaiter struct {
	left      chan struct{} // a job has left the queue on this node
	published chan struct{} // some node has published changes
}

// park must come before the try whose failure is waited upon: a job that leaves between the try and park would wake nobody.
func (r *roomWaiters) park(queue string) *roomWaiter {
	w := &roomWaiter{left: make(chan struct{}, 1), published: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Add(1)
	if r.byQueue == nil {
		r.byQueue = map[string][]*roomWaiter{}
	}
	r.byQueue[queue] = append(r.byQueue[queue], w)
	return w
}

func (r *roomWaiters) leave(queue string, w *roomWaiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Add(-1)
	removeWaiter(r.byQueue, queue, w)
}

// WakeRoomWaiters wakes the calls that wait for room, for the jobs that a commit of this node has taken out of their queues. It
// costs one load while nobody waits.
// One job makes room for one job, so one waiter is woken for each; a job that moves between waiting states, such as from
// scheduled to available, makes none. It is a subscriber of the bus of commits (eventlog.CommitsConfig), so it must not block.
func (s *Store) WakeRoomWaiters(_ context.Context, changes []eventlog.Change) {
	r := &s.roomWaiters
	if r.count.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		waits := func(state string) bool { return slices.Contains(job.WaitingStates, ojs.JobState(state)) }
		if c := &changes[i]; waits(c.From) && !waits(c.To) {
			r.wakeOne(c.Queue)
		}
	}
}

// wakeOne wakes the first waiter that has not been woken.
// A waiter whose channel is full tries anyway, so its turn passes to the next one. If the woken one does not use the room,
// because its jobs have another size for example, the others poll.
func (r *roomWaiters) wakeOne(queue string) {
	for _, w := range r.byQueue[queue] {
		select {
		case w.left <- struct{}{}:
			return
		default:
		}
	}
}

// wakeAll wakes all waiters, because a notification does not name the queues that jobs have left.
func (r *roomWaiters) wakeAll() {
	if r.count.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, waiters := range r.byQueue {
		for _, w := range waiters {
			signal(w.published)
		}
	}
}

// RetryFull calls try until it returns something else than the error of a full queue whose policy is to block, for at most so long.
//
// try must be repeatable: each call of it is an insert of its own, of which nothing is stored after this error. wait is what the
// client sent; it is cut to LongestBlock. Calls of a transaction never come here, because they would hold a connection and locks
// while they wait. An error of any full queue that it returns is counted (CountRefused).
func (s *Store) RetryFull(ctx context.Context, wait time.Duration, try func() error) error {
	err := s.retryFull(ctx, wait, try)
	s.CountRefused(ctx, err)
	return err
}

// retryFull is RetryFull for callers that count the refused jobs themselves.
func (s *Store) retryFull(ctx context.Context, wait time.Duration, try func() error) error {
	err := try()
	queue, blocks := queueToAwait(err)
	// Without a wait the error goes back as it is, like that of a queue that rejects.
	if !blocks || wait <= 0 {
		return err
	}
	// w and queue change below, so leave is deferred in a closure that reads them at the end.
	w := s.roomWaiters.park(queue)
	defer func() { s.roomWaiters.leave(queue, w) }()
	timeout := time.NewTimer(min(wait, LongestBlock))
	defer timeout.Stop()
	for {
		if err = try(); err == nil { // the first time because there may have been room before it was parked
			return nil
		}
		if other, blocks := queueToAwait(err); !blocks || !s.awaitRoom(ctx, w, timeout.C) {
			return err
		} else if other != queue { // another job of the call has no room now
			s.roomWaiters.leave(queue, w)
			queue = other
			w = s.roomWaiters.park(queue)
		}
	}
}

// awaitRoom waits until the call should try again. It returns false if it should give up.
// A publication does not wake it at once but moves its poll to roomPace after the start of the wait; later publications then
// add nothing.
func (s *Store) awaitRoom(ctx context.Context, w *roomWaiter, timeout <-chan time.Time) bool {
	poll := time.NewTimer(roomPoll)
	defer poll.Stop()
	start, published := time.Now(), w.published
	for {
		select {
		case <-w.left:
			return true
		case <-published:
			published = nil
			poll.Reset(max(0, roomPace-time.Since(start)))
		case <-poll.C:
			return true
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		case <-s.draining:
			return false
		}
	}
}

// queueToAwait is the queue of an error after which a call may wait.
func queueToAwait(err error) (queue string, blocks bool) {
	full := fullError(err)
	if full == nil || full.Details["strategy"] != queueconfig.Block {
		return "", false
	}
	return fullQueue(full), true
}
