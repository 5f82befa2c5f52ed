// Package limit owns rate and concurrency limits: which of the jobs that wait for a limit may be fetched (admit.go,
// migration 00007), and what is known of partitions. A job with a limit key is admitted, that is, gets its place in the
// fetch order, when its partition has room; claims know nothing of it. It must never count a partition without the lock of
// its row, and never wait for the row of a job.
//
// What moves is written in SQL: limit_admit counts a partition under the lock of its row and gives places. This package
// decides when to call it. Calling it too often costs a statement; a call that is missing is made up for by the Follower of
// any node, because statements that may make room leave a row in ojs.limit_pending.
//
// Limits of queues are the same partitions under a key of their own (queue:…), but are counted by the claim itself, in
// package queue; here they are only shown and overridden.
package limit

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
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
// have room for one signal each.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	logger  *slog.Logger

	admitting *batch.Batcher[string, struct{}]
	due       chan struct{} // signalled when a partition may be due earlier than the Follower knows
	left      chan struct{} // signalled when an admission has failed
}

// New returns a store on the database. Package queue calls it when jobs with limit keys have moved.
func New(deps Deps) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, logger: deps.Logger,
		due: make(chan struct{}, 1), left: make(chan struct{}, 1),
	}
	// An error that may come from one key splits the flush; a deadlock repeats it.
	s.admitting = batch.New(batch.Config[string, struct{}]{
		Flush: s.flush, Max: maxKeys, Split: pg.IsDivisible, Retry: pg.IsTransient,
	})
	// The hooks are set before the node serves, and read without a lock.
	deps.Jobs.OnLimitedJobs(s.follow)
	deps.Jobs.OnLimitedStarts(s.started)
	return s
}

// started is called after claims: a start may have set a timer.
func (s *Store) started() { signal(s.due) }

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

// Available is how many jobs more may start; false: nothing limits them. Of several limits the one with the least room
// counts. It is a figure for people: only limit_admit decides.
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
		if rows, err = q.LimitListPage(ctx, dbsqlc.LimitListPageParams{After: max(from, l.After), Before: before, QueueKeys: keys, SkipRows: int64(l.Offset), PageRows: int64(l.Limit) + 1}); err != nil {
			return err
		}
		page.Total, err = q.LimitCount(ctx, dbsqlc.LimitCountParams{After: from, Before: before, QueueKeys: keys, MaxRows: queue.CountLimit})
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

// The statement leaves out an override or a block that has expired.
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

// More room must let jobs start at once, hence the admission; less room takes the places of admitted jobs back that no
// worker has claimed. The signal sets the timer anew for an override that ends.
func (s *Store) override(ctx context.Context, p dbsqlc.LimitOverrideParams) (*Partition, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	if err := s.db.Q.LimitOverride(bounded, p); err != nil {
		return nil, pg.WriteError(err)
	}
	s.follow(ctx, []string{p.Key})
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
