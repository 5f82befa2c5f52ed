// Package queue owns every state change of a job. Each is one SQL statement over arrays that moves the jobs and writes their events;
// concurrent callers share statements through package batch. The package also owns the fetch cursors (cursors.go), the waiting fetches
// (waiting_fetch.go) and what is known of workers (workers.go) on this node. It must never answer a caller before the commit, and never
// read the clock of this machine to decide about a job.
package queue

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// maxErrorHistory is how many failures are kept per job. Older ones are dropped.
	// JobFail cuts the column errors to it. JobRetry keeps as many in previous_errors, by a number of its own: both change
	// together.
	maxErrorHistory = 50

	// resultTTL is how many seconds the result is kept of a job that sets no result_ttl: 7 days, as long as a completed job by
	// default. A job that needs another time says so itself.
	resultTTL = 7 * 24 * 60 * 60
)

// Observer is told what the store does, for metrics. Its functions must not block; nil ones are not called.
type Observer struct {
	// Full is called for each job that a full queue has refused, when the call has ended (CountRefused), and once for a call of all
	// jobs or none.
	Full func(queue string)

	// Limited is called with the key of a limit that kept a fetch from jobs, and how many it was known to keep it from.
	Limited func(key string, n int)

	// Flush is called after each statement that callers share, with the operation, the number of requests and the time it took.
	Flush func(operation string, requests int, took time.Duration)

	// Outage is called when this node has found an outage (CheckOutage).
	Outage func()
}

// Deps are the parts of a node that the store uses. All but Tracer and Schemas are required.
// The store keeps them for the life of the node. Queues is shared with package queueadmin, Workers with worker and progress.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *loop.Timer
	Workers *Workers
	Queues  *queueconfig.Cache // what is configured for queues
	Logger  *slog.Logger
	Tracer  *tracing.Tracer // makes the spans of enqueues and of sweeps
	Schemas *schema.Store   // checks new jobs

	Maintenance *queueconfig.Maintenance
	Hooks       Hooks
	Observer    Observer
}

// Hooks are what the store calls in the domains above it, after a commit and never before. All are required. WorkflowJobs and LimitedJobs
// run transactions, so they are called outside of flushes, but for jobs that a limited queue has dropped (claimLimited). The other two
// are called inside of them.
type Hooks struct {
	// CronJobs is called when jobs of these crons have moved: one that waits behind them may be fetched now. It may send a statement.
	// Callers of the change are answered after it.
	CronJobs func(ctx context.Context, crons []string)

	// WorkflowJobs is called when jobs of the workflows with these roots have ended or were revived. Callers of the change are answered
	// after it, so they find the next steps. If it fails, the rows in ojs.workflow_pending stay, and the follower of package workflow acts
	// on them within seconds.
	WorkflowJobs func(ctx context.Context, roots [][16]byte)

	// LimitedJobs is called when jobs of these limit keys have entered available, or have left available or active. Callers of the change
	// are answered after it. If it fails, the follower of package limit finds the rows of ojs.limit_pending a second later.
	LimitedJobs func(ctx context.Context, keys []string)

	// LimitedStarts is called after a claim of jobs with limit keys. It must not block. A start may set a timer: the follower of package
	// limit has to look when it no longer counts.
	LimitedStarts func()
}

