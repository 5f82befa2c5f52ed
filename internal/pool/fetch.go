package pool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Fetch claims jobs for a worker by the rules of its pool, or by the strategy that the fetch names. Any other fetch is that of package
// queue, without the queues of isolated pools. A parked fetch is decided again when pools have changed. It may run any
// number of times at once. Jobs that it returns are claimed and committed; after an error none is claimed for the caller,
// or those that were are handed back.
func (s *Store) Fetch(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	end := time.Now().Add(f.Wait)
	for {
		changed := s.changed.wait() // before the pools are read, or a change between both would be missed
		v, err := s.known(ctx)
		if err != nil {
			return nil, err
		}
		jobs, err := s.fetch(ctx, v, f, changed)
		if err != nil || len(jobs) > 0 || !isClosed(changed) || ctx.Err() != nil {
			return jobs, err
		}
		// The rest of the wait, not the whole: a client waits as long as it has said, however often pools change.
		if f.Wait = time.Until(end); f.Wait <= 0 {
			return nil, nil
		}
	}
}

// fetch is Fetch by what is known of the pools. It ends, without jobs, when they have changed. The first test is what a
// server without pools pays.
func (s *Store) fetch(ctx context.Context, v *view, f job.Fetch, changed <-chan struct{}) ([]*job.Record, error) {
	// A parked fetch ends without jobs when a pool changes, and Fetch decides anew.
	by := queue.By{Until: changed}
	if len(v.pools) == 0 && f.Pool == "" && f.Strategy == "" {
		return s.jobs.Fetch(ctx, f, by)
	}
	// The isolated queues are taken from fetches of other pools, too (docs/reference/fairness.md, Pools).
	p, err := s.poolOf(ctx, v, f)
	if err != nil {
		return nil, err
	}
	// A key of a map only, so a comma in a name would at worst mix two lists.
	c := choice{key: "queues " + strings.Join(f.Queues, ","), strategy: f.Strategy, weights: f.Weights}
	switch {
	case p != nil:
		if f.Queues = p.restrict(f.Queues); !p.Isolated {
			f.Queues = v.open(f.Queues)
		}
		c = choice{key: "pool " + p.Name, strategy: p.Strategy, weights: p.WeightsOfQueues(), starvation: p.Starvation}
	default:
		f.Queues = v.open(f.Queues)
	}
	// Otherwise a fetch of one tenant that finds a queue empty would count it as served for all.
	if f.Tenant != "" {
		c.key += " tenant " + f.Tenant // what it finds in a queue says nothing about the jobs of others
	}
	switch {
	case len(f.Queues) == 0: // it parks all the same, so that its worker does not ask all the time
		by.Claim = func(context.Context) ([]*job.Record, error) { return nil, nil }
	case p != nil && p.Concurrency > 0:
		by.Claim = func(ctx context.Context) ([]*job.Record, error) { return s.reserve(ctx, p.Name, f, c) }
		// Room may appear without a new job: another one of the pool has ended.
		by.Changed = s.freed.wait
	// Any other fetch is left to package queue: its order of queues is the list.
	case c.strategy != "" && c.strategy != job.StrategyStrict || c.starvation.Enabled:
		by.Claim = func(ctx context.Context) ([]*job.Record, error) { return s.claim(ctx, f, c) }
	}
	return s.jobs.Fetch(ctx, f, by)
}

// poolOf is the pool of a fetch, by its own word or that of the worker; nil: none. A pool that the worker has named and that does not
// exist is none. The word of the fetch wins. A worker without an id has no pool of its own.
func (s *Store) poolOf(ctx context.Context, v *view, f job.Fetch) (*Pool, error) {
	if f.Pool != "" {
		// The view may be a second old; a fetch that names a pool right after its creation on another node may be refused.
		if v.pools[f.Pool] == nil {
			return nil, spec.NotFound("pool", f.Pool)
		}
		return v.pools[f.Pool], nil
	}
	if f.WorkerID == "" || len(v.pools) == 0 {
		return nil, nil
	}
	// An error refuses the fetch: to ignore it could hand out jobs of an isolated queue.
	name, err := s.workers.get(ctx, s, f.WorkerID)
	return v.pools[name], err
}

// reservationTime bounds the claims of one reservation: less than a minute, after which its room is given to others. The expiry of
// a reservation is one minute (ojs.pool_reserve). A claim that lasted longer would hold more jobs than the pool permits.
const reservationTime = 30 * time.Second

