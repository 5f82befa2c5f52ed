package queue

import (
	"math"
	"slices"
	"sync"
	"time"
)

// ready knows where this node may find available jobs: per queue and priority the lowest ready_seq that is still
// worth looking for. Dead index entries at the head of a queue cannot be cleaned while any transaction pins xmin; a
// fetch that starts behind them stays at 4 ms where one without the cursor is at 13 ms and growing.
//
// The cursor may pass a job that commits late. Three things bring it back: lower, called with every job that this node
// makes available; the relay's announcement of those that others made available; and a survey without lower bound
// every second while somebody fetches.
type ready struct {
	mu     sync.Mutex
	queues map[string]*readyQueue

	waiters map[string][]*waiter // by queue, first come first served
	parked  int
}

type readyQueue struct {
	levels     []*level // by priority, highest first
	known      bool     // the latest survey succeeded; otherwise each fetch makes one, or it would find nothing and say so
	surveyedAt time.Time
	surveyCost time.Duration
}

type level struct {
	priority int16
	low      int64    // nothing below it is worth looking for; nothingLeft: nothing at all
	looking  []*probe // claims in flight
}

const nothingLeft = math.MaxInt64

// probe is one place a claim looks at. A job that is announced while the claim runs may be outside its snapshot, so
// the claim must not raise the cursor above it.
type probe struct {
	queue    string
	priority int16
	low      int64
	floor    int64
	level    *level
}

// Place is a job that became available.
type Place struct {
	Queue    string
	Priority int16
	Seq      int64
}

func (r *ready) init() {
	r.queues = map[string]*readyQueue{}
	r.waiters = map[string][]*waiter{}
}

// maxReadyQueues bounds what is remembered; a forgotten queue is surveyed again when somebody fetches from it.
const maxReadyQueues = 100_000

// lower notes that a job at the place is (or will be) there to be found.
func (r *ready) lower(p Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[p.Queue]
	if q == nil {
		return // nobody has fetched from it; the first fetch surveys it
	}
	l := q.level(p.Priority)
	l.low = min(l.low, p.Seq)
	for _, c := range l.looking {
		c.floor = min(c.floor, p.Seq)
	}
}

func (q *readyQueue) level(priority int16) *level {
	at, found := slices.BinarySearchFunc(q.levels, priority, func(l *level, p int16) int { return int(p) - int(l.priority) })
	if !found {
		q.levels = slices.Insert(q.levels, at, &level{priority: priority, low: nothingLeft})
	}
	return q.levels[at]
}

// begin returns the places to look at for the queues, in dispatch order. end must follow.
func (r *ready) begin(queues []string) []*probe {
	r.mu.Lock()
	defer r.mu.Unlock()
	var probes []*probe
	for _, name := range queues {
		q := r.queues[name]
		if q == nil {
			continue
		}
		for _, l := range q.levels {
			if l.low == nothingLeft {
				continue
			}
			p := &probe{queue: name, priority: l.priority, low: l.low, floor: nothingLeft, level: l}
			l.looking = append(l.looking, p)
			probes = append(probes, p)
		}
	}
	return probes
}

// end raises the cursors to what a claim has learnt. last is the highest ready_seq claimed per place; more tells that
// the claim stopped because it had enough, at its last place. After an error nothing is raised, and what others may
// have skipped because this claim had it locked is announced again.
func (r *ready) end(probes []*probe, last map[*probe]int64, more, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stop := len(probes)
	if more {
		for i, p := range probes {
			if _, claimed := last[p]; claimed {
				stop = i
			}
		}
	}
	for i, p := range probes {
		l := p.level
		l.looking = slices.DeleteFunc(l.looking, func(c *probe) bool { return c == p })
		switch {
		case failed:
			l.low = min(l.low, p.low)
			for _, c := range l.looking {
				c.floor = min(c.floor, p.low)
			}
		case i < stop:
			l.low = max(l.low, min(nothingLeft, p.floor))
		case i == stop:
			l.low = max(l.low, min(last[p]+1, p.floor))
		}
	}
}

// surveyDue picks the queues that should be surveyed before a claim, or, if the claim found nothing, after it. A survey
// never takes more than a twentieth of the time: under a pinned xmin it walks every dead entry.
func (r *ready) surveyDue(queues []string, foundNothing bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []string
	now := time.Now()
	for _, name := range queues {
		q := r.queues[name]
		if q == nil {
			if len(r.queues) >= maxReadyQueues {
				clear(r.queues)
			}
			q = &readyQueue{}
			r.queues[name] = q
		}
		gap := max(time.Second, 20*q.surveyCost)
		if foundNothing {
			gap = 20 * q.surveyCost
		}
		if !q.known || now.Sub(q.surveyedAt) >= gap {
			q.surveyedAt = now
			due = append(due, name)
		}
	}
	return due
}

// surveyBegin is begin for all levels of the queues, whatever their cursors.
func (r *ready) surveyBegin(queues []string) []*probe {
	r.mu.Lock()
	defer r.mu.Unlock()
	var probes []*probe
	for _, name := range queues {
		if q := r.queues[name]; q != nil {
			for _, l := range q.levels {
				p := &probe{queue: name, priority: l.priority, low: l.low, floor: nothingLeft, level: l}
				l.looking = append(l.looking, p)
				probes = append(probes, p)
			}
		}
	}
	return probes
}

// surveyEnd sets the cursors to what the survey saw; levels it did not see hold nothing but what was announced since.
// Rows that a claim in flight has locked count as seen, so a cursor can come out low, never high.
func (r *ready) surveyEnd(queues []string, probes []*probe, found []Place, cost time.Duration, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := map[*level]int64{}
	for _, name := range queues {
		if q := r.queues[name]; q != nil {
			q.known = !failed
			if !failed {
				q.surveyCost = cost
			}
		}
	}
	for _, f := range found {
		if q := r.queues[f.Queue]; q != nil {
			at[q.level(f.Priority)] = f.Seq
		}
	}
	for _, p := range probes {
		l := p.level
		l.looking = slices.DeleteFunc(l.looking, func(c *probe) bool { return c == p })
		if failed {
			continue
		}
		seq, seen := at[l]
		if !seen {
			seq = nothingLeft
		}
		// Another claim may have raised the cursor meanwhile for rows that this survey still saw; looking at them
		// again is cheap, missing them is not.
		l.low = min(seq, p.floor)
		delete(at, l)
	}
	for l, seq := range at { // levels that were unknown when the survey began
		l.low = min(l.low, seq)
	}
}

// forget drops all that is known, after a reset.
func (r *ready) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.queues)
}