// Store performs the state changes of jobs. Use New.
type Store struct {
	// None of these change after New, so they are read without a lock.
	db      *pg.DB
	commits *eventlog.Commits
	timer   *loop.Timer
	workers *Workers
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	config  config.Config
	hooks   Hooks
	observe Observer

	maintenance *queueconfig.Maintenance
	configured  *queueconfig.Cache

	// Callers of a batcher wait for the slowest lock of their flush. So enqueues have four: a plain one must never wait for an
	// id, a limit, the row of a queue or a unique key that another transaction has locked. enqueuer chooses. A call with jobs of
	// several kinds takes the batcher with most locks, whose flush can do everything that the others do.
	enqueue        *batch.Batcher[*job.Job, enqueued]
	enqueueNamed   *batch.Batcher[*job.Job, enqueued] // jobs with client-chosen ids or limit keys: they may wait for a lock on these
	enqueueBounded *batch.Batcher[*job.Job, enqueued] // jobs of bounded queues: their statements wait for the lock of a queue
	enqueueUnique  *batch.Batcher[*job.Job, enqueued] // jobs with a unique policy, except those whose keys are locked
	// These three have the job as the key of a request: two requests about a job never share a statement, so the later one sees
	// what the earlier one has done.
	complete operation[job.Ack]
	fail     operation[nack]
	cancel   operation[cancellation]
	// Reads have no key: callers that wait for the same job share a statement.
	results *batch.Batcher[[16]byte, *Result]
	// It looks up writes whose answer was lost. When a connection breaks, all callers of its flush ask at once.
	lookUps  *batch.Batcher[unsettled, settled]
	fetchers fetchers
	lost     lostClaims

	// All of these are memory of this node. They can be lost: a rescan, the poller or the next statement finds out again.
	cursors       *cursors
	priorities    priorityStats
	resultWaiters resultWaiters
	queues        knownQueues
	limitWakes    limitWakes
	limitBlocked  limitBlockedQueues
	roomWaiters   roomWaiters
	fullLogged    fullLogs

	// It is closed when the node stops, and never opened again. Everything that parks selects on it.
	draining  chan struct{}
	drainOnce sync.Once

	maxLooked     int64         // pg.MaxLooked; only tests change it
	lockedKeyTime time.Duration // maxLockedKeyTime; only tests change it
}

// New returns a store on the database.
func New(deps Deps, c config.Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, logger: deps.Logger, tracer: deps.Tracer, config: c,
		hooks: deps.Hooks, observe: deps.Observer, schemas: deps.Schemas, configured: deps.Queues,
		maintenance: deps.Maintenance, draining: make(chan struct{}),
		cursors:       newCursors(),
		resultWaiters: resultWaiters{byID: map[[16]byte][]*resultWaiter{}},
		limitBlocked:  limitBlockedQueues{queues: map[string]*limitBlockedQueue{}},
		limitWakes:    limitWakes{until: map[string]time.Time{}},
		fetchers:      fetchers{byQueues: map[string]*batch.Batcher[claimant, fetchAnswer]{}},
		maxLooked:     pg.MaxLooked, lockedKeyTime: maxLockedKeyTime,
	}
	// Equal ids in one statement would make the outcome depend on the order of its rows. An id that was made here has no equal.
	byID := func(j *job.Job) ([16]byte, bool) { return j.ID, j.ClientID }
	jobBytes := func(j *job.Job) int { return j.ClientBytes() + len(j.Retry) }
	s.enqueue = newBatcher(s, "enqueue", s.flushEnqueue, byID, jobBytes)
	s.enqueueNamed = newBatcher(s, "enqueue", func(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
		return s.flushInsertion(ctx, newInsertion(jobs, false))
	}, byID, jobBytes)
	s.enqueueBounded = newBatcher(s, "enqueue", s.flushUnlockedKeys, byID, jobBytes)
	s.enqueueUnique = newBatcher(s, "enqueue", s.flushUnlockedKeys, byID, jobBytes)
	// A change counts as that of a lost answer (did) only if it ends the run that the request names: a job that was handed back and fetched
	// again has the same attempt.
	s.complete = operation[job.Ack]{
		store: s, run: ackedRun,
		batch: newBatcher(s, "complete", s.flushComplete, byRun(ackedRun), func(a job.Ack) int { return len(a.Result) }),
		did: func(a job.Ack, c dbsqlc.EventListOwnByJobRow) bool {
			return ackedRun(a).ended(c) && c.ToState == string(ojs.StateCompleted)
		},
		after: func(ctx context.Context, j *job.Record) { s.afterComplete(ctx, []job.Record{*j}) },
	}
	s.fail = operation[nack]{
		store: s, run: nackedRun, batch: newBatcher(s, "fail", s.flushFail, byRun(nackedRun), nack.bytes),
		did: func(n nack, c dbsqlc.EventListOwnByJobRow) bool {
			return nackedRun(n).ended(c) && wentBack(c) == n.Requeue
		},
		after: func(ctx context.Context, j *job.Record) { s.afterFail(ctx, []dbsqlc.JobFailRow{dbsqlc.JobFailRow(*j)}) },
	}
	s.cancel = operation[cancellation]{
		store: s, run: cancelledRun,
		batch: newBatcher(s, "cancel", s.flushCancel, byRun(cancelledRun), func(c cancellation) int { return len(c.data) }),
		did: func(_ cancellation, c dbsqlc.EventListOwnByJobRow) bool {
			return c.ToState == string(ojs.StateCancelled)
		},
		after: func(ctx context.Context, j *job.Record) {
			s.afterCancel(ctx, []dbsqlc.JobCancelRow{dbsqlc.JobCancelRow(*j)})
		},
	}
	s.lookUps = newBatcher(s, "settle", s.flushLookUps, nil, func(unsettled) int { return 0 })
	s.results = newBatcher(s, "result", s.flushResults, nil, func([16]byte) int { return readBytes })
	return s
}

