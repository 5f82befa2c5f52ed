package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// handoff is a claim for parked fetches in the transaction of an enqueue: the insert and JobFetch in one round trip and one
// commit. The claim is the same as every other, so order, pauses and quiet workers need no rule of their own; it may also find
// older jobs, or none.
//
// Without it an enqueue would wake a fetch, which sends a claim of its own: one more transaction, and one more commit, for each
// job. An enqueue that is due is fetched after 3.0 ms instead of 10.5 ms at 400 jobs a second (docs/benchmarks.md, where other
// changes of that time are in the number).
type handoff struct {
	// Each has taken set, and gets exactly one answer by hand.
	waiters []*waiter
	claim   claim
}

// handoff takes parked fetches that wait for the queues of the jobs; nil if there are none.
// From here on an answer is owed to each waiter, on every path.
func (s *Store) handoff(jobs []*job.Job) *handoff {
	if s.maintenance.On() {
		return nil
	}
	waiters := s.cursors.take(jobs, s.isLimited)
	if len(waiters) == 0 {
		return nil
	}
	claimants := make([]claimant, len(waiters))
	for i, w := range waiters {
		claimants[i] = newClaimant(w.fetch)
	}
	claim, ok := s.beginClaim(claimants, jobs)
	if !ok {
		hand(waiters, nil)
		return nil
	}
	return &handoff{waiters, claim}
}

// enqueueAndClaim stores the jobs and claims for the waiters. It reports false, with nothing changed, if the plain insert
// should be tried, which knows what to do about an error of the statements.
//
// The error of an enqueue is that of the whole transaction, so a claim that fails makes the insert fail, too. If PostgreSQL has
// refused one of the statements, nothing is committed and the insert is tried alone.
func (s *Store) enqueueAndClaim(ctx context.Context, jobs []*job.Job, h *handoff) (res []enqueued, ok bool, err error) {
	in := newInsertion(jobs, false)
	if err := s.admit(ctx, s.db.Pool, in); err != nil || len(in.todo) == 0 {
		s.cursors.fail(h.claim.probes)
		hand(h.waiters, nil)
		return in.res, true, err
	}
	inserted, claimed, err := s.insertAndClaim(ctx, in, h)
	if err != nil {
		s.cursors.fail(h.claim.probes)
		if s.lost.add(h.claim.params.Claim, err); pg.IsUnknown(err) {
			_ = s.handBackLost(ctx) // the poller tries again
		}
		hand(h.waiters, nil)                                                                  // they claim for themselves again
		if _, refused := errors.AsType[*pgconn.PgError](err); refused && !pg.IsUnknown(err) { // else a second insert might find the ids taken
			return nil, false, nil
		}
		return nil, true, err
	}
	// The ids were made here, so none can be taken.
	in.fill(inserted)
	// The cursors rise before afterEnqueue lowers them to the jobs that were not claimed.
	s.endClaim(h.claim, claimed)
	ids := make(map[[16]byte]bool, len(claimed))
	for i := range claimed {
		ids[claimed[i].ID] = true
	}
	s.afterEnqueue(ctx, in.res, ids)
	hand(h.waiters, s.afterClaim(ctx, h.claim, claimed))
	return in.res, true, nil
}

// insertAndClaim sends both statements in one round trip. They are one transaction, so the claim reads the jobs of the insert, and no
// other node can claim them in between.
func (s *Store) insertAndClaim(ctx context.Context, in *insertion, h *handoff) (inserted []dbsqlc.JobInsertRow, claimed []job.Record, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	if err := s.createQueues(ctx, s.db.Pool, in.open()); err != nil {
		return nil, nil, err
	}
	// A missing partition of the events is an error of PostgreSQL, after which the plain insert creates it.
	insert, started := in.statement(ctx, s.commits.Node), time.Now()
	err = s.db.Write(ctx, func(conn *pgxpool.Conn) error {
		return pg.Pipeline(ctx, conn,
			func(db dbsqlc.DBTX) (err error) {
				inserted, err = insert(db)
				return err
			},
			func(db dbsqlc.DBTX) (err error) {
				claimed, err = claimJobs(ctx, dbsqlc.New(db), &h.claim.params)
				return err
			})
	})
	// The batcher counts the insert; the claim would be missing from the metrics of fetches.
	if flushed := s.flushed("fetch"); flushed != nil && err == nil {
		flushed(len(h.waiters), time.Since(started))
	}
	return inserted, claimed, err
}

