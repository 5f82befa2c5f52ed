// Package limit owns rate and concurrency limits: which of the jobs that wait for a limit may be fetched (Admit,
// migration 00007), and what is known of partitions. A job with a limit key is admitted, that is, gets its place in the
// fetch order, when its limit lets it start; claims know nothing of it. It must never count a partition without the lock of
// its row, and never wait for the row of a job.
//
// What moves is written in SQL: limit_admit counts a partition under the lock of its row and gives places. This package
// decides when to call it. Calling it too often costs a statement; a call that is missing is made up for by the Follower of
// any node, because statements that may let jobs start leave a row in ojs.limit_pending.
//
// Limits of queues are the same partitions under a key of their own (queue:…), but are counted by the claim itself, in
// package queue; here they are only shown and overridden.
package limit

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Jobs    *queue.Store
	Logger  *slog.Logger
}

// Store admits jobs and reads and changes partitions. Use New. It keeps no counts: all are in the database. due and left
// hold one signal each.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	logger  *slog.Logger

	admitting *batch.Batcher[string, struct{}]
	due       chan struct{} // signalled when a partition may be due earlier than the Follower knows
	left      chan struct{} // signalled when an admission has failed
}

// New returns a store on the database. Package queue is to call Follow when jobs with limit keys have moved, and Started when some were
// claimed (queue.Hooks).
func New(deps Deps) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, logger: deps.Logger,
		due: make(chan struct{}, 1), left: make(chan struct{}, 1),
	}
	// An error that may come from one key splits the flush; a deadlock repeats it.
	s.admitting = batch.New(batch.Config[string, struct{}]{
		Flush: s.flush, Max: maxKeys, Split: pg.IsDivisible, Retry: pg.IsTransient,
	})
	return s
}

// Started is called after claims: a start may have set a timer.
func (s *Store) Started() { signal(s.due) }

// Wake lets the Follower look for changes that are left over, for example after an application has cancelled a job in SQL.
// It never blocks, and works before the Follower has started.
func (s *Store) Wake() { signal(s.left) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Partition is what clients see of the jobs with one key, or of a limited queue. The counts are taken without the lock of
// the row, so they may be ahead of or behind what an admission counts at the same time. Started counts starts within the
// period of the rate. Times are of the database; zero means that there is none.
type Partition struct {
	Key           string
	Policy        job.LimitPolicy  // with the override
	Override      *job.LimitPolicy // nil: none
	OverrideUntil time.Time        // zero: until it is deleted
	BlockedUntil  time.Time        // a worker has asked for it; zero: nothing blocks it
	Active        int64            // up to 10 000
	Waiting       int64            // available jobs; up to 10 000
	Started       int64            // starts that count for the rate
	ResetAt       time.Time        // when one of them stops counting
	NextAt        time.Time        // when the throttle permits a start
}

// Available is how many jobs more may start; false: nothing limits them. Of several limits the one that
// permits the fewest counts. It is a figure for people: only limit_admit decides.
func (p *Partition) Available() (n int64, limited bool) {
	least := func(left int64) {
		if left = max(0, left); !limited || left < n {
			n, limited = left, true
		}
	}
	if p.Policy.Concurrency != nil {
		least(*p.Policy.Concurrency - p.Active)
	}
	if p.Policy.Rate != nil {
		least(p.Policy.Rate.Limit - p.Started)
	}
	return n, limited
}

// Page is a page of partitions.
type Page struct {
	Partitions []Partition
	More       bool
	Total      int64 // up to queue.CountLimit
}

// List is what a page is asked for. Of After and Offset at most one counts.
type List struct {
	Tenant        string // whose partitions, without those of queues; "": all
	After         string // cursor: keys behind it
	Offset, Limit int
}

// Get returns a partition: 404 if no job and no client has named it, or if it is that of a queue without limit. For a queue
// it may write, see setQueue.
func (s *Store) Get(ctx context.Context, key string) (*Partition, error) {
	if err := s.setQueue(ctx, key); err != nil {
		return nil, err
	}
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.LimitGet(bounded, key)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, spec.NotFound("rate_limit", key)
	}
	p := newPartition(rows[0])
	return &p, nil
}