// weightBytes bounds a flush to 1 000 requests and 16 MiB: each request weighs one, and one more for every 16 KiB. A statement of
// 1 000 jobs of 1 MiB would be a message of 1 GiB, which Postgres refuses after both sides have held it in memory.
const weightBytes = 16 << 10

// readBytes is what a read of a result counts, of unknown size but up to 1 MiB by default.
// A flush has up to 90 such reads: 90 MiB if each is of 1 MiB, and rarely more than a few in fact.
const readBytes = 160 << 10

// newBatcher returns a batcher. Requests with the same key never share a statement. bytes is the size of a request.
//
// IsDivisible errors split a flush in halves, so that one bad row fails alone. A transient error runs the whole flush again:
// nothing of it has committed then. Errors of a broken connection do neither, because the write may have committed (lost_answers.go).
func newBatcher[Req, Res any](s *Store, name string, flush func(context.Context, []Req) ([]Res, error), key func(Req) ([16]byte, bool),
	bytes func(Req) int) *batch.Batcher[Req, Res] {
	return batch.New(batch.Config[Req, Res]{
		Weight: func(req Req) int { return 1 + bytes(req)/weightBytes },
		Flush:  flush, Key: key, Split: pg.IsDivisible, Retry: pg.IsTransient, Flushed: s.flushed(name),
	})
}

// byRun keeps requests about one job apart.
func byRun[Req any](run func(Req) JobRun) func(Req) ([16]byte, bool) {
	return func(req Req) ([16]byte, bool) { return run(req).JobID, true }
}

// flushed is Observer.Flush for one operation, or nil.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.observe.Flush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.observe.Flush(operation, requests, took) }
}

// Forget drops what this node remembers of queues and jobs, after a reset of the database. It is read again on demand.
//
// Calls that are parked stay so. The poller rescans their queues again within a second. Claims in flight end on the old cursors,
// which nobody reads any more.
func (s *Store) Forget() {
	s.queues.clear()
	// Rescans and turns of all queues go with the cursors. Waiting fetches stay.
	s.cursors.mu.Lock()
	defer s.cursors.mu.Unlock()
	clear(s.cursors.queues)
	s.cursors.newest = 0
}

const (
	// knownFor is how long a node takes a queue for stored since it has made sure. The row is kept for far longer, so that no
	// enqueue counts on one that was deleted; see ojs.queues_prune.
	// A longer time would save nothing: it is a statement per queue and hour.
	knownFor = time.Hour

	// maxKnown bounds the names, which clients choose. The first enqueue to a forgotten queue makes sure again.
	maxKnown = 100_000
)

// knownQueues are the queues that have a row.
// It is read for each job of each insert, by many goroutines, and hardly ever written, hence the sync.Map. The zero value is
// ready.
type knownQueues struct {
	since sync.Map // name → time.Time
	// About the number of names: a clear beside an add may leave it off by some, which moves the next clear.
	count atomic.Int64
}

// has takes a now that was read before the statement that may make sure, as add does, so that the hour begins before the row was seen.
func (k *knownQueues) has(name string, now time.Time) bool {
	since, ok := k.since.Load(name)
	return ok && now.Sub(since.(time.Time)) < knownFor
}

