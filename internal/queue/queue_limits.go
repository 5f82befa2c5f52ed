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
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
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

// parkedQueues are the queues in which jobs wait for limits, as far as this node knows. A fetch from one of them that had slots left
// meets such jobs: see LimitMeet.
//
// It is a hint: a queue that is missing is found by a survey (surveyLimits), one that is there in vain costs a statement and is
// dropped by met.
type parkedQueues struct {
	// The follower of package limit sets it from the database (SetLimitsWaiting), and park sets it at once. While it is false no
	// fetch takes mu.
	any atomic.Bool // jobs wait for limits somewhere; if not, surveys and fetches do nothing about it

	mu     sync.Mutex
	queues map[string]*parkedQueue
}

// parkedQueue is when fetches from the queue may meet jobs again: what they do about them takes at most a twentieth of the time.
type parkedQueue struct{ next time.Time }

// A meeting of 5 ms is repeated after 100 ms at the earliest.
const meetCost = 20

// SetLimitsWaiting sets whether jobs wait for limits at all.
// The load comes first, because a store would make the cache line of a value that all fetches read travel between the cores.
func (s *Store) SetLimitsWaiting(waiting bool) {
	if s.parked.any.Load() != waiting {
		s.parked.any.Store(waiting)
	}
}

// park notes queues in which jobs may wait for a limit.
// The same bound as that of the cursors, because clients choose the names.
func (p *parkedQueues) park(queues ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.any.Store(true)
	if len(p.queues) >= maxCursors {
		clear(p.queues)
	}
	for _, name := range queues {
		if p.queues[name] == nil {
			p.queues[name] = &parkedQueue{}
		}
	}
}

// due returns those of the queues in which jobs wait, if it is time to meet them.
// Of several fetches that come at the same time one gets the queue. After an error its turn comes again in a second.
func (p *parkedQueues) due(queues []string) (due []string) {
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, name := range queues {
		if q := p.queues[name]; q != nil && !now.Before(q.next) {
			q.next = now.Add(time.Second) // unless ended sets it earlier
			due = append(due, name)
		}
	}
	return due
}

// waiting returns those of the queues in which jobs wait.
func (p *parkedQueues) waiting(queues []string) (waiting []string) {
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range queues {
		if p.queues[name] != nil {
			waiting = append(waiting, name)
		}
	}
	return waiting
}

// met ends what due began. Queues of which no job was met have none that waits.
// A job that was parked while the statement ran is forgotten with its queue. The next survey, a second later, finds it.
func (p *parkedQueues) met(queues []string, met map[string]bool, cost time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range queues {
		if q := p.queues[name]; q != nil && met[name] {
			q.next = time.Now().Add(meetCost * cost)
		} else {
			delete(p.queues, name)
		}
	}
}

// surveyLimits looks in which of the queues jobs wait for limits.
func (s *Store) surveyLimits(ctx context.Context, queues []string) error {
	if !s.parked.any.Load() {
		return nil
	}
	names, err := s.db.Q.LimitListParked(ctx, queues)
	if err == nil && len(names) > 0 {
		s.parked.park(names...)
	}
	return err
}

// meet does what is to be done about jobs that wait for limits when a fetch had slots left: those of its tenant, if it takes no
// others. It reports whether jobs may be fetched now that could not before.
//
// It sends one statement, which is a transaction, on a context that the client cannot cancel: jobs that it drops or schedules
// have events that this node must emit. ojs.limit_meet says what is done (docs/reference/limits.md, When a limit blocks a job).
func (s *Store) meet(ctx context.Context, queues []string, tenant string) (admitted bool, err error) {
	due := s.parked.due(queues)
	if len(due) == 0 {
		return false, nil
	}
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	began := time.Now()
	rows, err := s.db.Q.LimitMeet(bounded, dbsqlc.LimitMeetParams{Queues: due, Tenant: tenant, Node: s.commits.Node})
	if err != nil {
		return false, pg.ClientError(err)
	}
	met := map[string]bool{}
	for i := range rows {
		met[rows[i].Queue] = true
		if rows[i].Outcome == "admitted" {
			admitted = true
		} else {
			s.limited(rows[i].LimitKey)
		}
	}
	// The queues stay remembered. The jobs of another tenant may be the only ones that wait.
	if tenant != "" {
		for _, name := range due { // it has not met the jobs of others
			met[name] = true
		}
	}
	s.parked.met(due, met, time.Since(began))
	s.advance(ctx, s.afterMeet(ctx, rows))
	return admitted, nil
}

