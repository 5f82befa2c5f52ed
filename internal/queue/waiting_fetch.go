package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
)

// waiter is a waiting fetch. It holds memory only: no connection, and it sends no query.
//
// It is registered for the whole call and not only while it waits, so that a job which commits during its claim wakes it.
type waiter struct {
	fetch job.Fetch
	// Capacity 1: a signal that comes while the waiter claims is kept, and makes it claim once more.
	wake chan struct{}
	// Capacity 1, so that the enqueue never waits for the waiter. nil in it means that the waiter should claim for itself.
	handed chan []*job.Record // the answer of the enqueue that has taken the waiter (fetch.go)

	changed <-chan struct{} // of By.Changed; nil for most
	until   <-chan struct{} // of By.Until

	waiting bool // guarded by cursors.mu: it sends no claim of its own
	taken   bool // guarded by cursors.mu: an enqueue claims for it
}

// longPoll claims jobs, and parks while there are none.
//
// It holds no connection while it waits. Its claims run on the context of the request: what a client that hangs up has claimed is
// handed back by the API layer.
func (s *Store) longPoll(ctx context.Context, f job.Fetch, by By) ([]*job.Record, error) {
	claim := by.Claim
	if claim == nil {
		claim = func(ctx context.Context) ([]*job.Record, error) { return s.Claim(ctx, f) }
	}
	// Before the claim, or a job that commits after it would not wake the fetch.
	w := s.cursors.park(f, s.config.Server.MaxWaitingFetches)
	if w == nil {
		return claim(ctx)
	}
	w.until = by.Until
	defer s.cursors.leave(w)
	defer s.workers.Beat(f.WorkerID) // the worker was connected all the time
	timeout := time.NewTimer(f.Wait)
	defer timeout.Stop()
	for {
		if by.Changed != nil {
			w.changed = by.Changed() // before the claim, or a change between both would be missed
		}
		jobs, err := claim(ctx)
		if err != nil || len(jobs) > 0 {
			return jobs, err
		}
		// After offer an enqueue may take the waiter at any time, so the offer must be withdrawn on every way out. If it was taken, the
		// answer has to be awaited: its jobs are claimed for this worker, and nobody else would get them.
		if by.Claim == nil {
			s.cursors.offer(w)
		}
		jobs, again, handed := s.await(ctx, w, timeout.C)
		if s.cursors.withdraw(w) && !handed {
			jobs = <-w.handed // whatever ended the wait; the statement of the enqueue has a time limit
		}
		if len(jobs) > 0 || !again {
			return jobs, nil
		}
	}
}

// await returns when the fetch should claim again, has got its jobs, or should end. handed is true if the answer came over the channel:
// then no other one follows.
func (s *Store) await(ctx context.Context, w *waiter, timeout <-chan time.Time) (jobs []*job.Record, again, handed bool) {
	for {
		// before Quiet, or a change between both would be missed
		changed := s.workers.QuietChanged(w.fetch.WorkerID)
		if s.workers.Quiet(w.fetch.WorkerID) {
			return nil, false, false
		}
		select {
		// The worker became quiet, or is no longer: look again.
		case <-changed:
		case <-w.changed:
			return nil, true, false
		case <-w.until:
			return nil, false, false
		case <-w.wake:
			return nil, true, false
		case jobs := <-w.handed:
			return jobs, true, true
		case <-timeout:
			return nil, false, false
		case <-ctx.Done():
			return nil, false, false
		case <-s.draining:
			return nil, false, false
		}
	}
}

// Drain makes waiting fetches return, and every later one answer at once.
// The node calls it when it stops, before it waits for its requests. It also ends waits for results and for room.
func (s *Store) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Parked is the number of fetches that wait for jobs.
func (s *Store) Parked() int {
	s.cursors.mu.Lock()
	defer s.cursors.mu.Unlock()
	return s.cursors.parked
}

// maxWoken bounds the fetches of a queue that one notification wakes.
// A notification says at least one job, not how many. A fetch that was woken in vain costs a claim in a shared statement.
const maxWoken = 1000

// NotifyAvailable wakes fetches for jobs that a commit of this node made available.
// Cursors first: a fetch that is woken before its cursor is lowered would find nothing. It wakes one fetch per job, and each may
// take several jobs, so some claim in vain.
func (s *Store) NotifyAvailable(places []Place) {
	counts := make(map[scope]int, 4)
	for _, p := range places {
		s.cursors.lower(p)
		counts[p.scope()]++
	}
	for of, n := range counts {
		s.cursors.wake(of, n)
	}
}

// scope is that of the fetches of the tenant whose job it is.
func (p Place) scope() scope { return scope{p.Queue, job.TenantOf(p.Lane)} }

// NotifyReady wakes fetches for jobs that another node, or an application in SQL, made available: at least one at the place,
// and none before it.
// Package app calls it for notifications of relays, and leaves out what this node has committed itself.
func (s *Store) NotifyReady(p Place) {
	s.cursors.lower(p)
	s.cursors.wake(p.scope(), maxWoken)
}