// setQueue stores the policy of a queue's partition as the queue has it now: otherwise a claim does it. The row of a
// queue's partition is made by the first claim after a change. Without this an answer would show the old policy, or 404,
// for a queue that nobody fetches from.
func (s *Store) setQueue(ctx context.Context, key string) error {
	name, isQueue := strings.CutPrefix(key, job.QueueLimitPrefix)
	if !isQueue {
		return nil
	}
	p, err := s.jobs.QueueLimit(ctx, name)
	if err != nil {
		return err
	}
	if p == nil {
		return spec.NotFound("rate_limit", key)
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.WriteError(s.db.Q.LimitSet(ctx, []string{key}, [][]byte{p.Stored()}))
}

// behindAll is behind every key.
const behindAll = "~"

// List returns a page, by key. The policies of limited queues are stored first, for the reason that setQueue tells; a
// tenant does not see those. Page and total come from one snapshot.
func (s *Store) List(ctx context.Context, l List) (page Page, err error) {
	keys, policies := []string{}, [][]byte{}
	from, before := "", behindAll
	if l.Tenant != "" {
		from, before = job.PartitionKey(l.Tenant, "", nil), job.PartitionKey(l.Tenant, behindAll, nil)
	} else {
		limits, err := s.jobs.QueueLimits(ctx)
		if err != nil {
			return page, err
		}
		for name, p := range limits {
			keys, policies = append(keys, job.QueueLimitPrefix+name), append(policies, p.Stored())
		}
	}
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	if len(keys) > 0 {
		if err := s.db.Q.LimitSet(ctx, keys, policies); err != nil {
			return page, pg.WriteError(err)
		}
	}
	var rows []dbsqlc.LimitListPageRow
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
		q := dbsqlc.New(tx)
		if rows, err = q.LimitListPage(ctx, dbsqlc.LimitListPageParams{After: max(from, l.After), Before: before, QueueKeys: keys,
			SkipRows: int64(l.Offset), PageRows: int64(l.Limit) + 1}); err != nil {
			return err
		}
		page.Total, err = q.LimitCount(ctx, dbsqlc.LimitCountParams{After: from, Before: before, QueueKeys: keys,
			MaxRows: queue.CountLimit})
		return err
	})
	if err != nil {
		return page, pg.ClientError(err)
	}
	if page.More = len(rows) > l.Limit; page.More {
		rows = rows[:l.Limit]
	}
	for _, r := range rows {
		page.Partitions = append(page.Partitions, newPartition(dbsqlc.LimitGetRow(r)))
	}
	return page, nil
}

// newPartition has no override or block that has expired: the statement leaves them out.
func newPartition(r dbsqlc.LimitGetRow) Partition {
	p := Partition{
		Key: r.Key, Policy: job.ParseStoredLimit(r.Policy), BlockedUntil: r.BlockedUntil.Time,
		Active: r.Active, Waiting: r.Waiting, Started: r.Started, ResetAt: r.ResetAt.Time, NextAt: r.NextAt.Time,
	}
	if r.Override != nil {
		o := job.ParseStoredLimit(r.Override)
		p.Override, p.OverrideUntil, p.Policy = &o, r.OverrideUntil.Time, p.Policy.Override(o)
	}
	return p
}

// SetOverride replaces parts of the policy of a partition, which is created if no job has named it. What was replaced
// before holds again. It is idempotent. It is committed before jobs are admitted by it; if that fails, the Follower admits
// them.
func (s *Store) SetOverride(ctx context.Context, key string, o *job.LimitOverride) (*Partition, error) {
	if err := s.setQueue(ctx, key); err != nil {
		return nil, err
	}
	return s.override(ctx, dbsqlc.LimitOverrideParams{Key: key, Override: o.Stored(), Until: pg.Timestamp(o.ExpiresAt)})
}

// DeleteOverride lets the policy hold again. It is no error if there is no override.
func (s *Store) DeleteOverride(ctx context.Context, key string) (*Partition, error) {
	if _, err := s.Get(ctx, key); err != nil {
		return nil, err
	}
	return s.override(ctx, dbsqlc.LimitOverrideParams{Key: key})
}

