package queue

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// cursors holds, per queue, lane and priority, the lowest ready_seq at which this node may find available jobs. Dead index
// entries at the head of a queue cannot be removed while any transaction pins xmin. A fetch that starts behind them stays at
// 4 ms; without the cursor it takes 13 ms, and more with every claimed job.
//
// A cursor may pass a job that commits late. Three things move it back: lower, called for every job that this node makes
// available; the same for jobs that other nodes report; and a rescan without lower bound, every second while there are
// fetches.
//
// One lock guards all queues and all waiting fetches: what it protects takes microseconds, and an enqueue must see the waiters and
// the cursors of its queue in one step. No statement is sent while it is locked.
type cursors struct {
	mu     sync.Mutex
	queues map[string]*queueCursor

	// 0: none yet. beginWith uses it as a lower bound of numbers that are going to be drawn, so it must never be too high. A reset
	// of the database starts the sequence anew, hence forget.
	newest   int64 // highest ready_seq that this node has seen
	maxLanes int   // maxLanes; only tests change it

	// A fetch of several queues is in the list of each.
	waiters map[scope][]*waiter // by queue and tenant, in order of arrival
	// A fetch that waits for three queues counts once.
	parked int
}

func newCursors() *cursors {
	return &cursors{queues: map[string]*queueCursor{}, waiters: map[scope][]*waiter{}, maxLanes: maxLanes}
}

// queueCursor is what this node knows of one queue. A queue gets one at the first fetch that asks for it.
//
// All fields are guarded by cursors.mu. A queue that is forgotten (maxCursors) is made anew; claims in flight keep the old one
// and change nothing of the new one.
type queueCursor struct {
	name  string
	rings []*priorityRing // by priority, highest first
	// Claims read them from the configuration each time, so a change holds from the next claim on.
	weights  weights // of the lanes, as of the latest claim
	lanes    int     // lane cursors, but for those of lane ""
	maxLanes int     // the most of them
	// It is cleared by a rescan that has read all lanes when more could be remembered.
	crowded bool // a lane was not remembered, because there were too many

	whole   rescans             // of all lanes
	tenants map[string]*rescans // of the lanes of one tenant, for fetches that take no others
}

// laneCursor is one priority of a lane of a queue.
// It exists for each lane and priority in which the node knows jobs, and for lane "" of every priority that it has seen.
type laneCursor struct {
	ringPlace

	tenantRing *tenantRing
	lane       string
	// Too low costs reading dead index entries, too high hides jobs until the next rescan.
	low    int64         // no available job has a lower ready_seq; noJobs: there is no available job
	reads  []*cursorRead // of claims in flight
	picked *cursorRead   // of the claim that is being prepared
}

// noJobs is where a lane cursor without jobs stands.
// It is above every number that PostgreSQL draws, so min and max need no special case.
const noJobs = math.MaxInt64

// cursorRead is one lane cursor that a claim in flight reads. A job that becomes available meanwhile may be outside of the snapshot of
// the statement, so the cursor must not be raised above it.
//
// begin makes it and end or fail ends it, all under cursors.mu; between them only the claim that it belongs to writes got and
// last, without the lock.
type cursorRead struct {
	cursor *laneCursor
	// JobFetch reads from here on. A job below it was not read by this claim; see endRescan.
	low   int64 // the cursor when the statement began
	floor int64 // lowest ready_seq that became available since then
	want  int   // the most jobs that it may give
	got   int   // the jobs that were claimed
	last  int64 // ready_seq of the last of them
	// Such a want is given back if the statement did not come that far. Otherwise the lane would have lost its turn.
	turned bool // want was taken from the turns of its lane
	// The statement reads it only if those before have too few jobs.
	lookahead bool // its lane has no turn yet

	slotOrder []*cursorRead // of the first one of a priority whose lanes take turns: whose turn each slot was
}

// Place is where an available job is in the dispatch order.
// Relays publish places in notifications, so it is what nodes tell each other about available jobs.
type Place struct {
	Queue    string
	Lane     string
	Priority int16
	Seq      int64 // ready_seq
}

const (
	// maxCursors bounds the queues that are remembered. The first fetch from a forgotten queue rescans it again.
	// Clients choose the names. All queues are forgotten at once, which needs no order of their use; the rescans that follow cost
	// a statement per fetch.
	maxCursors = 100_000

	// maxLanes bounds the lane cursors that are remembered of a queue. If it has more of them with jobs, a lane is forgotten
	// after its turn, and rescans, which go round, bring in the others.
	maxLanes = 50_000
)