// NotifyAll is for notifications that do not name their jobs. It lets the fetches of every queue rescan it.
// It is called when notifications may have been lost, and after maintenance and changes of all queues.
func (s *Store) NotifyAll() {
	s.cursors.rescanSoon()
	for _, of := range s.cursors.awaited() {
		s.cursors.wake(of, maxWoken)
	}
}

// poll rescans the queues for which fetches wait and wakes as many as there are places, in case a notification was
// lost. Awaited results are read again for the same reason. It sends no query if no call waits and no claim was lost.
// The poller calls it every second. One fetch is woken per place that was found: later passes wake others for the rest.
func (s *Store) poll(ctx context.Context) error {
	s.NotifyPublished()
	lost := s.handBackLost(ctx) // a job of a lost claim may stay locked for hours; that must not stop the polls of other queues
	awaited := s.cursors.awaited()
	found, err := s.rescan(ctx, s.cursors.rescanDue(awaited, true))
	for _, f := range found {
		s.cursors.wake(f.scope(), 1)
	}
	for _, q := range s.limitBlocked.waiting(queuesOf(awaited)) {
		s.cursors.wakeQueue(q, 1)
	}
	return errors.Join(lost, err)
}

// park registers a waiter; nil: as many wait as may.
func (c *cursors) park(f job.Fetch, most int) *waiter {
	w := &waiter{fetch: f, wake: make(chan struct{}, 1), handed: make(chan []*job.Record, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked >= most {
		return nil
	}
	c.parked++
	for _, of := range scopes(f.Queues, f.Tenant) {
		c.waiters[of] = append(c.waiters[of], w)
	}
	return w
}

// leave removes a waiter. If it was woken and has not used that, the next waiters of its queues are woken instead.
// Without that a job would wait until the next pass of the poller, because its only signal went to a fetch that has ended.
func (c *cursors) leave(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked--
	own := scopes(w.fetch.Queues, w.fetch.Tenant)
	for _, of := range own {
		removeWaiter(c.waiters, of, w)
	}
	select {
	case <-w.wake:
		for _, of := range own {
			c.wakeLocked(of, 1)
		}
	default:
	}
}

// removeWaiter removes a waiter from those of a key, and the key with the last one.
func removeWaiter[Key comparable, Waiter any](waiters map[Key][]*Waiter, key Key, w *Waiter) {
	left := slices.DeleteFunc(waiters[key], func(other *Waiter) bool { return other == w })
	if len(left) == 0 {
		delete(waiters, key)
	} else {
		waiters[key] = left
	}
}

// wake lets up to n waiters claim again that take jobs of the tenant in the queue.
func (c *cursors) wake(of scope, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked(of, n)
}

// wakeQueue is wake for the fetches of all tenants, up to n of each.
func (c *cursors) wakeQueue(queue string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for of := range c.waiters {
		if of.queue != queue {
			continue
		}
		left := n
		for _, w := range c.waiters[of] {
			left -= w.awaken(left)
		}
	}
}

// wakeLocked is wake for callers that have locked c.mu. Waiters that take jobs of one tenant only come first.
func (c *cursors) wakeLocked(of scope, n int) {
	for _, w := range c.waiters[of] {
		if n -= w.awaken(n); n <= 0 {
			return
		}
	}
	if of.tenant != "" {
		c.wakeLocked(scope{of.queue, ""}, n)
	}
}

// awaken lets a waiter claim again, unless something else does, and returns how many of n it has woken.
// A taken waiter gets an answer in any case. The caller has locked cursors.mu.
func (w *waiter) awaken(n int) int {
	if n <= 0 || w.taken {
		return 0
	}
	select {
	case w.wake <- struct{}{}:
		return 1
	default: // has been woken already
		return 0
	}
}

// awaited returns the queues, and tenants in them, for which fetches wait.
func (c *cursors) awaited() []scope {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]scope, 0, len(c.waiters))
	for of := range c.waiters {
		all = append(all, of)
	}
	return all
}

// pollInterval is how long a parked call can wait for a job or a result whose notification was lost.
// Rescans that take long are left out of some passes: they have a twentieth of the time (rescanDue).
const pollInterval = time.Second

// Poller reads jobs and results for parked calls, in case a notification was lost.
// Every node has one. It needs no leader: each node polls for the calls that are parked on it.
type Poller struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
}

// NewPoller returns a poller. It sends no query while no call is parked.
func NewPoller(archetype *baseservice.Archetype, s *Store) *Poller {
	return baseservice.Init(archetype, &Poller{store: s})
}

// Start runs the loop until stopped.
func (p *Poller) Start(ctx context.Context) error {
	loop.Run(ctx, &p.BaseStartStop, func(ctx context.Context) { loop.Every(ctx, pollInterval, p.poll) })
	return nil
}

func (p *Poller) poll(ctx context.Context) {
	if err := p.store.poll(ctx); err != nil && ctx.Err() == nil {
		p.Logger.WarnContext(ctx, "poll for waiting fetches failed; it is repeated every second", slog.Any("error", err))
	}
}
