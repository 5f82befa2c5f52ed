package queue

import (
	"container/list"
	"slices"

	"github.com/ojsd/ojsd/internal/job"
)

// rank is one priority of a queue. Its tenants take turns, and the lanes of a tenant do: a tenant with many lanes gets no more
// than one with few. Almost every rank has one tenant with one lane, "".
//
// Everything in this file is guarded by cursors.mu. Turns are memory of one node: nodes divide a queue independently, each in the
// right shares (docs/reference/fairness.md, Fair queues).
type rank struct {
	queue    *queueCursor
	priority int16
	parties  map[string]*party // by tenant
	turns    list.List         // of *party with jobs, next first
	// The same as the sum of the lengths of the lists of its parties.
	ready int // levels with jobs
}

// party is the lanes of one tenant, "" for those without one.
// A party exists while one of its levels does.
type party struct {
	turn

	rank   *rank
	tenant string
	levels map[string]*level // by lane
	turns  list.List         // of *level with jobs, next first
}

// turn is the place of a party or level in a list of turns.
type turn struct {
	at   *list.Element // nil: it has no jobs
	left int           // jobs that it may give until the next has its turn; 0: as many as its weight
}

// The place stays at the front until the weight is used up, so that a weight of 3 gives three jobs in a row.
func (t *turn) take(turns *list.List, n, weight int) {
	if t.left == 0 {
		t.left = weight
	}
	if t.left = max(0, t.left-n); t.left == 0 {
		turns.MoveToBack(t.at)
	}
}

// giveBack undoes take for a claim that did not come that far.
// It goes to the front, as it was there when the turn was taken. Turns must be given back in the reverse order for that.
func (t *turn) giveBack(turns *list.List, n, weight int) {
	if t.left += n; t.left >= weight {
		t.left = 0
	}
	turns.MoveToFront(t.at)
}

// weights says how many jobs a tenant or lane gives when it has its turn. The zero value gives one to each.
type weights struct {
	ofTenants bool // of tenants; else of fairness keys
	// It belongs to the configuration that all share, and is only read.
	of map[string]int64
}

func (w weights) party(p *party) int {
	if w.ofTenants {
		return w.weight(p.tenant)
	}
	return 1
}

func (w weights) level(l *level) int {
	if w.ofTenants || len(w.of) == 0 {
		return 1
	}
	return w.weight(job.FairKeyOf(l.lane))
}

// A name that is missing has 1. Above maxClaim a weight would not fit into a claim.
func (w weights) weight(name string) int {
	if n, ok := w.of[name]; ok && n > 0 {
		return int(min(n, maxClaim))
	}
	return 1
}

// rank finds a priority, or adds it. Ranks are few and stay sorted, because claims read them in that order.
func (q *queueCursor) rank(priority int16) *rank {
	at, found := slices.BinarySearchFunc(q.ranks, priority, func(r *rank, p int16) int { return int(p) - int(r.priority) })
	if !found {
		q.ranks = slices.Insert(q.ranks, at, &rank{queue: q, priority: priority, parties: map[string]*party{}})
	}
	return q.ranks[at]
}

// level finds a priority of a lane, or adds it without jobs. It returns nil if there is no room: then a survey finds the lane later.
//
// Lane "" has always room: it is the only one of most queues, and there are at most 201 of it.
func (q *queueCursor) level(lane string, priority int16) *level {
	r, tenant := q.rank(priority), job.TenantOf(lane)
	p := r.parties[tenant]
	if p != nil {
		if l := p.levels[lane]; l != nil {
			return l
		}
	}
	if lane != "" && q.lanes >= q.room {
		q.crowded = true
		return nil
	}
	if p == nil {
		p = &party{rank: r, tenant: tenant, levels: map[string]*level{}}
		r.parties[tenant] = p
	}
	l := &level{party: p, lane: lane, low: noJobs}
	p.levels[lane] = l
	if lane != "" {
		q.lanes++
	}
	return l
}

// set moves the cursor, and lets the level take turns while it has jobs.
// It is the only place that changes low, so that turns, ready and low agree.
func (l *level) set(low int64) {
	l.low = low
	p := l.party
	r := p.rank
	switch {
	case low != noJobs && l.at == nil:
		if l.at = p.turns.PushBack(l); p.at == nil {
			p.at = r.turns.PushBack(p)
		}
		r.ready++
	case low == noJobs && l.at != nil:
		// An unused part of its turn goes with it: a lane that has jobs again starts at the end.
		p.turns.Remove(l.at)
		l.turn = turn{}
		if p.turns.Len() == 0 {
			r.turns.Remove(p.at)
			p.turn = turn{}
		}
		r.ready--
	}
	l.forget()
}

// forget drops a level without jobs, unless a claim reads it. Lane "" is kept: most queues have no other.
// A level that was dropped before, and is in the hands of a claim still, is not the one in the map any more.
func (l *level) forget() {
	p := l.party
	if l.low != noJobs || len(l.probes) > 0 || l.lane == "" || p.levels[l.lane] != l {
		return
	}
	delete(p.levels, l.lane)
	p.rank.queue.lanes--
	if len(p.levels) == 0 {
		delete(p.rank.parties, p.tenant)
	}
}