// offer lets an enqueue claim for the waiter.
// The channel wake may hold a signal from before: offered is false then, and the waiter claims for itself.
func (c *cursors) offer(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.waiting, w.taken = true, false
}

// withdraw takes the offer back. It reports whether an enqueue has taken the waiter: then an answer is in w.handed, or follows.
// From here on the waiter counts as not taken: commits must wake it again, as its next claim may not see their jobs.
func (c *cursors) withdraw(w *waiter) (taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken, w.waiting, w.taken = w.taken, false, false
	return taken
}

// offered reports whether an enqueue may take the waiter. The caller has locked cursors.mu.
func (w *waiter) offered() bool { return w.waiting && !w.taken && len(w.wake) == 0 }

// take takes waiters for the jobs that are available at once, at most one per job. All have the same list of queues and tenant, because
// a claim follows one order. Fetches from limited queues are left out: they claim under the locks of the limits.
//
// A tenant's own fetches come before those that take all lanes. A fetch may get more jobs than the one that it was taken for, up
// to its count, if they are there.
func (c *cursors) take(jobs []*job.Job, limited func(queues []string) bool) (taken []*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Before the node has seen a number, beginWith has no lower bound and the claim would walk all dead index entries.
	if len(c.waiters) == 0 || c.newest == 0 {
		return nil
	}
	for _, j := range jobs {
		if !j.AvailableAtOnce() {
			continue
		}
		tenant := job.TenantOf(j.Lane)
		w := c.offeredFor(scope{j.Queue, tenant}, taken, limited)
		if w == nil && tenant != "" {
			w = c.offeredFor(scope{j.Queue, ""}, taken, limited)
		}
		if w != nil {
			w.taken = true
			taken = append(taken, w)
		}
	}
	return taken
}

// offeredFor is a waiter that an enqueue may take together with the others; nil if there is none.
// The caller has locked c.mu.
func (c *cursors) offeredFor(of scope, others []*waiter, limited func(queues []string) bool) *waiter {
	for _, w := range c.waiters[of] {
		if w.offered() && (others == nil || slices.Equal(w.fetch.Queues, others[0].fetch.Queues) && w.fetch.Tenant == others[0].fetch.Tenant) &&
			!limited(w.fetch.Queues) {
			return w
		}
	}
	return nil
}

// hand answers taken waiters; jobs is nil if there are none for any. A waiter reads one answer per offer, so it never blocks.
// The channel has capacity 1, and a waiter is taken again only after it has read the answer.
func hand(waiters []*waiter, jobs [][]*job.Record) {
	for i, w := range waiters {
		if jobs == nil {
			w.handed <- nil
		} else {
			w.handed <- jobs[i]
		}
	}
}

// beginWith is begin for a claim that follows the insert of jobs in the same transaction. Numbers are drawn in order, so theirs will be
// above all that this node has seen.
//
// Only this claim may look for the jobs: to others the levels are without jobs until the commit. Otherwise each fetch that comes
// meanwhile would send a claim in vain: with 32 parked fetches a claim had 6.0 jobs instead of 9.5.
func (c *cursors) beginWith(jobs []*job.Job, w want) []*probe {
	c.mu.Lock()
	defer c.mu.Unlock()
	var expected []*level
	for _, j := range jobs {
		q := c.queues[j.Queue]
		if q == nil || !j.AvailableAtOnce() {
			continue
		}
		if l := q.level(j.Lane, j.Priority); l != nil && l.low == noJobs {
			l.set(c.newest + 1)
			expected = append(expected, l)
		}
	}
	probes, _ := c.beginLocked(w)
	for _, l := range expected {
		l.set(noJobs)
	}
	return probes
}
