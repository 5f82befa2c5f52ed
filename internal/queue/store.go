// Package queue owns every state change of a job. Each is one SQL statement over arrays that moves the jobs and writes
// their events; concurrent callers share statements through package batch. The package also owns the fetch cursors
// (cursor.go) and the parked fetches (longpoll.go) of this node. It must never answer a caller before the commit, and never
// read the clock of this machine to decide about a job.
package queue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/maintenance"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/worker/cache"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// maxErrorHistory is how many failures are kept per job. Older ones are dropped.
	maxErrorHistory = 50

	// resultTTL is how many seconds the result is kept of a job that sets no result_ttl: 7 days, as long as a completed job by
	// default. A job that needs another time says so itself.
	resultTTL = 7 * 24 * 60 * 60
)

// Config holds the settings of the store. It has no defaults: a zero is taken as a zero.
type Config struct {
	// DefaultVisibility is the reservation of a job if neither the fetch nor the job sets one.
	DefaultVisibility time.Duration

	// DefaultTimeout is the execution timeout of a job that sets none.
	DefaultTimeout time.Duration

	// FullRetryAfter is after which time producers are told to try again that a full queue has refused.
	FullRetryAfter time.Duration

	// StrictQueues refuses jobs of queues that nobody has created.
	StrictQueues bool

	// OnFull is called with the number of jobs that a full queue has refused. It must not block. May be nil.
	OnFull func(queue string, refused int)

	// OnLimited is called with the key of a limit that kept a fetch from jobs, and how many it was known to keep it from. It must not
	// block. May be nil.
	OnLimited func(key string, n int)

	// OnFlush is called after each statement that callers share, with the operation, the number of requests and the time it
	// took. It must not block. May be nil.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the store uses. All but Tracer and Schemas are required.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Queues  *queueconfig.Cache // what is configured for queues
	Logger  *slog.Logger
	Tracer  *tracing.Tracer // makes the spans of enqueues and of sweeps
	Schemas *schema.Store   // checks new jobs

	Maintenance *maintenance.Switch
}

// Store performs the state changes of jobs. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	workers *cache.Workers
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	config  Config

	maintenance *maintenance.Switch
	configured  *queueconfig.Cache

	enqueue        *batch.Batcher[*job.Job, enqueued]
	enqueueNamed   *batch.Batcher[*job.Job, enqueued] // jobs with client-chosen ids or limit keys: their statement may wait for a lock on an id or a limit
	enqueueBounded *batch.Batcher[*job.Job, enqueued] // jobs of bounded queues: their statements wait for the lock of a queue
	enqueueUnique  *batch.Batcher[*job.Job, enqueued] // jobs with a unique policy, except those whose keys are locked
	complete       operation[job.Ack]
	fail           operation[nack]
	cancel         operation[cancellation]
	results        *batch.Batcher[[16]byte, *Result]
	settling       *batch.Batcher[unsettled, settled]
	fetchers       fetchers
	lost           lostClaims

	cursors    *cursors
	priorities priorityStats
	awaiting   resultWaiters
	queues     knownQueues
	rooms      roomWakes
	parked     parkedQueues
	blocked    blockedCalls
	fullLogged fullLogs

	draining  chan struct{}
	drainOnce sync.Once

	onCronJobs      func(ctx context.Context, crons []string)
	onWorkflowJobs  func(ctx context.Context, roots [][16]byte)
	onLimitedJobs   func(ctx context.Context, keys []string)
	onLimitedStarts func()

	maxLooked int64         // pg.MaxLooked; only tests change it
	busyFor   time.Duration // maxBusy; only tests change it
}