// afterMeet does what follows from jobs that were admitted, dropped or scheduled, and returns the workflows that have to follow: the
// caller advances them, outside of a flush.
// LimitMeet and LimitQueueMeet have the same columns; the rows of the latter have no place, because nothing of a limited queue is
// admitted.
func (s *Store) afterMeet(ctx context.Context, rows []dbsqlc.LimitMeetRow) (workflows [][16]byte) {
	if !slices.ContainsFunc(rows, func(r dbsqlc.LimitMeetRow) bool { return r.Outcome != "met" }) {
		return nil
	}
	var a afterCommit
	for i := range rows {
		r := &rows[i]
		switch r.Outcome {
		case "admitted":
			a.add(r.Queue, r.Lane, r.Priority, pgtype.Int8{Int64: r.ReadySeq, Valid: true}, pgtype.Text{})
		case "dropped":
			a.add(r.Queue, r.Lane, r.Priority, pgtype.Int8{}, pg.Text(r.Cron))
			s.awaiting.ended(r.ID)
		case "rescheduled":
			s.timer.Schedule(time.Duration(r.DueUs) * time.Microsecond)
		}
	}
	eventlog.Emit(ctx, s.commits, rows, meetChange)
	s.notify(ctx, a)
	s.commits.Committed()
	return workflowsOf(rows, func(r *dbsqlc.LimitMeetRow) (root pgtype.UUID) {
		if r.Outcome == "dropped" {
			root = pgtype.UUID{Bytes: r.WorkflowID, Valid: r.WorkflowID != [16]byte{}}
		}
		return root
	})
}

// limited counts that a limit kept a fetch from a job.
// Package app passes it to the metrics.
func (s *Store) limited(key string) {
	if s.config.OnLimited != nil {
		s.config.OnLimited(key, 1)
	}
}

// A job that was admitted, or only met, has no event of this kind: its state stays available.
func meetChange(changes []eventlog.Change, r *dbsqlc.LimitMeetRow) []eventlog.Change {
	c := eventlog.Change{JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: string(ojs.StateAvailable), At: r.Now.Time}
	switch r.Outcome {
	case "dropped":
		c.Type, c.To, c.Reason = ojs.EventJobDiscarded, string(ojs.StateDiscarded), job.RateLimited
	case "rescheduled":
		c.Type, c.To, c.Reason = eventlog.StateChanged, string(ojs.StateScheduled), reasonRateLimit
	default:
		return changes
	}
	return append(changes, c)
}

// A job with a limit key waits without ready_seq, so no claim finds it, until package limit gives it its place. Statements that may
// make room for such jobs record it in ojs.limit_pending. After their commit package limit looks, before the caller is answered, but
// never inside of a flush that callers share: jobs without a key would wait for it.

// OnLimitedJobs sets what is called after a commit with which jobs of these limit keys have entered available, or have left available
// or active. It may run transactions; callers of the change are answered after it.
// It is optional: without it the follower of package limit finds the rows of ojs.limit_pending a second later.
func (s *Store) OnLimitedJobs(f func(ctx context.Context, keys []string)) { s.onLimitedJobs = f }

// OnLimitedStarts sets what is called after a claim of jobs with limit keys. It must not block.
// A start may set a timer: the follower has to look when it no longer counts.
func (s *Store) OnLimitedStarts(f func()) { s.onLimitedStarts = f }

// FollowLimits lets those jobs of the keys be fetched that may start now, after a commit of another domain that moved jobs of them.
// Callers hold no lock and no transaction. It may run twice for a key at once: admissions lock the partition.
func (s *Store) FollowLimits(ctx context.Context, keys []string) {
	if len(keys) > 0 {
		s.onLimitedJobs(ctx, keys)
	}
}

// follow does what follows from jobs that have left active or ended: their workflows go on, and their limits let others start.
// jobs may have nil elements: requests that have changed nothing.
func (s *Store) follow(ctx context.Context, jobs []*job.Record) {
	s.FollowLimits(ctx, namesOf(jobs, func(j **job.Record) (key pgtype.Text) {
		if *j != nil && (*j).State != string(ojs.StateActive) {
			key = (*j).LimitKey
		}
		return key
	}))
	s.advance(ctx, endedWorkflows(jobs))
}

// followEnqueued does what follows from new jobs, and from those that were cancelled or discarded for them.
// It is called after the commit, by the caller of the insert and not by its flush.
func (s *Store) followEnqueued(ctx context.Context, jobs ...*job.Job) {
	var replaced []*job.Record
	var dropped [][16]byte
	var keys []string
	for _, j := range jobs {
		replaced, dropped = append(replaced, j.Outcome.Replaced...), append(dropped, j.Outcome.Dropped...)
		for _, key := range j.Outcome.DroppedLimits {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		if j.LimitKey != "" && !slices.Contains(keys, j.LimitKey) {
			keys = append(keys, j.LimitKey)
			// A job with a key may wait for it in this queue from now on, so fetches of the queue meet it.
			s.parked.park(j.Queue)
		}
	}
	s.FollowLimits(ctx, keys)
	s.follow(ctx, replaced)
	s.advance(ctx, dropped)
}