// lower moves the cursor back to a job that is, or will be, available.
// It must be called after the commit of the job: a claim that begins between a lowering and the commit would find nothing and
// raise the cursor again.
func (c *cursors) lower(p Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, p.Seq)
	q := c.queues[p.Queue]
	if q == nil {
		return // no fetch has asked for the queue; the first one rescans it
	}
	// nil: the queue has too many lanes. It is crowded then, and a rescan finds the job.
	if l := q.cursor(p.Lane, p.Priority); l != nil {
		l.lower(p.Seq)
	}
}

// lower moves the cursor back, and keeps the claims in flight from raising it above seq again.
// Without the floor a claim that began before the commit, and so could not read the job, would raise the cursor above it when it
// ends.
func (l *laneCursor) lower(seq int64) {
	for _, p := range l.reads {
		p.floor = min(p.floor, seq)
	}
	l.set(min(l.low, seq))
}

// begin lets a claim read a lane cursor, as several may at the same time: SKIP LOCKED lets them pass each other.
func (l *laneCursor) begin(want int) *cursorRead {
	p := &cursorRead{cursor: l, low: l.low, floor: noJobs, want: want}
	l.reads = append(l.reads, p)
	return p
}

func (p *cursorRead) queue() string { return p.cursor.tenantRing.priorityRing.queue.name }

// end raises the cursor to low, but not above jobs that became available meanwhile.
func (p *cursorRead) end(low int64) {
	l := p.cursor
	l.reads = slices.DeleteFunc(l.reads, func(other *cursorRead) bool { return other == p })
	l.set(max(l.low, min(low, p.floor)))
}

// claimRequest is what a claim asks for.
type claimRequest struct {
	queues []string
	tenant string // whose lanes may be claimed from; "": all
	// They are jobs. A lane cursor may give up to slots of them.
	slots     int
	lookahead int // further lanes that may be read if those that have their turn have too few jobs
	weights   func(queue string) weights
}

// begin returns the reads of a claim, in dispatch order. It ends with the lane cursors of a priority between which the jobs are divided:
// what is behind them may be claimed only when they have no more, by another claim. end or fail must follow.
//
// A queue that no fetch has asked for is left out. Claim rescans its queues first, so that happens only after forget.
func (c *cursors) begin(w claimRequest) (reads []*cursorRead, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beginLocked(w)
}

// beginLocked is begin for callers that have locked c.mu.
func (c *cursors) beginLocked(w claimRequest) (reads []*cursorRead, last bool) {
	for _, name := range w.queues {
		q := c.queues[name]
		if q == nil {
			continue
		}
		q.weights = w.weights(name)
		for _, r := range q.rings {
			if reads, last = r.pick(reads, w); last {
				return reads, true
			}
		}
	}
	return reads, false
}

// end raises the cursors after a claim. full means that the claim got as many jobs as it wanted, or was cut: then it has not
// read beyond the last read with a job.
//
// A lane cursor that gave fewer jobs than wanted, and was read to its end, has none left: its cursor goes to noJobs, unless a job has
// become available meanwhile (floor).
func (c *cursors) end(reads []*cursorRead, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reached := len(reads)
	for full && reached > 0 && reads[reached-1].got == 0 {
		reached--
	}
	for i, p := range slices.Backward(reads) { // so that those that were not reached have the next turn in their order
		switch {
		case i >= reached:
			p.end(p.cursor.low)
			p.giveBack()
		// It gave all that it might, so there may be more behind the last one. Numbers between its first and its last job that
		// were skipped belong to claims in flight; if these fail, they move the cursor back.
		case p.got == p.want || full && i == reached-1:
			p.end(p.last + 1)
			// For lanes that are not remembered: the lane is dropped after its turn, although it may have more jobs. Without that a
			// queue with more lanes than maxLanes would never serve the rest.
			if p.cursor.tenantRing.priorityRing.queue.crowded && p.cursor.lane != "" {
				p.cursor.set(noJobs)
			}
		default:
			p.end(noJobs)
		}
	}
	// Lookahead lanes take their turn for the jobs that they have given, the first one first. One that has no more jobs has no turns.
	for _, p := range reads {
		if p.lookahead && p.got > 0 && p.cursor.at != nil {
			p.cursor.charge(p.got)
		}
	}
}

func (p *cursorRead) giveBack() {
	if p.turned {
		p.cursor.refund(p.want)
	}
}

// fail ends a claim that returned an error. The cursors move back to where it began: concurrent claims may have skipped jobs
// that this one had locked.
//
// It is right for claims whose outcome is unknown, too: a cursor may always be too low.
func (c *cursors) fail(reads []*cursorRead) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Backward(reads) {
		p.end(p.cursor.low)
		// A lane cursor that was forgotten meanwhile is remembered again. One that does not fit any more is left to the rescans.
		ring := p.cursor.tenantRing.priorityRing
		if now := ring.queue.cursor(p.cursor.lane, ring.priority); now != nil {
			p.cursor = now
			now.lower(p.low)
		}
		p.giveBack()
	}
}

