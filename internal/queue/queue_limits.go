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
// An enqueue claim asks it without a statement. What it misses is claimed without the limit in the second in which a change spreads.
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

// claimLimited claims in a transaction that has locked the partitions of the limited queues: part by part, as many jobs as there are slots
// left and as the limit of a part permits. A claim that was cut at its bytes, which are those of all parts together, is the last. What one
// part leaves of the slots goes to the next, even if the part had more slots than the limit allows. The starts are recorded at the end.
//
// Claims of a limited queue follow one another on all nodes, because each holds the partition to its commit. That is the price of
// an exact limit, and why enqueue claims leave such queues out. After an error nothing is claimed or, if the answer to the commit was
// lost, the claim is looked for by its number.
func (s *Store) claimLimited(ctx context.Context, claimants []claimant, owners []int, reads []*cursorRead, limited []queueLimit,
	bytes int64) ([]claim, error) {
	parts := partsOf(reads, limited)
	// One number for all parts: they commit together.
	number := claimNumber()
	names, policies := make([]string, len(limited)), make([][]byte, len(limited))
	for i, l := range limited {
		names[i], policies[i] = l.queue, l.policy.Stored()
	}
	var allowances []dbsqlc.LimitQueueAllowancesRow
	err := s.db.InTx(ctx, func(tx pgx.Tx) (err error) {
		q := dbsqlc.New(tx)
		// It is the first statement, so the claims read what the last holder of the partitions has committed.
		if allowances, err = q.LimitQueueAllowances(ctx, names, policies); err != nil {
			return err
		}
		left, total := owners, bytes // the transaction may be tried again
		var from []string
		var startedAt []pgtype.Timestamptz
		for i := range parts {
			r := &parts[i]
			*r = claim{queue: r.queue, reads: r.reads}
			want := len(left)
			if r.queue != "" {
				at := slices.IndexFunc(allowances, func(l dbsqlc.LimitQueueAllowancesRow) bool { return l.Queue == r.queue })
				want = int(min(int64(want), allowances[at].Allowance))
				r.full = want < len(left)
			}
			if want == 0 {
				continue
			}
			if want < len(left) {
				// The reads were made before the allowance was known.
				s.cursors.cut(r.reads, want)
			}
			sent := s.newClaim(claimants, r.reads, left[:want], total)
			r.owners, r.params = sent.owners, sent.params
			r.params.Claim = number
			if r.rows, err = claimJobs(ctx, q, &r.params); err != nil {
				return err
			}
			left, r.full = left[len(r.rows):], r.full && len(r.rows) == want
			for n := range r.rows {
				if r.queue != "" {
					from, startedAt = append(from, r.queue), append(startedAt, r.rows[n].StartedAt)
				}
			}
			weight, cut := r.weigh()
			if total += weight; cut {
				break
			}
		}
		if from != nil {
			if err := q.LimitQueueStarted(ctx, from, startedAt); err != nil {
				return err
			}
		}
		return s.handleBlockedByQueueLimits(ctx, q, limited, parts, len(left))
	})
	if err != nil {
		s.lost.add(number, err)
		return nil, err
	}
	s.scheduleLimitWakes(allowances)
	for i := range parts {
		if parts[i].full {
			s.limited(job.QueueLimitPrefix + parts[i].queue)
		}
		parts[i].workflows = s.afterLimitBlocked(ctx, parts[i].handled)
	}
	return parts, nil
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

// partsOf splits the reads, which are in dispatch order.
// A part ends where the queue changes from limited to unlimited or to another limited one, so that order between queues stays.
func partsOf(reads []*cursorRead, limited []queueLimit) (parts []claim) {
	for _, p := range reads {
		queue := ""
		if slices.ContainsFunc(limited, func(l queueLimit) bool { return l.queue == p.queue() }) {
			queue = p.queue()
		}
		if n := len(parts); n == 0 || parts[n-1].queue != queue {
			parts = append(parts, claim{queue: queue})
		}
		last := &parts[len(parts)-1]
		last.reads = append(last.reads, p)
	}
	return parts
}

// maxHandled bounds the jobs that one claim drops or schedules in a queue.
// It bounds how long the claim holds the partition for jobs that nobody gets.
const maxHandled = 100

// handleBlockedByQueueLimits drops or schedules the next jobs of queues whose allowance is used up, as many as there are slots left, if
// their policy says so. In the transaction of the claim: the partition is locked, so no other claim changes the allowance meanwhile.
func (s *Store) handleBlockedByQueueLimits(ctx context.Context, q *dbsqlc.Queries, limited []queueLimit, parts []claim, slots int) error {
	for i := range parts {
		r := &parts[i]
		at := slices.IndexFunc(limited, func(l queueLimit) bool { return l.queue == r.queue })
		if !r.full || slots == 0 || limited[at].policy.OnLimit == "" {
			continue
		}
		p := dbsqlc.LimitQueueHandleBlockedParams{Queue: r.queue, Effect: limited[at].policy.OnLimit,
			MaxJobs: int64(min(slots, maxHandled)), Node: s.commits.Node}
		for _, read := range r.reads {
			p.Lanes, p.Priorities, p.Lows = append(p.Lanes, read.cursor.lane),
				append(p.Priorities, read.cursor.tenantRing.priorityRing.priority), append(p.Lows, read.low)
		}
		rows, err := q.LimitQueueHandleBlocked(ctx, p)
		if err != nil {
			return err
		}
		for _, row := range rows {
			r.handled = append(r.handled, dbsqlc.LimitHandleBlockedRow(row))
		}
	}
	return nil
}

// setQueueLimits stores the limits that new jobs were sent for their whole queues, in the configuration of these. A limit that the queue
// has already costs a look into a map. The last job of an insert decides, as it would if they came one by one. On the pool it commits
// before the insert, and stays if that fails.
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

// setQueueLimit writes a limit only if it differs, because each write makes all nodes read the configurations again.
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
	applied, wire := change.Apply(rows[0])
	if wire != nil {
		return wire
	}
	return q.LimitQueueStore(ctx, dbsqlc.LimitQueueStoreParams{Config: applied.Config, Settings: applied.Settings, Name: name})
}

