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
type cursors struct {
	mu     sync.Mutex
	queues map[string]*queueCursor

	newest   int64 // highest ready_seq that this node has seen
	maxLanes int   // maxLanes; only tests change it

	waiters map[scope][]*waiter // by queue and tenant, in order of arrival
	parked  int
}

func newCursors() *cursors {
	return &cursors{queues: map[string]*queueCursor{}, waiters: map[scope][]*waiter{}, maxLanes: maxLanes}
}

// queueCursor is what this node knows of one queue. A queue gets one at the first fetch that asks for it.
type queueCursor struct {
	name    string
	ranks   []*rank // by priority, highest first
	weights weights // of the lanes, as of the latest claim
	lanes   int     // levels of lanes other than ""
	room    int     // most of them
	crowded bool    // a lane was not remembered, because there were too many

	whole   surveys             // of all lanes
	tenants map[string]*surveys // of the lanes of one tenant, for fetches that take no others
}

// level is one priority of a lane of a queue.
type level struct {
	turn

	party  *party
	lane   string
	low    int64    // no available job has a lower ready_seq; noJobs: there is no available job
	probes []*probe // of claims in flight
	picked *probe   // of the claim that is being prepared
}

// noJobs is the cursor of a level without jobs.
const noJobs = math.MaxInt64

// probe is one level that a claim in flight reads. A job that becomes available meanwhile may be outside of the snapshot of
// the statement, so the cursor must not be raised above it.
type probe struct {
	level  *level
	low    int64 // the cursor when the statement began
	floor  int64 // lowest ready_seq that became available since then
	want   int   // the most jobs that it may give
	got    int   // the jobs that were claimed
	last   int64 // ready_seq of the last of them
	turned bool  // want was taken from the turns of its lane

	picks []*probe // of the first one of a priority whose lanes take turns: whose turn each slot was
}

// Place is where an available job is in the dispatch order.
type Place struct {
	Queue    string
	Lane     string
	Priority int16
	Seq      int64 // ready_seq
}

const (
	// maxCursors bounds the queues that are remembered. The first fetch from a forgotten queue surveys it again.
	maxCursors = 100_000

	// maxLanes bounds the levels of lanes that are remembered of a queue. If it has more of them with jobs, a lane is forgotten
	// after its turn, and surveys, which go round, bring in the others.
	maxLanes = 50_000
)

// lower moves the cursor back to a job that is, or will be, available.
func (c *cursors) lower(p Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, p.Seq)
	q := c.queues[p.Queue]
	if q == nil {
		return // no fetch has asked for the queue; the first one surveys it
	}
	if l := q.level(p.Lane, p.Priority); l != nil {
		l.lower(p.Seq)
	}
}

// lower moves the cursor back, and keeps the claims in flight from raising it above seq again.
func (l *level) lower(seq int64) {
	for _, p := range l.probes {
		p.floor = min(p.floor, seq)
	}
	l.set(min(l.low, seq))
}

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
	queues  []string
	tenant  string // whose lanes may be claimed from; "": all
	slots   int
	spare   int // further lanes that may be read if those that have their turn have too few jobs
	weights func(queue string) weights
}

// begin returns the probes of a claim, in dispatch order. It ends with the levels of a priority between which the jobs are divided: what is
// behind them may be claimed only when they have no more, by another claim. end or fail must follow.
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
		case p.got == p.want || full && i == reached-1:
			p.end(p.last + 1)
			p.level.party.rank.queue.served(p.level)
		default:
			p.end(noJobs)
		}
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
func (q *queueCursor) restore(p *probe) {
	l := p.level
	if now := q.level(l.lane, l.party.rank.priority); now != nil {
		p.level = now
		now.lower(p.low)
	}
}

// forget drops all cursors, after a reset of the database.
func (c *cursors) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.queues)
	c.newest = 0
}

// idle reports whether a claim would send no statement.
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