// next is the level whose turn it is, of all tenants or of one; nil if none has jobs.
// A fetch for one tenant does not look at the order of the tenants.
func (r *rank) next(tenant string) *level {
	var p *party
	if tenant != "" {
		p = r.parties[tenant]
	} else if e := r.turns.Front(); e != nil {
		p = e.Value.(*party)
	}
	if p == nil || p.turns.Len() == 0 {
		return nil
	}
	return p.turns.Front().Value.(*level)
}

// count is how many levels of all tenants or of one have jobs.
func (r *rank) count(tenant string) int {
	if tenant == "" {
		return r.ready
	}
	if p := r.parties[tenant]; p != nil {
		return p.turns.Len()
	}
	return 0
}

// pick adds the probes of the levels whose turn it is. Together they may give as many jobs as wanted; up to spare further levels,
// which the statement reads only if those before have too few, may give those of one turn. It reports whether nothing
// behind this rank may be claimed by the same statement: there are more levels, or one of them may have more than it may give.
//
// Spare levels save statements: a cursor may be too low and its lane without a job, or a lane with a large weight may have few.
// They take their turns when they have given jobs (payTurn).
func (r *rank) pick(probes []*probe, w want) (_ []*probe, last bool) {
	ready, first := r.count(w.tenant), len(probes)
	if ready == 1 { // as in every queue without lanes: there is nothing to take turns
		return append(probes, r.next(w.tenant).begin(w.slots)), false
	}
	// One element per slot: a lane may have several turns in a claim.
	picks := make([]*probe, 0, w.slots)
	for range w.slots {
		l := r.next(w.tenant)
		if l == nil {
			break
		}
		if l.picked == nil {
			l.picked = l.begin(0)
			probes = append(probes, l.picked)
		}
		l.picked.want++
		l.picked.turned = true
		l.takeTurn(1)
		picks = append(picks, l.picked)
	}
	if len(picks) > 0 {
		picks[0].picks = picks
	}
	for _, l := range r.others(w.tenant, w.spare) {
		p := l.begin(min(r.queue.weights.level(l), w.slots))
		p.spare = true
		probes = append(probes, p)
	}
	for _, p := range probes[first:] {
		p.level.picked = nil
		last = last || p.want < w.slots
	}
	return probes, last || len(probes)-first < ready
}

// others are up to n levels with jobs that are not picked, of all tenants or of one, in the order in which they will have their turns. The
// lists stay as they are: a place that is taken out and given back would stand before those that have not used up their weight.
//
// It walks over no more levels than it returns and are picked.
func (r *rank) others(tenant string, n int) (found []*level) {
	type begun struct {
		next  *list.Element // of the levels of a party
		share int           // how many levels the party gives in its turn
	}
	var open []begun
	add := func(p *begun) {
		for given := 0; given < p.share && p.next != nil && len(found) < n; p.next = p.next.Next() {
			if l := p.next.Value.(*level); l.picked == nil {
				found, given = append(found, l), given+1
			}
		}
	}
	begin := func(p *party) {
		open = append(open, begun{p.turns.Front(), r.queue.weights.party(p)})
		add(&open[len(open)-1])
	}
	if tenant == "" {
		for e := r.turns.Front(); e != nil && len(found) < n; e = e.Next() {
			begin(e.Value.(*party))
		}
	} else if p := r.parties[tenant]; p != nil {
		begin(p)
	}
	for len(open) > 0 && len(found) < n {
		open = slices.DeleteFunc(open, func(p begun) bool { return p.next == nil })
		for i := range open {
			add(&open[i])
		}
	}
	return found
}

// Turns are taken before the statement, so that a claim which begins meanwhile goes on with the next lane.
func (l *level) takeTurn(jobs int) {
	p := l.party
	w := p.rank.queue.weights
	l.take(&p.turns, jobs, w.level(l))
	p.take(&p.rank.turns, jobs, w.party(p))
}

// payTurn takes the turn of a spare level for the jobs that it has given.
// One that has no more jobs has no turns.
func (p *probe) payTurn() {
	if p.spare && p.got > 0 && p.level.at != nil {
		p.level.takeTurn(p.got)
	}
}

// giveBackTurn undoes takeTurn, if the level has jobs still.
// A level that has none any more is in no list.
func (l *level) giveBackTurn(jobs int) {
	if l.at == nil {
		return
	}
	p := l.party
	w := p.rank.queue.weights
	l.giveBack(&p.turns, jobs, w.level(l))
	p.giveBack(&p.rank.turns, jobs, w.party(p))
}

// cut lowers what probes that take turns may give to fewer jobs, for a claim that learns of a limit after it has begun. The turns behind
// those jobs are given back, the last one first. Spare levels stay: they are read only if those before have too few.
func (c *cursors) cut(probes []*probe, jobs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range probes {
		for len(p.picks) > jobs {
			last := len(p.picks) - 1
			of := p.picks[last]
			p.picks = p.picks[:last]
			of.want--
			of.level.giveBackTurn(1)
		}
	}
}
