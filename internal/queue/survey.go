package queue

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

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
