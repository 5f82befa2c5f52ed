package queue

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// A limit of a whole queue holds for all of its jobs alike, so none can be blocked ahead of one that may start. Claims from such a queue
// count: they lock the partitions of the limited queues among theirs, read how many jobs may start, and claim no more. Claims from
// other queues never come here.

// queueLimit is a limited queue of a claim.
type queueLimit struct {
	queue  string
	policy job.LimitPolicy
}

// limitedQueues are those of the queues that have a limit, sorted by name.
// They are sorted, because a claim locks their partitions in this order.
func (s *Store) limitedQueues(ctx context.Context, queues []string) ([]queueLimit, error) {
	view, err := s.configured.View(ctx)
	if err != nil || view.Plain() {
		return nil, err
	}
	var limited []queueLimit
	for _, name := range queues {
		if p := limitOf(view.Queue(name)); p != nil {
			limited = append(limited, queueLimit{name, *p})
		}
	}
	slices.SortFunc(limited, func(a, b queueLimit) int { return strings.Compare(a.queue, b.queue) })
	return limited, nil
}

// isLimited reports whether one of the queues has a limit, as far as this node knows.
// handoff asks it without a statement. What it misses is claimed without the limit in the second in which a change spreads.
func (s *Store) isLimited(queues []string) bool {
	return slices.ContainsFunc(queues, func(name string) bool { return limitOf(s.configured.Known(name)) != nil })
}

// limitOf is the limit of a queue: its rate limit, and its concurrency if that is less than in the rate limit. nil: it has none.
// It copies the policy, which belongs to the view that all share.
func limitOf(q *queueconfig.Queue) *job.LimitPolicy {
	if q == nil || q.Config.Concurrency == nil && q.Config.RateLimit == nil {
		return nil
	}
	var p job.LimitPolicy
	if q.Config.RateLimit != nil {
		p = *q.Config.RateLimit
	}
	if most := q.Config.Concurrency; most != nil && (p.Concurrency == nil || *most < *p.Concurrency) {
		p.Concurrency = most
	}
	return &p
}

// QueueLimit is the limit of a queue; nil: it has none.
// Package limit shows it as partition queue:<name>.
func (s *Store) QueueLimit(ctx context.Context, name string) (*job.LimitPolicy, error) {
	limited, err := s.limitedQueues(ctx, []string{name})
	if err != nil || len(limited) == 0 {
		return nil, err
	}
	return &limited[0].policy, nil
}

// QueueLimits are the limits of all queues that have one.
func (s *Store) QueueLimits(ctx context.Context) (map[string]job.LimitPolicy, error) {
	view, err := s.configured.View(ctx)
	if err != nil || view.Plain() {
		return nil, err
	}
	limits := map[string]job.LimitPolicy{}
	// _default is no queue; what it sets is in the policies of the others.
	view.Each(func(q *queueconfig.Queue) {
		if p := limitOf(view.Queue(q.Name)); p != nil && q.Name != queueconfig.Default {
			limits[q.Name] = *p
		}
	})
	return limits, nil
}

// SetQueueLimit stores the limit of a queue, which is created if it does not exist.
// When it returns, this node knows the limit; others learn of it within a second. The queue may stay behind if the limit cannot
// be stored.
func (s *Store) SetQueueLimit(ctx context.Context, name string, p *job.LimitPolicy) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// The job is never stored: setQueueLimits only reads the queue and the limit of it.
	in := newInsertion([]*job.Job{{Queue: name, Limit: p}}, true)
	if err := s.createQueues(ctx, s.db.Pool, in.jobs); err != nil {
		return pg.ClientError(err)
	}
	return pg.WriteError(s.setQueueLimits(ctx, s.db.Pool, in))
}

// run is a part of a claim's queues that is claimed by one statement: a limited queue, or others next to each other.
type run struct {
	queue  string // of a limited one
	full   bool   // its limit permits no more
	probes []*probe
	// The zero value (owners nil) means that the run was not claimed: there was no room, no slot was left, or the claim was cut
	// before it.
	claim claim
	rows  []job.Record
	met   []dbsqlc.LimitMeetRow // jobs that its limit did not let start, and that its policy drops or schedules
	// Workflows of those that were dropped.
	workflows [][16]byte
}

// claimLimited claims in a transaction that has locked the partitions of the limited queues.
//
// Claims of a limited queue follow one another on all nodes, because each holds the partition to its commit. That is the price of
// an exact limit, and why handoff leaves such queues out. After an error nothing is claimed or, if the answer to the commit was
// lost, the claim is looked for by its number.
func (s *Store) claimLimited(ctx context.Context, claimants []claimant, owners []int, probes []*probe, limited []queueLimit, bytes int64) ([]run, error) {
	runs := runsOf(probes, limited)
	// One number for all runs: they commit together.
	number := claimNumber()
	var rooms []dbsqlc.LimitQueueRoomsRow
	err := s.db.InTx(ctx, func(tx pgx.Tx) (err error) {
		rooms, err = s.claimRuns(ctx, tx, claimants, limited, runs, owners, number, bytes)
		return err
	})
	if err != nil {
		s.cursors.fail(probes)
		s.lost.add(number, err)
		return nil, err
	}
	s.awaitRoom(rooms)
	for i := range runs {
		if runs[i].full {
			s.limited(job.QueueLimitPrefix + runs[i].queue)
		}
		runs[i].workflows = s.afterMeet(ctx, runs[i].met)
	}
	return runs, nil
}

