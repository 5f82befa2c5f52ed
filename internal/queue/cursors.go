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
// available; the same for jobs that other nodes report; and a survey without lower bound, every second while there are
// fetches.
//
// One lock guards all queues and all parked fetches: what it protects takes microseconds, and an enqueue must see the waiters and
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
	ranks []*rank // by priority, highest first
	// Claims read them from the configuration each time, so a change holds from the next claim on.
	weights weights // of the lanes, as of the latest claim
	lanes   int     // levels of lanes other than ""
	room    int     // most of them
	// It is cleared by a survey that has read all lanes while there was room for more.
	crowded bool // a lane was not remembered, because there were too many

	whole   surveys             // of all lanes
	tenants map[string]*surveys // of the lanes of one tenant, for fetches that take no others
}

// level is one priority of a lane of a queue.
// A level exists for each lane and priority in which the node knows jobs, and for lane "" of every priority that it has seen.
type level struct {
	turn

	party *party
	lane  string
	// Too low costs reading dead index entries, too high hides jobs until the next survey.
	low    int64    // no available job has a lower ready_seq; noJobs: there is no available job
	probes []*probe // of claims in flight
	picked *probe   // of the claim that is being prepared
}

// noJobs is the cursor of a level without jobs.
// It is above every number that PostgreSQL draws, so min and max need no special case.
const noJobs = math.MaxInt64

// probe is one level that a claim in flight reads. A job that becomes available meanwhile may be outside of the snapshot of
// the statement, so the cursor must not be raised above it.
//
// begin makes it and end or fail ends it, all under cursors.mu; between them only the claim that it belongs to writes got and
// last, without the lock.
type probe struct {
	level *level
	// JobFetch reads from here on. A job below it was not read by this claim; see find.
	low   int64 // the cursor when the statement began
	floor int64 // lowest ready_seq that became available since then
	want  int   // the most jobs that it may give
	got   int   // the jobs that were claimed
	last  int64 // ready_seq of the last of them
	// Such a want is given back if the statement did not come that far. Otherwise the lane would have lost its turn.
	turned bool // want was taken from the turns of its lane
	// The statement reads it only if those before have too few jobs.
	spare bool // its lane has no turn yet

	picks []*probe // of the first one of a priority whose lanes take turns: whose turn each slot was
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
	// maxCursors bounds the queues that are remembered. The first fetch from a forgotten queue surveys it again.
	// Clients choose the names. All queues are forgotten at once, which needs no order of their use; the surveys that follow cost
	// a statement per fetch.
	maxCursors = 100_000

	// maxLanes bounds the levels of lanes that are remembered of a queue. If it has more of them with jobs, a lane is forgotten
	// after its turn, and surveys, which go round, bring in the others.
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
		return // no fetch has asked for the queue; the first one surveys it
	}
	// nil: the queue has too many lanes. It is crowded then, and a survey finds the job.
	if l := q.level(p.Lane, p.Priority); l != nil {
		l.lower(p.Seq)
	}
}

// lower moves the cursor back, and keeps the claims in flight from raising it above seq again.
// Without the floor a claim that began before the commit, and so could not read the job, would raise the cursor above it when it
// ends.
func (l *level) lower(seq int64) {
	for _, p := range l.probes {
		p.floor = min(p.floor, seq)
	}
	l.set(min(l.low, seq))
}

// Several claims may read a level at the same time: SKIP LOCKED lets them pass each other.
func (l *level) begin(want int) *probe {
	p := &probe{level: l, low: l.low, floor: noJobs, want: want}
	l.probes = append(l.probes, p)
	return p
}

func (p *probe) queue() string { return p.level.party.rank.queue.name }

// end raises the cursor to low, but not above jobs that became available meanwhile.
func (p *probe) end(low int64) {
	l := p.level
	l.probes = slices.DeleteFunc(l.probes, func(other *probe) bool { return other == p })
	l.set(max(l.low, min(low, p.floor)))
}

// want is what a claim asks for.
type want struct {
	queues []string
	tenant string // whose lanes may be claimed from; "": all
	// They are jobs. A level may give up to slots of them.
	slots   int
	spare   int // further lanes that may be read if those that have their turn have too few jobs
	weights func(queue string) weights
}

// begin returns the probes of a claim, in dispatch order. It ends with the levels of a priority between which the jobs are divided: what is
// behind them may be claimed only when they have no more, by another claim. end or fail must follow.
//
// A queue that no fetch has asked for is left out. Claim surveys its queues first, so that happens only after forget.
func (c *cursors) begin(w want) (probes []*probe, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beginLocked(w)
}

// beginLocked is begin for callers that have locked c.mu.
func (c *cursors) beginLocked(w want) (probes []*probe, last bool) {
	for _, name := range w.queues {
		q := c.queues[name]
		if q == nil {
			continue
		}
		q.weights = w.weights(name)
		for _, r := range q.ranks {
			if probes, last = r.pick(probes, w); last {
				return probes, true
			}
		}
	}
	return probes, false
}

