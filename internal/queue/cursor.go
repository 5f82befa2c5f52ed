package queue

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// cursors holds, per queue and priority, the lowest ready_seq at which this node may find available jobs. Dead index entries
// at the head of a queue cannot be removed while any transaction pins xmin. A fetch that starts behind them stays at 4 ms;
// without the cursor it takes 13 ms, and more with every claimed job.
//
// A cursor may pass a job that commits late. Three things move it back: lower, called for every job that this node makes
// available; the same for jobs that other nodes report; and a survey without lower bound, every second while there are
// fetches.
type cursors struct {
	mu     sync.Mutex
	queues map[string]*queueCursor

	newest int64 // highest ready_seq that this node has seen

	waiters map[string][]*waiter // by queue, in order of arrival
	parked  int
}

// queueCursor is what this node knows of one queue. A queue gets one at the first fetch that asks for it.
type queueCursor struct {
	levels     []*level      // by lane and priority, highest first
	surveyed   bool          // the latest survey succeeded. If not, each fetch begins with one: levels may be missing
	surveyedAt time.Time     // when the latest survey was begun; zero: one is due
	surveyCost time.Duration // how long the latest one took, which decides how soon the next may follow
}

// level is one priority of a lane of a queue.
type level struct {
	lane     string
	priority int16
	low      int64    // no available job has a lower ready_seq; noJobs: there is no available job
	probes   []*probe // of claims and surveys in flight
}

// noJobs is the cursor of a level without jobs.
const noJobs = math.MaxInt64

// probe is one level that a claim or survey in flight reads. A job that becomes available meanwhile may be outside of the
// snapshot of the statement, so the cursor must not be raised above it.
type probe struct {
	queue string
	level *level
	low   int64 // the cursor when the statement began
	floor int64 // lowest ready_seq that became available since then
}

// Place is where an available job is in the dispatch order.
type Place struct {
	Queue    string
	Lane     string
	Priority int16
	Seq      int64 // ready_seq
}

// maxCursors bounds the queues that are remembered. The first fetch from a forgotten queue surveys it again.
const maxCursors = 100_000

// lower moves the cursor back to a job that is, or will be, available.
func (c *cursors) lower(p Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, p.Seq)
	q := c.queues[p.Queue]
	if q == nil {
		return // no fetch has asked for the queue; the first one surveys it
	}
	q.level(p.Lane, p.Priority).lower(p.Seq)
}

// lower moves the cursor back, and keeps the claims and surveys in flight from raising it above seq again.
func (l *level) lower(seq int64) {
	l.low = min(l.low, seq)
	for _, p := range l.probes {
		p.floor = min(p.floor, seq)
	}
}

// level finds a priority of a lane, or adds it without jobs. Levels are few and stay sorted, because claims read them in that order.
func (q *queueCursor) level(lane string, priority int16) *level {
	at, found := slices.BinarySearchFunc(q.levels, lane, func(l *level, lane string) int {
		return cmp.Or(strings.Compare(l.lane, lane), int(priority)-int(l.priority))
	})
	if !found {
		q.levels = slices.Insert(q.levels, at, &level{lane: lane, priority: priority, low: noJobs})
	}
	return q.levels[at]
}

func (l *level) begin(queue string, low int64) *probe {
	p := &probe{queue: queue, level: l, low: low, floor: noJobs}
	l.probes = append(l.probes, p)
	return p
}

func (p *probe) end() {
	p.level.probes = slices.DeleteFunc(p.level.probes, func(other *probe) bool { return other == p })
}

// begin returns the probes of a claim, in dispatch order. end or fail must follow.
func (c *cursors) begin(queues []string) []*probe {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beginLocked(queues, func(l *level) int64 { return l.low })
}

// beginLocked is begin with another lower bound per level, for callers that have locked c.mu.
func (c *cursors) beginLocked(queues []string, low func(*level) int64) (probes []*probe) {
	for _, name := range queues {
		q := c.queues[name]
		if q == nil {
			continue
		}
		for _, l := range q.levels {
			if from := low(l); from != noJobs {
				probes = append(probes, l.begin(name, from))
			}
		}
	}
	return probes
}