// KnownLimits are the bound of a queue by depth, 0 for none, and whether the queue has a limit, as far as this node knows.
// The metrics of a node ask it for each queue of a scrape, so it reads nothing.
func (s *Store) KnownLimits(queue string) (maxDepth int64, limited bool) {
	q := s.configured.Known(queue)
	if bound := boundOf(q); bound != nil {
		maxDepth = bound.MaxDepth
	}
	return maxDepth, limitOf(q) != nil
}

// runsOf splits the probes, which are in dispatch order.
// A run ends where the queue changes from limited to unlimited or to another limited one, so that order between queues stays.
func runsOf(probes []*probe, limited []queueLimit) (runs []run) {
	for _, p := range probes {
		queue := ""
		if slices.ContainsFunc(limited, func(l queueLimit) bool { return l.queue == p.queue() }) {
			queue = p.queue()
		}
		if n := len(runs); n == 0 || runs[n-1].queue != queue {
			runs = append(runs, run{queue: queue})
		}
		last := &runs[len(runs)-1]
		last.probes = append(last.probes, p)
	}
	return runs
}

// claimRuns claims run by run, as many jobs as there are slots left and as the limit of a run permits. A claim that was cut at its
// bytes, which are those of all runs together, is the last.
//
// owners shrinks by what each run has got; what is left goes to the next run, even if the run had more slots than room. The
// starts are recorded at the end, before the commit.
func (s *Store) claimRuns(ctx context.Context, tx pgx.Tx, claimants []claimant, limited []queueLimit, runs []run, owners []int, number, bytes int64) ([]dbsqlc.LimitQueueRoomsRow, error) {
	q := dbsqlc.New(tx)
	names, policies := make([]string, len(limited)), make([][]byte, len(limited))
	for i, l := range limited {
		names[i], policies[i] = l.queue, l.policy.Stored()
	}
	// It is the first statement, so the claims read what the last holder of the partitions has committed.
	rooms, err := q.LimitQueueRooms(ctx, names, policies)
	if err != nil {
		return nil, err
	}
	var from []string
	var startedAt []pgtype.Timestamptz
	for i := range runs {
		r := &runs[i]
		r.claim, r.rows, r.full, r.met = claim{}, nil, false, nil
		want := len(owners)
		if r.queue != "" {
			at := slices.IndexFunc(rooms, func(l dbsqlc.LimitQueueRoomsRow) bool { return l.Queue == r.queue })
			want = int(min(int64(want), rooms[at].Room))
			r.full = want < len(owners)
		}
		if want == 0 {
			continue
		}
		if want < len(owners) {
			// The probes were made before the room was known.
			s.cursors.cut(r.probes, want)
		}
		r.claim = s.newClaim(claimants, r.probes, owners[:want], bytes)
		r.claim.params.Claim = number
		if r.rows, err = claimJobs(ctx, q, &r.claim.params); err != nil {
			return nil, err
		}
		owners, r.full = owners[len(r.rows):], r.full && len(r.rows) == want
		for n := range r.rows {
			if r.queue != "" {
				from, startedAt = append(from, r.queue), append(startedAt, r.rows[n].StartedAt)
			}
		}
		weight, cut := r.claim.weigh(r.rows)
		if bytes += weight; cut {
			break
		}
	}
	if from != nil {
		if err := q.LimitQueueStarted(ctx, from, startedAt); err != nil {
			return nil, err
		}
	}
	return rooms, s.meetInQueues(ctx, q, limited, runs, len(owners))
}

// maxMet bounds the jobs that one claim drops or schedules in a queue.
// It bounds how long the claim holds the partition for jobs that nobody gets.
const maxMet = 100

// meetInQueues drops or schedules the next jobs of queues that have no more room, as many as there are slots left, if their policy says so.
// In the transaction of the claim: the partition is locked, so no other claim makes room meanwhile.
func (s *Store) meetInQueues(ctx context.Context, q *dbsqlc.Queries, limited []queueLimit, runs []run, slots int) error {
	for i := range runs {
		r := &runs[i]
		at := slices.IndexFunc(limited, func(l queueLimit) bool { return l.queue == r.queue })
		if !r.full || slots == 0 || limited[at].policy.OnLimit == "" {
			continue
		}
		p := dbsqlc.LimitQueueMeetParams{Queue: r.queue, Effect: limited[at].policy.OnLimit, MaxJobs: int64(min(slots, maxMet)), Node: s.commits.Node}
		for _, probe := range r.probes {
			p.Lanes, p.Priorities, p.Lows = append(p.Lanes, probe.level.lane), append(p.Priorities, probe.level.party.rank.priority), append(p.Lows, probe.low)
		}
		rows, err := q.LimitQueueMeet(ctx, p)
		if err != nil {
			return err
		}
		for _, row := range rows {
			r.met = append(r.met, dbsqlc.LimitMeetRow(row))
		}
	}
	return nil
}