// end raises the cursors after a claim. full means that the claim got as many jobs as it wanted, or was cut: then it has not
// read beyond the last probe with a job.
//
// A level that gave fewer jobs than wanted, and was read to its end, has none left: its cursor goes to noJobs, unless a job has
// become available meanwhile (floor).
func (c *cursors) end(probes []*probe, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reached := len(probes)
	if full {
		reached = 1 + lastWithJob(probes)
	}
	for i, p := range slices.Backward(probes) { // so that those that were not reached have the next turn in their order
		switch {
		case i >= reached:
			p.end(p.level.low)
			p.giveBack()
		// It gave all that it might, so there may be more behind the last one. Numbers between its first and its last job that
		// were skipped belong to claims in flight; if these fail, they move the cursor back.
		case p.got == p.want || full && i == reached-1:
			p.end(p.last + 1)
			p.level.party.rank.queue.served(p.level)
		default:
			p.end(noJobs)
		}
	}
	for _, p := range probes { // so that the first one that has paid has the next turn
		p.payTurn()
	}
}

func lastWithJob(probes []*probe) int {
	last := -1
	for i, p := range probes {
		if p.got > 0 {
			last = i
		}
	}
	return last
}

// served makes room for lanes that are not remembered.
// The lane is dropped after its turn, although it may have more jobs: without that a queue with more lanes than maxLanes would
// never serve the rest.
func (q *queueCursor) served(l *level) {
	if q.crowded && l.lane != "" {
		l.set(noJobs)
	}
}

func (p *probe) giveBack() {
	if p.turned {
		p.level.giveBackTurn(p.want)
	}
}

// fail ends a claim that returned an error. The cursors move back to where it began: concurrent claims may have skipped jobs
// that this one had locked.
//
// It is right for claims whose outcome is unknown, too: a cursor may always be too low.
func (c *cursors) fail(probes []*probe) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Backward(probes) {
		p.end(p.level.low)
		p.level.party.rank.queue.restore(p)
		p.giveBack()
	}
}

// restore moves the cursor back to where a claim began. If the level was forgotten meanwhile, it is remembered again.
// A level that does not fit any more is left to the surveys.
func (q *queueCursor) restore(p *probe) {
	l := p.level
	if now := q.level(l.lane, l.party.rank.priority); now != nil {
		p.level = now
		now.lower(p.low)
	}
}

// forget drops all cursors, after a reset of the database.
// Surveys and turns of all queues go with them. Parked fetches stay.
func (c *cursors) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.queues)
	c.newest = 0
}

// idle reports whether a claim would send no statement.
// Package pool asks by Idle before it does more for a fetch than look into maps. It may miss a job that commits at this moment;
// the commit wakes parked fetches.
func (c *cursors) idle(f job.Fetch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range scopes(f.Queues, f.Tenant) {
		if of := c.surveys(s); !of.done || of.due(time.Now(), true) {
			return false
		}
		for _, r := range c.queues[s.queue].ranks {
			if r.count(s.tenant) > 0 {
				return false
			}
		}
	}
	return true
}

// surveys is when a queue, or the lanes of a tenant in it, was surveyed.
// Guarded by cursors.mu. The times are of this machine's monotonic clock: they only pace.
type surveys struct {
	done bool          // the latest survey succeeded. If not, each fetch begins with one: levels may be missing
	at   time.Time     // when the latest survey was begun; zero: one is due
	cost time.Duration // how long the latest one took, which decides how soon the next may follow
	// It moves only in queues with more than maxSurveyed levels.
	from spot // where the next one begins
}

// spot is a place in the order of lanes, and of priorities within a lane.
// A survey begins behind it. firstPriority is above all priorities (100), so spot{lane, firstPriority} has the whole lane behind
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
	// maxSurveyed bounds the levels that one survey reads. The next one goes on from there.
	// A survey reads an index entry or two per level, and more of dead ones.
	maxSurveyed = 1000

	// maxTenants bounds the tenants per queue whose surveys are remembered.
	maxTenants = 10_000
)

// scope is what a fetch may see: the lanes of one tenant, or all if tenant is "".
// It is a key of maps, of the waiters above all.
type scope struct {
	queue  string
	tenant string
}

// One per queue of a fetch, in the order of the fetch.
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

// surveys are those of a scope. The caller has locked c.mu.
// It makes what is missing, so that asking is what makes a node remember a queue.
func (c *cursors) surveys(s scope) *surveys {
	q := c.queues[s.queue]
	if q == nil {
		if len(c.queues) >= maxCursors {
			clear(c.queues)
		}
		q = &queueCursor{name: s.queue, room: c.maxLanes, whole: surveys{from: spot{"", firstPriority}}}
		c.queues[s.queue] = q
	}
	if s.tenant == "" {
		return &q.whole
	}
	of := q.tenants[s.tenant]
	if of == nil {
		if q.tenants == nil || len(q.tenants) >= maxTenants {
			q.tenants = map[string]*surveys{}
		}
		of = &surveys{from: spot{s.tenant, firstPriority}}
		q.tenants[s.tenant] = of
	}
	return of
}