// idle reports whether a claim would send no statement.
// Package pool asks by Idle before it does more for a fetch than look into maps. It may miss a job that commits at this moment;
// the commit wakes waiting fetches.
func (c *cursors) idle(f job.Fetch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range scopes(f.Queues, f.Tenant) {
		if of := c.rescans(s); !of.done || of.due(time.Now(), true) {
			return false
		}
		for _, r := range c.queues[s.queue].rings {
			if r.count(s.tenant) > 0 {
				return false
			}
		}
	}
	return true
}

// rescans is when a queue, or the lanes of a tenant in it, was rescanned.
// Guarded by cursors.mu. The times are of this machine's monotonic clock: they only pace.
type rescans struct {
	done bool          // the latest rescan succeeded. If not, each fetch begins with one: lane cursors may be missing
	at   time.Time     // when the latest rescan was begun; zero: one is due
	cost time.Duration // how long the latest one took, which decides how soon the next may follow
	// It moves only in queues with more than maxRescanned lane cursors.
	from spot // where the next one begins
}

// spot is a place in the order of lanes, and of priorities within a lane.
// A rescan begins behind it. firstPriority is above all priorities (100), so spot{lane, firstPriority} has the whole lane behind
// it.
type spot struct {
	lane     string
	priority int16
}

// Every lane begins with a character of the name of a tenant, or a slash. So the lanes of a tenant with fairness keys are those
// between tenant/ and tenant0, and ~ is behind all.
const (
	firstPriority = math.MaxInt16
	behindSlash   = string('/' + 1)
	behindAll     = "~"
)

const (
	// maxRescanned bounds the lane cursors that one rescan reads. The next one goes on from there.
	// A rescan reads an index entry or two per lane cursor, and more of dead ones.
	maxRescanned = 1000

	// maxTenants bounds the tenants per queue whose rescans are remembered.
	maxTenants = 10_000
)

// scope is what a fetch may see: the lanes of one tenant, or all if tenant is "".
// It is a key of maps, of the waiters above all.
type scope struct {
	queue  string
	tenant string
}

// scopes has one per queue of a fetch, in the order of the fetch.
func scopes(queues []string, tenant string) []scope {
	s := make([]scope, len(queues))
	for i, q := range queues {
		s[i] = scope{q, tenant}
	}
	return s
}

// queuesOf names the queues of the scopes, each once.
func queuesOf(all []scope) []string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.queue
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rescans are those of a scope. The caller has locked c.mu.
// It makes what is missing, so that asking is what makes a node remember a queue.
func (c *cursors) rescans(s scope) *rescans {
	q := c.queues[s.queue]
	if q == nil {
		if len(c.queues) >= maxCursors {
			clear(c.queues)
		}
		q = &queueCursor{name: s.queue, maxLanes: c.maxLanes, whole: rescans{from: spot{"", firstPriority}}}
		c.queues[s.queue] = q
	}
	if s.tenant == "" {
		return &q.whole
	}
	of := q.tenants[s.tenant]
	if of == nil {
		if q.tenants == nil || len(q.tenants) >= maxTenants {
			q.tenants = map[string]*rescans{}
		}
		of = &rescans{from: spot{s.tenant, firstPriority}}
		q.tenants[s.tenant] = of
	}
	return of
}

// rescanDue returns what should be rescanned before a claim or, if the claim found nothing, after it. Rescans take at most a
// twentieth of the time: under a pinned xmin a rescan walks every dead index entry.
// It marks them as begun, so of several fetches one rescans.
func (c *cursors) rescanDue(all []scope, foundNothing bool) (due []scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, s := range all {
		if of := c.rescans(s); of.due(now, foundNothing) {
			of.at = now
			due = append(due, s)
		}
	}
	return due
}

// due lets a claim that found something rescan once a second at most, for jobs that cursors have passed. One that found nothing does so
// when 20 times the cost of the latest rescan have passed.
func (s *rescans) due(now time.Time, foundNothing bool) bool {
	pause := max(time.Second, 20*s.cost)
	if foundNothing {
		pause = 20 * s.cost
	}
	return !s.done || now.Sub(s.at) >= pause
}