// override admits jobs, because a higher limit must let them start at once; a lower one takes the places of admitted jobs back that no
// worker has claimed. The signal sets the timer anew for an override that ends.
func (s *Store) override(ctx context.Context, p dbsqlc.LimitOverrideParams) (*Partition, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	if err := s.db.Q.LimitOverride(bounded, p); err != nil {
		return nil, pg.WriteError(err)
	}
	s.Follow(ctx, []string{p.Key})
	signal(s.due)
	return s.Get(ctx, p.Key)
}

// OfJob is the partition of which the answer to an enqueue tells, with rate or throttle; nil: there is none. It is asked
// after the enqueue was committed, so the counts include the job.
func (s *Store) OfJob(ctx context.Context, j *job.Job) (*Partition, error) {
	key := j.LimitKey
	if key == "" {
		limit, err := s.jobs.QueueLimit(ctx, j.Queue)
		if err != nil || limit == nil {
			return nil, err
		}
		key = job.QueueLimitPrefix + j.Queue
	}
	p, err := s.Get(ctx, key)
	if err != nil || p.Policy.Rate == nil && p.Policy.Throttle == nil {
		return nil, err
	}
	return p, nil
}

const (
	// maxKeys bounds the partitions of one statement. It locks them until its commit. More would let an enqueue of one key
	// wait behind the admission of all others.
	maxKeys = 200

	// maxRounds bounds the statements for a partition with more jobs to move than fit one. The Follower goes on. Callers
	// wait for the flush, so it must end although jobs keep coming.
	maxRounds = 20
)

// Admit lets jobs of the partitions be fetched, as many as may start. Concurrent callers share a transaction, which begins after the
// changes of all of them were committed. It goes on if ctx ends. When it returns nil, what could start then has its place
// and can be fetched. After an error some partitions may have been admitted; a repetition admits the rest, and never too
// many, as each call counts anew. Nodes may call it for the same keys at once: they take turns at the locks of the rows.
func (s *Store) Admit(ctx context.Context, keys []string) error {
	_, errs := s.admitting.DoMany(context.WithoutCancel(ctx), keys)
	return errors.Join(errs...)
}

// Follow is called after commits that moved jobs of these partitions (queue.Hooks). If they cannot be looked at now, the Follower does
// it. The change is committed, so an error is logged and not returned.
func (s *Store) Follow(ctx context.Context, keys []string) {
	if err := s.Admit(ctx, keys); err != nil {
		s.logger.WarnContext(ctx, "jobs that wait for a rate limit were not looked at; trying again within seconds",
			slog.String("category", "error"), slog.Any("error", err))
		s.Wake()
	}
}

// flush admits jobs of all the partitions, and again of those that had more than one statement moves. The keys of all
// callers are asked for once each. limit_admit locks their rows in the order of the keys, so that two nodes cannot block
// each other. An error fails the flush, and the batcher halves it if the error may be that of one key.
func (s *Store) flush(ctx context.Context, keys []string) ([]struct{}, error) {
	left := slices.Compact(slices.Sorted(slices.Values(keys)))
	for round := 0; len(left) > 0 && round < maxRounds; round++ {
		rows, err := s.admit(ctx, left)
		if err != nil {
			return nil, err
		}
		// A new array, because the old one may be that of the parameter.
		left = left[:0:0]
		for _, r := range rows {
			if r.More {
				left = append(left, r.Key)
			}
		}
	}
	if len(left) > 0 {
		s.Wake()
	}
	return make([]struct{}, len(keys)), nil
}

// admit wakes fetches after the commit, by the places that the statement has returned.
func (s *Store) admit(ctx context.Context, keys []string) (partitions []dbsqlc.LimitAdmitRow, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.LimitAdmitRow
	err = s.db.WithPartitions(ctx, func() (err error) {
		rows, err = s.db.Q.LimitAdmit(ctx, keys, s.commits.Node)
		return err
	})
	if err != nil {
		return nil, err
	}
	var places []queue.Place
	for _, r := range rows {
		if r.Queue != "" {
			places = append(places, queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.ReadySeq})
			continue
		}
		partitions = append(partitions, r)
		// The partition becomes due by time; the Follower sets its timer anew.
		if r.WaitUs >= 0 {
			signal(s.due)
		}
	}
	if len(places) > 0 {
		s.jobs.NotifyAvailable(places)
		s.commits.Committed()
	}
	return partitions, nil
}