// end raises the cursors after a claim. last is the highest claimed ready_seq per probe. full means that the claim got as
// many jobs as it wanted: then it has not read beyond the last probe with a job.
func (c *cursors) end(probes []*probe, last map[*probe]int64, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stop := len(probes)
	if full {
		for i, p := range probes {
			if _, claimed := last[p]; claimed {
				stop = i
			}
		}
	}
	for i, p := range probes {
		p.end()
		switch {
		case i < stop:
			p.level.low = max(p.level.low, p.floor)
		case i == stop:
			p.level.low = max(p.level.low, min(last[p]+1, p.floor))
		}
	}
}

// fail ends a claim that returned an error. The cursors move back to where it began: concurrent claims may have skipped jobs
// that this one had locked.
func (c *cursors) fail(probes []*probe) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range probes {
		p.end()
		p.level.lower(p.low)
	}
}

// surveyDue returns the queues that should be surveyed before a claim or, if the claim found nothing, after it. Surveys take
// at most a twentieth of the time: under a pinned xmin a survey walks every dead index entry.
func (c *cursors) surveyDue(queues []string, foundNothing bool) (due []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, name := range queues {
		q := c.queues[name]
		if q == nil {
			if len(c.queues) >= maxCursors {
				clear(c.queues)
			}
			q = &queueCursor{}
			c.queues[name] = q
		}
		gap := max(time.Second, 20*q.surveyCost)
		if foundNothing {
			gap = 20 * q.surveyCost
		}
		if !q.surveyed || now.Sub(q.surveyedAt) >= gap {
			q.surveyedAt = now
			due = append(due, name)
		}
	}
	return due
}

// survey is a survey in flight.
type survey struct {
	queues []string
	probes []*probe
	start  time.Time
}

// beginSurvey begins probes of all levels of the queues. endSurvey or failSurvey must follow.
func (c *cursors) beginSurvey(queues []string) survey {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := survey{queues: queues, start: time.Now()}
	for _, name := range queues {
		if q := c.queues[name]; q != nil {
			for _, l := range q.levels {
				s.probes = append(s.probes, l.begin(name, l.low))
			}
		}
	}
	return s
}

// endSurvey sets the cursors to what the survey found. A level that it did not find has no jobs but those that became
// available since. The survey also reads rows that a claim in flight has locked, so a cursor can be too low, never too high.
func (c *cursors) endSurvey(s survey, found []Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setSurveyed(s, true)
	first := map[*level]int64{}
	for _, f := range found {
		if q := c.queues[f.Queue]; q != nil {
			first[q.level(f.Lane, f.Priority)] = f.Seq
		}
	}
	for _, p := range s.probes {
		p.end()
		seq, hasJobs := first[p.level]
		if !hasJobs {
			seq = noJobs
		}
		// A claim may have raised the cursor meanwhile above jobs that the survey found. Reading them again is cheap; missing a
		// job is not acceptable.
		p.level.low = min(seq, p.floor)
		delete(first, p.level)
	}
	for l, seq := range first { // levels that did not exist when the survey began
		l.low = min(l.low, seq)
	}
}

// failSurvey ends a survey that returned an error. The next fetch makes another one.
func (c *cursors) failSurvey(s survey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setSurveyed(s, false)
	for _, p := range s.probes {
		p.end()
	}
}

// setSurveyed keeps the cost of surveys that succeeded only: one that failed may have ended early, and is repeated anyway.
func (c *cursors) setSurveyed(s survey, ok bool) {
	cost := time.Since(s.start)
	for _, name := range s.queues {
		if q := c.queues[name]; q != nil {
			q.surveyed = ok
			if ok {
				q.surveyCost = cost
			}
		}
	}
}

// surveySoon lets the next fetch from each queue survey it.
func (c *cursors) surveySoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		q.surveyedAt = time.Time{}
	}
}

// surveyAgain lets the next fetch from the queue survey it: jobs that were held back can be claimed, and cursors may be above them.
func (c *cursors) surveyAgain(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[name]; q != nil {
		q.surveyed = false
	}
}

// forget drops all cursors, after a reset of the database.
func (c *cursors) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.queues)
	c.newest = 0
}