// reserve claims within the concurrency of a pool. The room is reserved before the claim, in a transaction of its own, so
// whatever else bounds the claim knows nothing of pools. Three commits follow each other: the reservation, the claims, and
// the statement that turns the reservation into the jobs. A crash after the first leaves room reserved for a minute. A crash after
// the second leaves active jobs for which the reservation stands for up to a minute, and nothing after it, until their
// leases end.
//
// The order makes the limit hold: room that is counted too high for a while costs throughput, room that is counted too low
// would exceed the limit.
func (s *Store) reserve(ctx context.Context, pool string, f job.Fetch, c choice) ([]*job.Record, error) {
	// Without this look each waiting fetch would write a reservation each time that it is woken.
	if s.jobs.Idle(f) {
		return nil, nil
	}
	// The counter is read before the room: what is freed between the two wakes this fetch (see await).
	id, before := job.NewID(), s.freed.calls.Load()
	// The statement locks the row of the pool for its own time only, so the claims of a pool do not wait for each other.
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	room, err := s.db.Q.PoolReserve(bounded, dbsqlc.PoolReserveParams{Pool: pool, Reservation: id, Want: int32(f.Count)})
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if room == 0 {
		// The fetch parks; by.Changed wakes it.
		s.freed.await(before)
		return nil, nil
	}
	// A fetch may thus get fewer jobs than it asked for, although more wait.
	f.Count = int(room)
	// It bounds the claims, not the statement after them.
	claiming, cancelClaim := context.WithTimeout(ctx, reservationTime)
	defer cancelClaim()
	jobs, err := s.claim(claiming, f, c)
	// The jobs replace the reservation, also for a worker that has gone, because they have been claimed, and after a failed claim, to give
	// the room back. The statement can be repeated: it deletes by id and inserts with ON CONFLICT.
	p := dbsqlc.PoolHoldParams{Pool: pool, Reservation: id, Ids: make([][16]byte, len(jobs)),
		StartedAt: make([]pgtype.Timestamptz, len(jobs))}
	for i, j := range jobs {
		p.Ids[i], p.StartedAt[i] = j.ID, j.StartedAt
	}
	holding, cancelHold := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancelHold()
	if held := pg.Retry(func() error { return s.db.Q.PoolHold(holding, p) }); held != nil {
		s.jobs.HandBack(ctx, jobs) // nobody would count them
		return nil, errors.Join(pg.ClientError(held), err)
	}
	return jobs, err
}

// broadcast is a channel that is closed, and replaced, at each wake. Take the channel before the state that it announces is
// read.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

// wait returns a channel that is closed at the next wake.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c
}

// wake wakes everybody who has the old channel, once.
func (b *broadcast) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.c)
	b.c = make(chan struct{})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// freed wakes parked fetches of pools without room when jobs have ended somewhere. The counter and the flag are atomics,
// because wake runs after every commit of the node and must not wait for a lock.
type freed struct {
	broadcast

	waiting atomic.Bool  // a fetch has found no room since the latest wake
	calls   atomic.Int64 // of wake

	mu   sync.Mutex
	last time.Time // guarded by mu
}

// wakePause is the least time between two wakes: each lets every parked fetch of pools look for room. Without it a busy node
// would look for room once per commit and waiting fetch.
const wakePause = 20 * time.Millisecond

// await lets the next wake wake the caller, who has found no room since there were so many calls. What has ended meanwhile
// wakes it, too. Both sides write before they read: await sets waiting and then reads calls, wake counts and then reads
// waiting. At least one of them sees the other, so no wake is lost.
func (f *freed) await(calls int64) {
	if f.waiting.Store(true); f.calls.Load() != calls {
		f.wake()
	}
}

// wake costs nothing while no fetch has found a pool full. A wake inside of the pause is put off to its end, and only one is.
func (f *freed) wake() {
	if f.calls.Add(1); !f.waiting.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if pause := wakePause - time.Since(f.last); pause > 0 {
		if f.waiting.Swap(false) {
			time.AfterFunc(pause, func() { f.waiting.Store(true); f.wake() })
		}
		return
	}
	// Before the broadcast: a fetch that finds no room after it sets the flag again.
	f.waiting.Store(false)
	f.last = time.Now()
	f.broadcast.wake()
}

// Freed is called when jobs may have ended: after commits of this node, and when those of others are published. It is a
// hint: a fetch that is woken finds out by itself whether there is room.
func (s *Store) Freed() { s.freed.wake() }

// workerPools are the pools that workers have named, for some seconds. An entry may be stale by knownFor, which is what
// docs/reference/fairness.md, Pools promises.
type workerPools struct {
	mu sync.Mutex
	of map[string]workerPool
}

// workerPool has an until by the monotonic clock of the node.
type workerPool struct {
	name  string // "": none
	until time.Time
}

const (
	// knownFor is how long the pool that a worker has named is remembered.
	knownFor = 2 * time.Second

	// maxWorkers bounds the workers, whose ids clients choose. At the bound the table is cleared; each worker then costs a
	// statement once more.
	maxWorkers = 10_000
)