// setQueueLimits stores the limits that new jobs were sent for their whole queues, in the configuration of these. A limit that the queue has
// already costs a look into a map.
// The last job of an insert decides, as it would if they came one by one. On the pool it commits before the insert, and stays if
// that fails.
func (s *Store) setQueueLimits(ctx context.Context, db pg.Conn, in *insertion) error {
	var last map[string]*job.LimitPolicy
	for _, i := range in.todo {
		if j := in.jobs[i]; j.Limit != nil && j.LimitKey == "" {
			if last == nil {
				last = map[string]*job.LimitPolicy{}
			}
			last[j.Queue] = j.Limit
		}
	}
	if last == nil {
		return nil
	}
	names := make([]string, 0, len(last))
	for name := range last {
		if known := s.configured.Known(name); known == nil || !last[name].Equal(known.Config.RateLimit) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names) // in the same order everywhere, or two transactions could deadlock
	err := pg.InTx(ctx, db, func(tx pgx.Tx) error {
		for _, name := range names {
			if err := setQueueLimit(ctx, dbsqlc.New(tx), name, last[name]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || !s.isPool(db) {
		return err
	}
	return s.configured.Refresh(ctx)
}

// It is written only if it differs, because each write makes all nodes read the configurations again.
func setQueueLimit(ctx context.Context, q *dbsqlc.Queries, name string, p *job.LimitPolicy) error {
	rows, err := q.LimitQueueLock(ctx, name)
	if err != nil || len(rows) == 0 {
		return err
	}
	if stored, err := queueconfig.Decode(rows[0]); err == nil && p.Equal(stored.RateLimit) {
		return nil
	}
	change, wire := queueconfig.ParseChange(append(append([]byte(`{"rate_limit":`), p.Encode()...), '}'), "$")
	if wire != nil {
		return wire
	}
	config, wire := change.Apply(rows[0])
	if wire != nil {
		return wire
	}
	return q.LimitQueueStore(ctx, config, name)
}

// roomWakes are the limited queues for which a claim found no room.
//
// It is filled by claims that found no room, of this node only. Another node wakes its own fetches. A name stays until the map is
// full: its fetches are woken in vain at worst.
type roomWakes struct {
	some  atomic.Bool // there are any: nearly always not, and then nothing is locked
	mu    sync.Mutex
	until map[string]time.Time // when parked fetches of the queue are woken; zero: no time will make room
}

// maxRoomWakes bounds the queues that are remembered. Parked fetches of a forgotten one claim when the poller wakes them.
const maxRoomWakes = 10_000

// awaitRoom wakes parked fetches of queues without room when there may be room again.
// WaitUs below 0 means that only the end of a job makes room: leftActive and roomMade wake fetches then. A later time is not
// waited for while an earlier one is set, as the next claim sets it again.
func (s *Store) awaitRoom(rooms []dbsqlc.LimitQueueRoomsRow) {
	s.rooms.mu.Lock()
	defer s.rooms.mu.Unlock()
	for _, r := range rooms {
		if len(s.rooms.until) >= maxRoomWakes {
			clear(s.rooms.until)
		}
		at, known := s.rooms.until[r.Queue]
		if r.WaitUs < 0 {
			if s.rooms.some.Store(true); !known {
				s.rooms.until[r.Queue] = time.Time{}
			}
			continue
		}
		// The millisecond covers the time between the clock of the statement and this line.
		wait := time.Duration(r.WaitUs)*time.Microsecond + time.Millisecond
		if known && at.After(time.Now()) && at.Before(time.Now().Add(wait)) {
			continue
		}
		s.rooms.some.Store(true)
		s.rooms.until[r.Queue] = time.Now().Add(wait)
		time.AfterFunc(wait, func() { s.cursors.wakeQueue(r.Queue, maxWoken) })
	}
}

// leftActive wakes parked fetches of limited queues that jobs have left.
// It costs one load while no limited queue lacks room.
func leftActive[Row any](s *Store, rows []Row, queue func(*Row) string) {
	if s.rooms.some.Load() {
		for i := range rows {
			s.roomMade(queue(&rows[i]))
		}
	}
}

// roomMade wakes a parked fetch of each of the limited queues or, without names, of all: a job has ended on another node.
// One fetch per queue is enough: if there is more room, its claim takes up to all of its slots, and the next end wakes another.
func (s *Store) roomMade(queues ...string) {
	if !s.rooms.some.Load() {
		return
	}
	s.rooms.mu.Lock()
	defer s.rooms.mu.Unlock()
	if queues == nil {
		for name := range s.rooms.until {
			s.cursors.wakeQueue(name, 1)
		}
		return
	}
	for _, name := range queues {
		if _, known := s.rooms.until[name]; known {
			s.cursors.wakeQueue(name, 1)
		}
	}
}
