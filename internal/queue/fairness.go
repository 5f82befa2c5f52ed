package queue

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// priorityRing is one priority of a queue. Its tenants take turns, and the lanes of a tenant do: a tenant with many lanes gets no more
// than one with few. Almost every one has one tenant with one lane, "".
//
// Everything in this file is guarded by cursors.mu. Turns are memory of one node: nodes divide a queue independently, each in the
// right shares (docs/reference/fairness.md, Fair queues).
type priorityRing struct {
	queue    *queueCursor
	priority int16
	tenants  map[string]*tenantRing // by tenant
	turns    list.List              // of *tenantRing with jobs, next first
	// The same as the sum of the lengths of its tenant rings.
	ready int // lane cursors with jobs
}

// tenantRing is the lanes of one tenant, "" for those without one.
// It exists while one of its lane cursors does.
type tenantRing struct {
	ringPlace

	priorityRing *priorityRing
	tenant       string
	lanes        map[string]*laneCursor // by lane
	turns        list.List              // of *laneCursor with jobs, next first
}

// ringPlace is the place of a tenant or lane cursor in a ring.
type ringPlace struct {
	at   *list.Element // nil: it has no jobs
	left int           // jobs that it may give until the next has its turn; 0: as many as its weight
}

// take lets the place give n jobs. It stays at the front until its weight is used up, so that a weight of 3 gives three jobs in a row.
func (t *ringPlace) take(turns *list.List, n, weight int) {
	if t.left == 0 {
		t.left = weight
	}
	if t.left = max(0, t.left-n); t.left == 0 {
		turns.MoveToBack(t.at)
	}
}