// surveyDue returns what should be surveyed before a claim or, if the claim found nothing, after it. Surveys take at most a
// twentieth of the time: under a pinned xmin a survey walks every dead index entry.
// It marks them as begun, so of several fetches one surveys.
func (c *cursors) surveyDue(all []scope, foundNothing bool) (due []scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, s := range all {
		if of := c.surveys(s); of.due(now, foundNothing) {
			of.at = now
			due = append(due, s)
		}
	}
	return due
}

// A claim that found something surveys once a second at most, for jobs that cursors have passed. One that found nothing does so
// when 20 times the cost of the latest survey have passed.
func (s *surveys) due(now time.Time, foundNothing bool) bool {
	gap := max(time.Second, 20*s.cost)
	if foundNothing {
		gap = 20 * s.cost
	}
	return !s.done || now.Sub(s.at) >= gap
}

// ranges are the lanes that a survey reads of each scope: behind a spot, and before a lane.
// A tenant has two ranges, its own lane and those of its fairness keys, unless the last survey has ended among the latter.
func (c *cursors) ranges(due []scope) (p dbsqlc.JobFetchSurveyParams) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range due {
		add := func(from spot, before string) {
			p.Scopes, p.Queues, p.Befores = append(p.Scopes, int32(i)), append(p.Queues, s.queue), append(p.Befores, before)
			p.Lanes, p.Priorities = append(p.Lanes, from.lane), append(p.Priorities, from.priority)
		}
		from := c.surveys(s).from
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
	p.MaxRows = int32(max(maxSurveyed, 2*len(p.Queues)))
	return p
}

// survey reads the first available job per lane and priority, without the lower bound of the cursors. What has very many lanes
// takes several surveys; one that finds nothing has read all of them.
//
// It is a read of one statement per round, and changes nothing but the cursors of this node. Rounds follow while a scope has
// found nothing and has not read all of its lanes.
func (s *Store) survey(ctx context.Context, due []scope) (found []Place, err error) {
	if len(due) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // a worker that hangs up must not cost a connection
	defer cancel()
	// Jobs that wait for limits are in no level, so they are looked for beside.
	if err := s.surveyLimits(ctx, queuesOf(due)); err != nil {
		s.cursors.failSurvey(due)
		return nil, pg.ClientError(err)
	}
	for len(due) > 0 {
		start, params := time.Now(), s.cursors.ranges(due)
		rows, err := s.db.Q.JobFetchSurvey(ctx, params)
		if err != nil {
			s.cursors.failSurvey(due)
			return nil, pg.ClientError(err)
		}
		for _, r := range rows {
			found = append(found, Place{r.Queue, r.Lane, r.Priority, r.ReadySeq})
		}
		due = s.cursors.endSurvey(due, rows, len(rows) == int(params.MaxRows), time.Since(start))
	}
	return found, nil
}

// endSurvey moves the cursors back to what the survey found. It also reads rows that a claim in flight has locked, so a cursor can be
// too low, never too high. cut means that there may be more lanes than it found. It returns the scopes in which it has found
// nothing but has not begun with the first lane.
//
// Levels that it has not found are left alone: only claims raise cursors, as only they know what was locked meanwhile.
func (c *cursors) endSurvey(due []scope, found []dbsqlc.JobFetchSurveyRow, cut bool, took time.Duration) (again []scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make([]spot, len(due))
	for _, f := range found {
		next[f.Scope] = spot{f.Lane, f.Priority} // those of a scope are in order
		if q := c.queues[f.Queue]; q != nil {
			if l := q.level(f.Lane, f.Priority); l != nil {
				l.find(f.ReadySeq)
			}
		}
	}
	for i, s := range due {
		of, first := c.surveys(s), spot{s.tenant, firstPriority}
		of.done, of.cost = true, took
		switch {
		case cut && next[i] != spot{}:
			of.from = next[i]
		case next[i] == spot{} && of.from != first:
			again, of.from = append(again, s), first
		default:
			of.from = first
			q := c.queues[s.queue]
			q.crowded = q.crowded && q.lanes >= q.room
		}
	}
	return again
}

// find is lower for a job that a survey has found. A claim in flight that began behind it cannot have read it.
// A claim that began at or below seq has read it, or has passed it because another one had locked it: its end may raise the
// cursor.
func (l *level) find(seq int64) {
	for _, p := range l.probes {
		if seq < p.low {
			p.floor = min(p.floor, seq)
		}
	}
	l.set(min(l.low, seq))
}

// failSurvey ends a survey that returned an error. The next fetch makes another one.
func (c *cursors) failSurvey(due []scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range due {
		c.surveys(s).done = false
	}
}

// surveySoon lets the next fetch from each queue survey it.
// One fetch makes it, and the others claim at their cursors meanwhile; compare surveyAgain.
func (c *cursors) surveySoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		q.whole.at = time.Time{}
		for _, of := range q.tenants {
			of.at = time.Time{}
		}
	}
}

// surveyAgain lets the next fetch from the queue survey it: jobs that were held back can be claimed, and cursors may be above them.
// Unlike surveySoon it makes each fetch wait for a survey until one has succeeded.
func (c *cursors) surveyAgain(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[name]; q != nil {
		q.whole.done = false
		for _, of := range q.tenants {
			of.done = false
		}
	}
}