// get lets two fetches of a worker both ask the database; that costs a statement and no more. mu is not held during it.
func (w *workerPools) get(ctx context.Context, s *Store, worker string) (string, error) {
	w.mu.Lock()
	known := w.of[worker]
	w.mu.Unlock()
	if known.until.After(time.Now()) {
		return known.name, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.PoolOfWorker(ctx, worker)
	if err != nil {
		return "", pg.ClientError(err)
	}
	known = workerPool{until: time.Now().Add(knownFor)}
	if len(rows) > 0 {
		known.name = rows[0]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.of) >= maxWorkers {
		clear(w.of)
	}
	w.of[worker] = known
	return known.name, nil
}

// choice is how a fetch chooses between its queues. The weights may be those of a pool and are not changed.
type choice struct {
	key        string // of what is remembered between fetches
	strategy   string
	weights    map[string]int64
	starvation Starvation
}

// claim divides the slots of a fetch between its queues, and claims from one queue after the other. What a queue has too few jobs for
// is divided again between the others. Inside a queue the order is that of every claim. Each claim is committed by itself,
// so what was claimed is returned even if a later claim fails: nobody else could return it.
func (s *Store) claim(ctx context.Context, f job.Fetch, c choice) (jobs []*job.Record, err error) {
	if s.jobs.Idle(f) {
		return nil, nil // nothing is asked, and no queue counts as served: in maintenance all have jobs perhaps
	}
	// It is shared by all fetches of the key on this node.
	r := s.turns.get(c.key)
	left := slices.Clone(f.Queues)
	if c.starvation.Enabled {
		// A starving queue gets one slot, and the strategy divides the others: enough to end its wait, too little to starve
		// the rest.
		for _, q := range r.starving(left, c.starvation, s.now()) {
			got, err := s.claimFrom(ctx, f, r, q, 1)
			if jobs = append(jobs, got...); err != nil || len(jobs) == f.Count {
				return jobs, keep(jobs, err)
			}
			if len(got) == 0 {
				// It had no jobs, so its interval begins anew.
				r.rest(q, s.now())
				left = slices.DeleteFunc(left, func(other string) bool { return other == q })
			}
		}
	}
	// It ends, because each round fills the count or takes a queue off the list: a queue that gave less than it was asked
	// for is empty for this fetch.
	for len(left) > 0 && len(jobs) < f.Count {
		plan, err := s.divide(ctx, c, r, left, f.Count-len(jobs))
		if err != nil {
			return jobs, keep(jobs, err)
		}
		for _, part := range plan {
			got, err := s.claimFrom(ctx, f, r, part.queue, part.jobs)
			if jobs = append(jobs, got...); err != nil {
				return jobs, keep(jobs, err)
			}
			// It has no more jobs for this fetch; what is left of its part is divided again.
			if len(got) < part.jobs {
				left = slices.DeleteFunc(left, func(q string) bool { return q == part.queue })
			}
		}
	}
	return jobs, nil
}

// keep drops the error of a claim after others that have claimed jobs: these are the answer. The error will come again with
// the next fetch, if it lasts.
func keep(jobs []*job.Record, err error) error {
	if len(jobs) > 0 {
		return nil
	}
	return err
}

// claimFrom counts as served what was claimed.
func (s *Store) claimFrom(ctx context.Context, f job.Fetch, r *rotation, name string, n int) ([]*job.Record, error) {
	f.Queues, f.Count = []string{name}, n
	jobs, err := s.jobs.Claim(ctx, f)
	if len(jobs) > 0 {
		r.serve(name, len(jobs), s.now())
	}
	return jobs, err
}

// part is how many jobs are to be claimed from a queue. jobs is at least 1.
type part struct {
	queue string
	jobs  int
}

// divide chooses a queue for each slot, and returns the queues in the order of their first slots. The plan has one part per
// queue, so a fetch of 100 jobs from two queues makes two claims.
func (s *Store) divide(ctx context.Context, c choice, r *rotation, queues []string, slots int) (plan []part, err error) {
	var next func() string
	switch c.strategy {
	case job.StrategyRoundRobin:
		next = r.roundRobin(queues)
	case job.StrategyWeighted:
		next = s.weighted(queues, c.weights)
	case job.StrategyLeastLoaded:
		if next, err = s.leastLoaded(ctx, queues); err != nil {
			return nil, err
		}
	// strict, and no strategy with starvation prevention.
	default:
		return []part{{queues[0], slots}}, nil
	}
	for range slots {
		q := next()
		at := slices.IndexFunc(plan, func(p part) bool { return p.queue == q })
		if at < 0 {
			at, plan = len(plan), append(plan, part{queue: q})
		}
		plan[at].jobs++
	}
	return plan, nil
}

// roundRobin starts behind the queue that was served last. The order is that of the list in which queues were first seen,
// so it is the same for fetches with parts of a list. If the last served queue was the last of the order, the first of the
// list is next.
func (r *rotation) roundRobin(queues []string) func() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := 0
	for i, q := range queues { // the first behind the last served one, in the order of the list
		if r.rank(q) > r.rank(r.last) {
			at = i
			break
		}
	}
	return func() string {
		q := queues[at%len(queues)]
		at++
		return q
	}
}