// ranges are the lanes that a rescan reads of each scope: behind a spot, and before a lane.
// A tenant has two ranges, its own lane and those of its fairness keys, unless the last rescan has ended among the latter.
func (c *cursors) ranges(due []scope) (p dbsqlc.JobFetchRescanParams) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range due {
		add := func(from spot, before string) {
			p.Scopes, p.Queues, p.Befores = append(p.Scopes, int32(i)), append(p.Queues, s.queue), append(p.Befores, before)
			p.Lanes, p.Priorities = append(p.Lanes, from.lane), append(p.Priorities, from.priority)
		}
		from := c.rescans(s).from
		switch {
		case s.tenant == "":
			add(from, behindAll)
		case from.lane == s.tenant:
			add(from, s.tenant)
			add(spot{s.tenant + "/", firstPriority}, s.tenant+behindSlash)
		default:
			add(from, s.tenant+behindSlash)
		}
	}
	// At least two rows per range, or a call with many queues could end before it has read each of them once.
	p.MaxRows = int32(max(maxRescanned, 2*len(p.Queues)))
	return p
}

// rescan reads the first available job per lane and priority, without the lower bound of the cursors. What has very many lanes
// takes several rescans; one that finds nothing has read all of them.
//
// It is a read of one statement per round, and changes nothing but the cursors of this node. Rounds follow while a scope has
// found nothing and has not read all of its lanes.
func (s *Store) rescan(ctx context.Context, due []scope) (found []Place, err error) {
	if len(due) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // a worker that hangs up must not cost a connection
	defer cancel()
	// Jobs that wait for limits have no place, so they are looked for beside.
	if s.limitBlocked.any.Load() {
		names, err := s.db.Q.LimitListBlockedQueues(ctx, queuesOf(due))
		if err != nil {
			s.cursors.failRescan(due)
			return nil, pg.ClientError(err)
		}
		if len(names) > 0 {
			s.limitBlocked.add(names...)
		}
	}
	for len(due) > 0 {
		start, params := time.Now(), s.cursors.ranges(due)
		rows, err := s.db.Q.JobFetchRescan(ctx, params)
		if err != nil {
			s.cursors.failRescan(due)
			return nil, pg.ClientError(err)
		}
		for _, r := range rows {
			found = append(found, Place{r.Queue, r.Lane, r.Priority, r.ReadySeq})
		}
		due = s.cursors.endRescan(due, rows, len(rows) == int(params.MaxRows), time.Since(start))
	}
	return found, nil
}

// endRescan moves the cursors back to what the rescan found. It also reads rows that a claim in flight has locked, so a cursor can be
// too low, never too high. cut means that there may be more lanes than it found. It returns the scopes in which it has found
// nothing but has not begun with the first lane.
//
// Lane cursors that it has not found are left alone: only claims raise cursors, as only they know what was locked meanwhile.
func (c *cursors) endRescan(due []scope, found []dbsqlc.JobFetchRescanRow, cut bool, took time.Duration) (again []scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make([]spot, len(due))
	for _, f := range found {
		next[f.Scope] = spot{f.Lane, f.Priority} // those of a scope are in order
		if q := c.queues[f.Queue]; q != nil {
			if l := q.cursor(f.Lane, f.Priority); l != nil {
				// As lower, but a claim in flight that began at or below the job has read it, or has passed it because another one had
				// locked it: its end may raise the cursor.
				for _, p := range l.reads {
					if f.ReadySeq < p.low {
						p.floor = min(p.floor, f.ReadySeq)
					}
				}
				l.set(min(l.low, f.ReadySeq))
			}
		}
	}
	for i, s := range due {
		of, first := c.rescans(s), spot{s.tenant, firstPriority}
		of.done, of.cost = true, took
		switch {
		case cut && next[i] != spot{}:
			of.from = next[i]
		case next[i] == spot{} && of.from != first:
			again, of.from = append(again, s), first
		default:
			of.from = first
			q := c.queues[s.queue]
			q.crowded = q.crowded && q.lanes >= q.maxLanes
		}
	}
	return again
}

// failRescan ends a rescan that returned an error. The next fetch makes another one.
func (c *cursors) failRescan(due []scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range due {
		c.rescans(s).done = false
	}
}

// rescanSoon lets the next fetch from each queue rescan it.
// One fetch makes it, and the others claim at their cursors meanwhile; compare rescanAgain.
func (c *cursors) rescanSoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		q.whole.at = time.Time{}
		for _, of := range q.tenants {
			of.at = time.Time{}
		}
	}
}

// rescanAgain lets the next fetch from the queue rescan it: jobs that were held back can be claimed, and cursors may be above them.
// Unlike rescanSoon it makes each fetch wait for a rescan until one has succeeded.
func (c *cursors) rescanAgain(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[name]; q != nil {
		q.whole.done = false
		for _, of := range q.tenants {
			of.done = false
		}
	}
}