// giveBack undoes take for a claim that did not come that far.
// It goes to the front, as it was there when the turn was taken. Turns must be given back in the reverse order for that.
func (t *ringPlace) giveBack(turns *list.List, n, weight int) {
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

func (w weights) ofTenant(p *tenantRing) int {
	if w.ofTenants {
		return w.weight(p.tenant)
	}
	return 1
}

func (w weights) ofLane(l *laneCursor) int {
	if w.ofTenants || len(w.of) == 0 {
		return 1
	}
	return w.weight(job.FairKeyOf(l.lane))
}

// weight is that of a name, 1 if it is missing. Above maxClaim a weight would not fit into a claim.
func (w weights) weight(name string) int {
	if n, ok := w.of[name]; ok && n > 0 {
		return int(min(n, maxClaim))
	}
	return 1
}

// cursor finds that of a priority of a lane, or adds it without jobs. It returns nil if there are too many: then a rescan finds the lane
// later.
//
// Lane "" is always added: it is the only one of most queues, and there are at most 201 of it.
func (q *queueCursor) cursor(lane string, priority int16) *laneCursor {
	// Rings are few and stay sorted, because claims read them in that order.
	at, found := slices.BinarySearchFunc(q.rings, priority, func(r *priorityRing, p int16) int { return int(p) - int(r.priority) })
	if !found {
		q.rings = slices.Insert(q.rings, at, &priorityRing{queue: q, priority: priority, tenants: map[string]*tenantRing{}})
	}
	r, tenant := q.rings[at], job.TenantOf(lane)
	p := r.tenants[tenant]
	if p != nil {
		if l := p.lanes[lane]; l != nil {
			return l
		}
	}
	if lane != "" && q.lanes >= q.maxLanes {
		q.crowded = true
		return nil
	}
	if p == nil {
		p = &tenantRing{priorityRing: r, tenant: tenant, lanes: map[string]*laneCursor{}}
		r.tenants[tenant] = p
	}
	l := &laneCursor{tenantRing: p, lane: lane, low: noJobs}
	p.lanes[lane] = l
	if lane != "" {
		q.lanes++
	}
	return l
}

// set moves the cursor, and lets the lane cursor take turns while it has jobs. One without jobs is dropped, unless a claim reads it. Lane
// "" is kept: most queues have no other. It is the only place that changes low, so that turns, ready and low agree.
func (l *laneCursor) set(low int64) {
	l.low = low
	p := l.tenantRing
	r := p.priorityRing
	switch {
	case low != noJobs && l.at == nil:
		if l.at = p.turns.PushBack(l); p.at == nil {
			p.at = r.turns.PushBack(p)
		}
		r.ready++
	case low == noJobs && l.at != nil:
		// An unused part of its turn goes with it: a lane that has jobs again starts at the end.
		p.turns.Remove(l.at)
		l.ringPlace = ringPlace{}
		if p.turns.Len() == 0 {
			r.turns.Remove(p.at)
			p.ringPlace = ringPlace{}
		}
		r.ready--
	}
	// A lane cursor that was dropped before, and is in the hands of a claim still, is not the one in the map any more.
	if l.low != noJobs || len(l.reads) > 0 || l.lane == "" || p.lanes[l.lane] != l {
		return
	}
	delete(p.lanes, l.lane)
	r.queue.lanes--
	if len(p.lanes) == 0 {
		delete(r.tenants, p.tenant)
	}
}

// next is the lane cursor whose turn it is, of all tenants or of one; nil if none has jobs.
// A fetch for one tenant does not look at the order of the tenants.
func (r *priorityRing) next(tenant string) *laneCursor {
	var p *tenantRing
	if tenant != "" {
		p = r.tenants[tenant]
	} else if e := r.turns.Front(); e != nil {
		p = e.Value.(*tenantRing)
	}
	if p == nil || p.turns.Len() == 0 {
		return nil
	}
	return p.turns.Front().Value.(*laneCursor)
}

// count is how many lane cursors of all tenants or of one have jobs.
func (r *priorityRing) count(tenant string) int {
	if tenant == "" {
		return r.ready
	}
	if p := r.tenants[tenant]; p != nil {
		return p.turns.Len()
	}
	return 0
}

// pick adds the reads of the lane cursors whose turn it is. Together they may give as many jobs as wanted; up to lookahead further lane
// cursors, which the statement reads only if those before have too few, may give those of one turn. It reports whether nothing behind this
// priority may be claimed by the same statement: there are more lane cursors, or one of them may have more than it may give.
//
// Lookahead lanes save statements: a cursor may be too low and its lane without a job, or a lane with a large weight may have few. They
// take their turns when they have given jobs (cursors.end).
func (r *priorityRing) pick(reads []*cursorRead, w claimRequest) (_ []*cursorRead, last bool) {
	ready, first := r.count(w.tenant), len(reads)
	if ready == 1 { // as in every queue without lanes: there is nothing to take turns
		return append(reads, r.next(w.tenant).begin(w.slots)), false
	}
	// One element per slot: a lane may have several turns in a claim.
	slotOrder := make([]*cursorRead, 0, w.slots)
	for range w.slots {
		l := r.next(w.tenant)
		if l == nil {
			break
		}
		if l.picked == nil {
			l.picked = l.begin(0)
			reads = append(reads, l.picked)
		}
		l.picked.want++
		l.picked.turned = true
		l.charge(1)
		slotOrder = append(slotOrder, l.picked)
	}
	if len(slotOrder) > 0 {
		slotOrder[0].slotOrder = slotOrder
	}
	for _, l := range r.others(w.tenant, w.lookahead) {
		p := l.begin(min(r.queue.weights.ofLane(l), w.slots))
		p.lookahead = true
		reads = append(reads, p)
	}
	for _, p := range reads[first:] {
		p.cursor.picked = nil
		last = last || p.want < w.slots
	}
	return reads, last || len(reads)-first < ready
}

// others are up to n lane cursors with jobs that are not picked, of all tenants or of one, in the order in which they will have their
// turns. The lists stay as they are: a place that is taken out and given back would stand before those that have not used up their weight.
//
// It walks over no more lane cursors than it returns and are picked.
func (r *priorityRing) others(tenant string, n int) (found []*laneCursor) {
	type begun struct {
		next  *list.Element // of the lane cursors of a tenant
		share int           // how many lanes the tenant gives in its turn
	}
	var open []begun
	add := func(p *begun) {
		for given := 0; given < p.share && p.next != nil && len(found) < n; p.next = p.next.Next() {
			if l := p.next.Value.(*laneCursor); l.picked == nil {
				found, given = append(found, l), given+1
			}
		}
	}
	begin := func(p *tenantRing) {
		open = append(open, begun{p.turns.Front(), r.queue.weights.ofTenant(p)})
		add(&open[len(open)-1])
	}
	if tenant == "" {
		for e := r.turns.Front(); e != nil && len(found) < n; e = e.Next() {
			begin(e.Value.(*tenantRing))
		}
	} else if p := r.tenants[tenant]; p != nil {
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

// charge takes turns before the statement, so that a claim which begins meanwhile goes on with the next lane.
func (l *laneCursor) charge(jobs int) {
	p := l.tenantRing
	w := p.priorityRing.queue.weights
	l.take(&p.turns, jobs, w.ofLane(l))
	p.take(&p.priorityRing.turns, jobs, w.ofTenant(p))
}

// refund undoes charge, if the lane cursor has jobs still.
// A lane cursor that has none any more is in no list.
func (l *laneCursor) refund(jobs int) {
	if l.at == nil {
		return
	}
	p := l.tenantRing
	w := p.priorityRing.queue.weights
	l.giveBack(&p.turns, jobs, w.ofLane(l))
	p.giveBack(&p.priorityRing.turns, jobs, w.ofTenant(p))
}

// cut lowers what reads that take turns may give to fewer jobs, for a claim that learns of a limit after it has begun. The turns behind
// those jobs are given back, the last one first. Lookahead lanes stay: they are read only if those before have too few.
func (c *cursors) cut(reads []*cursorRead, jobs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range reads {
		for len(p.slotOrder) > jobs {
			last := len(p.slotOrder) - 1
			of := p.slotOrder[last]
			p.slotOrder = p.slotOrder[:last]
			of.want--
			of.cursor.refund(1)
		}
	}
}

// maxFairKey bounds the bytes of a fairness key in a lane. A longer one is replaced by its hash.
// The lane is part of the key of index jobs_fetch, which has a limit of about 2.7 kB for an entry, and of every event of the job.
const maxFairKey = 128

// maxMetas bounds the metas that are read at once, of at most 64 KiB each.
// They are read in the deletion of a queue that moves its jobs: 6.25 MiB at most.
const maxMetas = 100

// assignLanes puts jobs of fair queues into the lane of their fairness key, within that of their tenant. What the node does not know
// yet of a queue does no harm: the jobs wait with those without a key.
//
// It may run twice for a job, and keeps the tenant, which is the first part of the lane. A change of the configuration leaves
// stored jobs in their lanes.
func (s *Store) assignLanes(ctx context.Context, db pg.Conn, jobs []*job.Job) {
	if s.isPool(db) {
		_, _ = s.configured.View(ctx) // the first call reads the configurations; the insert itself tells whether the database answers
	}
	for _, j := range jobs {
		if s.isFair(j.Queue) {
			j.Lane = job.Lane(job.TenantOf(j.Lane), s.fairKeyIn(j.Queue, j.Meta))
		}
	}
}

// isFair reports whether a queue has lanes of fairness keys, as far as this node knows.
func (s *Store) isFair(queue string) bool {
	q := s.configured.Known(queue)
	return q != nil && q.Config.Fairness != nil
}

// fairKeyIn is the fairness key that a job with this meta has in a queue; "": none.
func (s *Store) fairKeyIn(queue string, meta []byte) string {
	if q := s.configured.Known(queue); q != nil && q.Config.Fairness != nil {
		return fairKey(q.Config.Fairness, meta)
	}
	return ""
}

// fairKeys are those of stored jobs in a queue, in their order; nil if the queue is not fair.
// A job that has gone meanwhile has the key ""; the statement that moves jobs does not find it either.
func (s *Store) fairKeys(ctx context.Context, queue string, ids [][16]byte) ([]string, error) {
	if !s.isFair(queue) {
		return nil, nil
	}
	keys := make([]string, 0, len(ids))
	for part := range slices.Chunk(ids, maxMetas) {
		rows, err := s.db.Q.JobListMeta(ctx, part)
		if err != nil {
			return nil, err
		}
		found := make(map[[16]byte]string, len(rows))
		for _, r := range rows {
			found[r.ID] = s.fairKeyIn(queue, r.Meta)
		}
		for _, id := range part {
			keys = append(keys, found[id])
		}
	}
	return keys, nil
}

// fairKey is the value of the fairness key in the meta of a job; "": it has none, or the queue is fair between tenants only. The
// function ojs.job_lane is the same in SQL.
// Objects and arrays are no keys. Numbers and booleans are taken as they are written, so 1 and 1.0 are two keys.
func fairKey(f *queueconfig.Fairness, meta []byte) string {
	name, ok := strings.CutPrefix(f.FairKey, "meta.")
	if !ok || len(meta) == 0 {
		return ""
	}
	v := jsonread.Present(jsonread.Find(meta, name))
	if v == nil || v[0] == '{' || v[0] == '[' {
		return ""
	}
	key, isText := jsonread.Text(v)
	if !isText {
		key = string(v)
	}
	// NUL cannot be stored in a text of PostgreSQL.
	if len(key) > maxFairKey || strings.ContainsRune(key, 0) {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	return key
}

// weights are those of the lanes of a queue.
// A claim asks for them each time it begins.
func (s *Store) weights(queue string) weights {
	q := s.configured.Known(queue)
	if q == nil || q.Config.Fairness == nil {
		return weights{}
	}
	f := q.Config.Fairness
	return weights{ofTenants: f.FairKey == "tenant", of: f.Weights}
}