// limitWakes are the limited queues from which this node has claimed, and when their limits may let more jobs start.
//
// Another node wakes its own fetches. A name stays until the map is full: its fetches are woken in vain at worst.
type limitWakes struct {
	some  atomic.Bool // there are any: nearly always not, and then nothing is locked
	mu    sync.Mutex
	until map[string]time.Time // when waiting fetches of the queue are woken; zero: only the end of a job lets another one start
}

// maxLimitWakes bounds the queues that are remembered. Waiting fetches of a forgotten one claim when the poller wakes them.
const maxLimitWakes = 10_000

// scheduleLimitWakes wakes waiting fetches of limited queues when the limit may let more jobs start.
// WaitUs below 0 means that only the end of a job lets another one start: wakeLimited wakes fetches then. A later time is not
// waited for while an earlier one is set, as the next claim sets it again.
func (s *Store) scheduleLimitWakes(allowances []dbsqlc.LimitQueueAllowancesRow) {
	s.limitWakes.mu.Lock()
	defer s.limitWakes.mu.Unlock()
	for _, r := range allowances {
		if len(s.limitWakes.until) >= maxLimitWakes {
			clear(s.limitWakes.until)
		}
		at, known := s.limitWakes.until[r.Queue]
		if r.WaitUs < 0 {
			if s.limitWakes.some.Store(true); !known {
				s.limitWakes.until[r.Queue] = time.Time{}
			}
			continue
		}
		// The millisecond covers the time between the clock of the statement and this line.
		wait := time.Duration(r.WaitUs)*time.Microsecond + time.Millisecond
		if known && at.After(time.Now()) && at.Before(time.Now().Add(wait)) {
			continue
		}
		s.limitWakes.some.Store(true)
		s.limitWakes.until[r.Queue] = time.Now().Add(wait)
		time.AfterFunc(wait, func() { s.cursors.wakeQueue(r.Queue, maxWoken) })
	}
}

// wakeLimited wakes a waiting fetch of each of the limited queues or, without names, of all: a job has ended on another node.
// One fetch per queue is enough: if the limit allows more, its claim takes up to all of its slots, and the next end wakes another.
func (s *Store) wakeLimited(queues ...string) {
	if !s.limitWakes.some.Load() {
		return
	}
	s.limitWakes.mu.Lock()
	defer s.limitWakes.mu.Unlock()
	if queues == nil {
		for name := range s.limitWakes.until {
			s.cursors.wakeQueue(name, 1)
		}
		return
	}
	for _, name := range queues {
		if _, known := s.limitWakes.until[name]; known {
			s.cursors.wakeQueue(name, 1)
		}
	}
}

// limitBlockedQueues are the queues in which jobs wait for limits, as far as this node knows. A fetch from one of them that had slots left
// handles such jobs: see LimitHandleBlocked.
//
// It is a hint: a queue that is missing is found by a rescan (Store.rescan), one that is there in vain costs a statement and is
// dropped by handled.
type limitBlockedQueues struct {
	// The follower of package limit sets it from the database (SetLimitsWaiting), and add sets it at once. While it is false no
	// fetch takes mu.
	any atomic.Bool // jobs wait for limits somewhere; if not, rescans and fetches do nothing about it

	mu     sync.Mutex
	queues map[string]*limitBlockedQueue
}

// limitBlockedQueue is when fetches from the queue may handle jobs again: what they do about them takes at most a twentieth of the time.
type limitBlockedQueue struct{ next time.Time }

// handleCost lets handling that took 5 ms be repeated after 100 ms at the earliest.
const handleCost = 20