// weighted draws for each slot independently: shares hold on average, and nothing has to be remembered or shared by nodes.
func (s *Store) weighted(queues []string, weights map[string]int64) func() string {
	total := int64(0)
	for _, q := range queues {
		total += max(1, weights[q])
	}
	return func() string {
		// draw is rand.Int64N but in tests.
		n := s.draw(total)
		for _, q := range queues {
			if n -= max(1, weights[q]); n < 0 {
				return q
			}
		}
		return queues[len(queues)-1]
	}
}

// leastLoaded serves the queue with the most available jobs, as of the published events. The counts lag behind by the time
// of a publication, and are read for each plan.
func (s *Store) leastLoaded(ctx context.Context, queues []string) (func() string, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// These are the counts that the relay keeps: a fetch must not count jobs.
	rows, err := s.db.Q.PoolQueueCounts(ctx, queues)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	waiting := make(map[string]int64, len(rows))
	for _, r := range rows {
		if r.State == string(ojs.StateAvailable) {
			waiting[r.Queue] = r.Count
		}
	}
	return func() string {
		most := queues[0]
		for _, q := range queues {
			if waiting[q] > waiting[most] {
				most = q
			}
		}
		// A slot counts as one job less, so one fetch spreads over queues of about the same depth.
		waiting[most]--
		return most
	}, nil
}

// turns are what a node remembers of strategies between fetches. It is lost with the node, and other nodes have their own:
// shares hold per node.
type turns struct {
	mu sync.Mutex
	of map[string]*rotation // by pool or list of queues
}

// maxTurns bounds the lists of queues, which clients choose. At the bound all rotations begin anew.
const maxTurns = 10_000

// get may make a rotation anew: one that was cleared from the table goes on for those that have it, and is forgotten after them.
func (t *turns) get(key string) *rotation {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.of[key]
	if r == nil {
		if len(t.of) >= maxTurns {
			clear(t.of)
		}
		r = &rotation{served: map[string]*service{}}
		t.of[key] = r
	}
	return r
}

// rotation is what is remembered of one pool or list of queues. mu guards everything in it and is never held during a
// claim. Two fetches at once may therefore both serve the same queue next.
type rotation struct {
	mu     sync.Mutex
	last   string // the queue that was served last
	served map[string]*service
	order  []string // queues as they were first seen, in the order of the lists
	since  time.Time
	jobs   int64 // started since then, and in the interval before
	before int64
}

// service is how a queue was served. A queue that is seen for the first time counts as served now, so it has to wait for an
// interval before it starves.
type service struct {
	at           time.Time // latest time that it gave a job, or had none
	jobs, before int64     // as in rotation
}

// rank is the place of a queue in the order. The caller has locked r.mu.
func (r *rotation) rank(q string) int {
	if q == "" {
		return -1
	}
	at := slices.Index(r.order, q)
	if at < 0 {
		at, r.order = len(r.order), append(r.order, q)
	}
	return at
}

// service is for callers that have locked r.mu.
func (r *rotation) service(q string, now time.Time) *service {
	s := r.served[q]
	if s == nil {
		s = &service{at: now}
		r.served[q] = s
	}
	return s
}

// serve counts jobs that were claimed, for the share that starving compares.
func (r *rotation) serve(q string, jobs int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = q
	s := r.service(q, now)
	s.at = now
	s.jobs += int64(jobs)
	r.jobs += int64(jobs)
}

// rest records that a queue has no jobs, so it does not starve. Without it a queue without jobs would be asked first by
// each fetch.
func (r *rotation) rest(q string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.service(q, now).at = now
}

// starving are the queues that come before the choice of the strategy, if they have jobs: those that were not served for the interval, and
// those with less than their share of what was started in this interval and the one before. The one that waits longest is
// first. The counts of the interval are shifted here, so they age only while fetches come.
func (r *rotation) starving(queues []string, s Starvation, now time.Time) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// After a pause of several intervals the counts of the one before are old; they are used once more.
	if now.Sub(r.since) >= s.interval {
		r.since, r.before, r.jobs = now, r.jobs, 0
		for _, q := range r.served {
			q.before, q.jobs = q.jobs, 0
		}
	}
	total := float64(r.jobs + r.before)
	for _, q := range queues {
		of := r.service(q, now)
		// Below one whole job a share says nothing yet.
		short := total*s.Ratio >= 1 && float64(of.jobs+of.before) < total*s.Ratio
		if now.Sub(of.at) >= s.interval || short {
			found = append(found, q)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return r.served[a].at.Compare(r.served[b].at) })
	return found
}