// New returns a store on the database.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, logger: deps.Logger, tracer: deps.Tracer,
		config: config, schemas: deps.Schemas, configured: deps.Queues, maintenance: deps.Maintenance, draining: make(chan struct{}),
		cursors:    newCursors(),
		awaiting:   resultWaiters{byID: map[[16]byte][]*resultWaiter{}},
		parked:     parkedQueues{queues: map[string]*parkedQueue{}},
		rooms:      roomWakes{until: map[string]time.Time{}},
		fetchers:   fetchers{byQueues: map[string]*batch.Batcher[claimant, share]{}},
		onCronJobs: func(context.Context, []string) {}, onWorkflowJobs: func(context.Context, [][16]byte) {},
		onLimitedJobs: func(context.Context, []string) {}, onLimitedStarts: func() {},
		maxLooked: pg.MaxLooked, busyFor: maxBusy,
	}
	byID := func(j *job.Job) ([16]byte, bool) { return j.ID, j.ClientID }
	jobBytes := func(j *job.Job) int { return j.ClientBytes() + len(j.Retry) }
	s.enqueue = newBatcher(s, "enqueue", s.flushEnqueue, byID, jobBytes)
	s.enqueueNamed = newBatcher(s, "enqueue", s.flushEnqueueNamed, byID, jobBytes)
	s.enqueueBounded = newBatcher(s, "enqueue", s.flushUnique, byID, jobBytes)
	s.enqueueUnique = newBatcher(s, "enqueue", s.flushUnique, byID, jobBytes)
	s.complete = newOperation(s, "complete", s.flushComplete, ackedRun, func(a job.Ack) int { return len(a.Result) })
	s.complete.did = func(a job.Ack, c dbsqlc.EventListOwnByJobRow) bool {
		return ackedRun(a).ended(c) && c.ToState == string(ojs.StateCompleted)
	}
	s.complete.after = func(ctx context.Context, j *job.Record) {
		s.afterComplete(ctx, []job.Record{*j})
	}
	s.fail = newOperation(s, "fail", s.flushFail, nackedRun, nack.bytes)
	s.fail.did = func(n nack, c dbsqlc.EventListOwnByJobRow) bool {
		return nackedRun(n).ended(c) && wentBack(c) == n.Requeue
	}
	s.fail.after = func(ctx context.Context, j *job.Record) { s.afterFail(ctx, []dbsqlc.JobFailRow{dbsqlc.JobFailRow(*j)}) }
	s.cancel = newOperation(s, "cancel", s.flushCancel, cancelledRun, func(c cancellation) int { return len(c.data) })
	s.cancel.did = func(_ cancellation, c dbsqlc.EventListOwnByJobRow) bool {
		return c.ToState == string(ojs.StateCancelled)
	}
	s.cancel.after = func(ctx context.Context, j *job.Record) {
		s.afterCancel(ctx, []dbsqlc.JobCancelRow{dbsqlc.JobCancelRow(*j)})
	}
	s.commits.OnChanges(s.blocked.changed)
	s.settling = newBatcher(s, "settle", s.flushSettle, nil, func(unsettled) int { return 0 })
	s.results = newBatcher(s, "result", s.flushResults, nil, func([16]byte) int { return readBytes })
	return s
}

// A flush has up to 1 000 requests and up to 16 MiB: each request weighs one, and one more for every 16 KiB. A statement of
// 1 000 jobs of 1 MiB would be a message of 1 GiB, which Postgres refuses after both sides have held it in memory.
const weightBytes = 16 << 10

// readBytes is what a read of a result counts, of unknown size but up to 1 MiB by default.
const readBytes = 160 << 10

// newBatcher returns a batcher. Requests with the same key never share a statement. bytes is the size of a request.
func newBatcher[Req, Res any](s *Store, name string, flush func(context.Context, []Req) ([]Res, error), key func(Req) ([16]byte, bool), bytes func(Req) int) *batch.Batcher[Req, Res] {
	return batch.New(batch.Config[Req, Res]{
		Weight: func(req Req) int { return 1 + bytes(req)/weightBytes },
		Flush:  flush, Key: key, Split: pg.IsDivisible, Retry: pg.IsTransient, Flushed: s.flushed(name),
	})
}

func newOperation[Req any](s *Store, name string, flush func(context.Context, []Req) ([]*job.Record, error), run func(Req) Run, bytes func(Req) int) operation[Req] {
	key := func(req Req) ([16]byte, bool) { return run(req).JobID, true }
	return operation[Req]{store: s, batch: newBatcher(s, name, flush, key, bytes), run: run}
}

// flushed is OnFlush for one operation, or nil.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.config.OnFlush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.config.OnFlush(operation, requests, took) }
}

// Forget drops what this node remembers of queues and jobs, after a reset of the database. It is read again on demand.
func (s *Store) Forget() {
	s.queues.clear()
	s.cursors.forget()
}
