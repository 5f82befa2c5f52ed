package pool

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// choice is how a fetch chooses between its queues. The weights may be those of a pool and are not changed.
type choice struct {
	key        string // of what is remembered between fetches
	strategy   string
	weights    map[string]int64
	starvation Starvation
}

// Such a fetch is left to package queue: its order of queues is the list.
func (c choice) plain() bool {
	return (c.strategy == "" || c.strategy == job.StrategyStrict) && !c.starvation.Enabled
}

// It is a key of a map only, so a comma in a name would at worst mix two lists.
func join(queues []string) string { return strings.Join(queues, ",") }

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

// Only what was claimed counts as served.
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

// The draw is independent for each slot: shares hold on average, and nothing has to be remembered or shared by nodes.
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

// A rotation that was cleared from the table goes on for those that have it, and is forgotten after them.
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

// It is for a reset of the database.
func (t *turns) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.of)
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

// The caller has locked r.mu.
func (r *rotation) service(q string, now time.Time) *service {
	s := r.served[q]
	if s == nil {
		s = &service{at: now}
		r.served[q] = s
	}
	return s
}

// It counts jobs that were claimed, for the share that starving compares.
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
