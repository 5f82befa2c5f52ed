package queue

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/job"
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