const (
	// lookInterval is how often a Follower looks for partitions that are due, while jobs move or one is known to become due. Timers of
	// this node are met exactly. It bounds how long jobs wait although they may start, after a node has stopped.
	lookInterval = time.Second

	// lookCost is the least time between two looks, as a multiple of what the latest one took if that was more than lookCheap: with an
	// old snapshot in the cluster the dead rows of limit_pending stay, and a look walks them.
	lookCost  = 20
	lookCheap = 10 * time.Millisecond

	// dueRows bounds a list; a full one is followed by another look at once.
	dueRows = 1000
)

// Follower lets jobs be fetched when time lets them start, and after changes that are left over, because the node that made
// them stopped, or because an application made them in SQL. Every node runs one. On a server on which nothing moves it
// reads nothing. All nodes look. Two that admit one partition at once take turns, and the second one finds nothing to do.
//
// moved is cleared before a look reads the database, not after: a change during the look is looked for again.
type Follower struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
	moved atomic.Bool // jobs have moved since the latest look
}

// NewFollower returns a follower for the partitions of the store.
func NewFollower(archetype *baseservice.Archetype, store *Store) *Follower {
	return baseservice.Init(archetype, &Follower{store: store})
}

// Notify reports that jobs moved, on this node or on another one. It runs after every commit, so it writes only if the
// value changes.
func (f *Follower) Notify() {
	if !f.moved.Load() {
		f.moved.Store(true)
	}
}

// Start runs the loop until stopped. It looks at once: no node may have run for long.
func (f *Follower) Start(ctx context.Context) error {
	loop.Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

// loop sets the timer due to the time that the database has told, so a rate limit is met to the millisecond on nodes that know
// of it; the tick is for what a notification did not tell.
func (f *Follower) loop(ctx context.Context) {
	f.store.Wake()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	due := time.NewTimer(lookInterval)
	defer due.Stop()
	waiting := false // a partition is known to become due
	var rest time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.store.left:
		case <-f.store.due:
		case <-due.C:
		case <-tick.C:
			if !waiting && !f.moved.Load() {
				continue
			}
		}
		// A signal that came meanwhile is not lost: the look that follows covers it.
		if pause := time.Until(rest); pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		next, cost := f.look(ctx)
		if waiting = next >= 0; waiting {
			due.Reset(next)
		}
		rest = time.Time{}
		if cost > lookCheap {
			rest = time.Now().Add(min(lookCost*cost, lookInterval))
		}
	}
}

// look admits jobs of the partitions that are due. It returns how long until the next one is, below 0 if none is known, and what it
// took to find out. After an error it is repeated after lookInterval.
func (f *Follower) look(ctx context.Context) (next, cost time.Duration) {
	f.moved.Store(false)
	next, cost, err := f.store.admitDue(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.Logger.WarnContext(ctx, "partitions of rate limits were not looked at; trying again", slog.String("category", "error"),
				slog.Any("error", err))
		}
		return lookInterval, 0
	}
	return next, cost
}

// AdmitDue admits jobs of the partitions that are due, and returns how long until the next one is; below 0: none is known.
// Tests call it; nodes run the loop.
func (s *Store) AdmitDue(ctx context.Context) (next time.Duration, err error) {
	next, _, err = s.admitDue(ctx)
	return next, err
}

// admitDue has for cost that of the list alone, not that of the admissions: those are work, not looking.
func (s *Store) admitDue(ctx context.Context) (next, cost time.Duration, err error) {
	began := time.Now()
	listing, cancel := s.db.Bounded(ctx)
	keys, err := s.db.Q.LimitListDue(listing, dueRows)
	cancel()
	cost = time.Since(began)
	if err != nil {
		return 0, 0, err
	}
	full := len(keys) == dueRows
	// A partition has a row for each reason to look at it.
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > 0 {
		if err := s.Admit(ctx, keys); err != nil {
			return 0, 0, err
		}
	}
	if full {
		return 0, 0, nil
	}
	ctx, cancel = s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.LimitNextDue(ctx)
	if err == nil {
		// Package queue need not look for limit-blocked jobs in fetches while none waits.
		s.jobs.SetLimitsWaiting(row.Waiting)
	}
	return time.Duration(row.WaitUs) * time.Microsecond, cost, err
}