func (k *knownQueues) add(names []string, now time.Time) {
	for _, name := range names {
		if _, known := k.since.Swap(name, now); !known && k.count.Add(1) > maxKnown {
			k.clear()
		}
	}
}

// remove forgets a queue that was deleted or changed, perhaps by another node (QueueChanged).
func (k *knownQueues) remove(name string) {
	if _, known := k.since.LoadAndDelete(name); known {
		k.count.Add(-1)
	}
}

func (k *knownQueues) clear() {
	k.since.Clear()
	k.count.Store(0)
}

// Stats are the figures of one queue.
type Stats struct {
	Name   string
	Status string // active, paused, draining
	Counts map[ojs.JobState]int64
	// Only the bound by depth; a bound in bytes has no figure here.
	MaxDepth   int64                   // the bound of the queue; 0: none
	Rates      dbsqlc.QueueGetRatesRow // of the last 60 minutes
	ComputedAt time.Time
}

// QueueStats reads the figures in one snapshot, so the counts are exact. An unknown queue has zeros and is not created.
// All statements share a snapshot, or a job that moves between two of them would be counted twice or not at all. It is cheap for
// any number of jobs: kept counts plus the events that the relay has not published.
func (s *Store) QueueStats(ctx context.Context, name string) (Stats, error) {
	stats := Stats{Name: name, Status: "active", Counts: map[ojs.JobState]int64{}}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// The bound comes from the cache, at most a second old; everything else is of the snapshot.
	configured, err := s.configured.Get(ctx, name)
	if err != nil {
		return stats, err
	}
	if q := configured[name]; q != nil && q.Config.Backpressure != nil {
		stats.MaxDepth = q.Config.Backpressure.MaxDepth
	}
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := s.db.Q.WithTx(tx)
		now, err := q.SystemPing(ctx)
		if err != nil {
			return err
		}
		stats.ComputedAt = now.Time
		queue, err := q.QueueGet(ctx, name)
		if err == nil {
			stats.Status = queue.Status
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		counts, err := q.QueueCountListByQueue(ctx, name)
		if err != nil {
			return err
		}
		for _, c := range counts {
			stats.Counts[ojs.JobState(c.State)] = c.Count
		}
		stats.Rates, err = q.QueueGetRates(ctx, name)
		return err
	})
	return stats, pg.ClientError(err)
}

// QueuesAfter returns the queues whose names follow name, in order, and whether there are more.
// One row more than the page is read, to know whether there are more.
func (s *Store) QueuesAfter(ctx context.Context, name string, limit int) (rows []dbsqlc.QueueListAfterRow, more bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err = s.db.Q.QueueListAfter(ctx, name, int32(limit)+1)
	if err != nil {
		return nil, false, pg.ClientError(err)
	}
	if more = len(rows) > limit; more {
		rows = rows[:limit]
	}
	return rows, more, nil
}

// QueueChanged is called when the status or the configuration of a queue has changed on any node, or the queue was deleted; "": of any
// queue. Fetches look again, because a resumed queue has jobs that their cursors have passed. The next enqueue makes sure that the
// queue has a row.
// It must not block: it runs on the goroutine of the listener, or of a look of queueconfig.Cache.
func (s *Store) QueueChanged(name string) {
	if name == "" {
		s.queues.clear()
		s.NotifyAll()
		return
	}
	// Order: the queues are to be rescanned before fetches are woken, or these would find nothing.
	s.queues.remove(name)
	s.cursors.rescanAgain(name)
	s.cursors.wakeQueue(name, maxWoken)
}

// QueueExists reports whether a queue has ever had a job or a setting.
func (s *Store) QueueExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	found, err := s.db.Q.QueueExists(ctx, name)
	return found, pg.ClientError(err)
}

// QueueGetTotals counts queues by status.
func (s *Store) QueueGetTotals(ctx context.Context) (dbsqlc.QueueGetTotalsRow, error) {
	return s.db.Q.QueueGetTotals(ctx)
}