// SetLimitsWaiting sets whether jobs wait for limits at all.
// The load comes first, because a store would make the cache line of a value that all fetches read travel between the cores.
func (s *Store) SetLimitsWaiting(waiting bool) {
	if s.limitBlocked.any.Load() != waiting {
		s.limitBlocked.any.Store(waiting)
	}
}

// add notes queues in which jobs may wait for a limit.
// The same bound as that of the cursors, because clients choose the names.
func (p *limitBlockedQueues) add(queues ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.any.Store(true)
	if len(p.queues) >= maxCursors {
		clear(p.queues)
	}
	for _, name := range queues {
		if p.queues[name] == nil {
			p.queues[name] = &limitBlockedQueue{}
		}
	}
}

// due returns those of the queues in which jobs wait, if it is time to handle them.
// Of several fetches that come at the same time one gets the queue. After an error its turn comes again in a second.
func (p *limitBlockedQueues) due(queues []string) (due []string) {
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
func (p *limitBlockedQueues) waiting(queues []string) (waiting []string) {
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

// handled ends what due began. Queues of which no job was handled have none that waits.
// A job that was blocked while the statement ran is forgotten with its queue. The next rescan, a second later, finds it.
func (p *limitBlockedQueues) handled(queues []string, handled map[string]bool, cost time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range queues {
		if q := p.queues[name]; q != nil && handled[name] {
			q.next = time.Now().Add(handleCost * cost)
		} else {
			delete(p.queues, name)
		}
	}
}

// handleLimitBlocked does what is to be done about jobs that wait for limits when a fetch had slots left: those of its tenant, if it
// takes no others. It reports whether jobs may be fetched now that could not before.
//
// It sends one statement, which is a transaction, on a context that the client cannot cancel: jobs that it drops or schedules
// have events that this node must emit. ojs.limit_handle_blocked says what is done (docs/reference/limits.md, When a limit blocks a job).
func (s *Store) handleLimitBlocked(ctx context.Context, queues []string, tenant string) (letStart bool, err error) {
	due := s.limitBlocked.due(queues)
	if len(due) == 0 {
		return false, nil
	}
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	began := time.Now()
	rows, err := s.db.Q.LimitHandleBlocked(bounded, dbsqlc.LimitHandleBlockedParams{Queues: due, Tenant: tenant, Node: s.commits.Node})
	if err != nil {
		return false, pg.ClientError(err)
	}
	handled := map[string]bool{}
	for i := range rows {
		handled[rows[i].Queue] = true
		if rows[i].Outcome == "admitted" {
			letStart = true
		} else {
			s.limited(rows[i].LimitKey)
		}
	}
	// The queues stay remembered. The jobs of another tenant may be the only ones that wait.
	if tenant != "" {
		for _, name := range due { // it has not handled the jobs of others
			handled[name] = true
		}
	}
	s.limitBlocked.handled(due, handled, time.Since(began))
	s.followWorkflows(ctx, s.afterLimitBlocked(ctx, rows))
	return letStart, nil
}

// afterLimitBlocked does what follows from jobs that were admitted, dropped or scheduled, and returns the workflows that have to follow:
// the caller calls followWorkflows for them, outside of a flush.
// LimitHandleBlocked and LimitQueueHandleBlocked have the same columns; the rows of the latter have no place, because nothing of a
// limited queue is admitted.
func (s *Store) afterLimitBlocked(ctx context.Context, rows []dbsqlc.LimitHandleBlockedRow) (workflows [][16]byte) {
	if !slices.ContainsFunc(rows, func(r dbsqlc.LimitHandleBlockedRow) bool { return r.Outcome != "handled" }) {
		return nil
	}
	var a afterCommit
	for i := range rows {
		r := &rows[i]
		switch r.Outcome {
		case "admitted":
			a.add(jobChange{
				id: r.ID, queue: r.Queue, lane: r.Lane, priority: r.Priority,
				state: ojs.StateAvailable, readySeq: pgtype.Int8{Int64: r.ReadySeq, Valid: true},
			})
		case "dropped":
			a.add(jobChange{
				id: r.ID, queue: r.Queue, state: ojs.StateDiscarded, cron: pg.Text(r.Cron),
				workflowID: pgtype.UUID{Bytes: r.WorkflowID, Valid: r.WorkflowID != [16]byte{}},
			})
		case "rescheduled":
			a.some = true
			s.timer.Schedule(time.Duration(r.DueUs) * time.Microsecond)
		}
	}
	eventlog.Emit(ctx, s.commits, rows, limitBlockedChange)
	s.notify(ctx, a)
	return a.workflows
}

// limited counts that a limit kept a fetch from a job.
// Package app passes it to the metrics.
func (s *Store) limited(key string) {
	if s.observe.Limited != nil {
		s.observe.Limited(key, 1)
	}
}

// limitBlockedChange has no event of this kind for a job that was admitted, or only handled: its state stays available.
func limitBlockedChange(changes []eventlog.Change, r *dbsqlc.LimitHandleBlockedRow) []eventlog.Change {
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
