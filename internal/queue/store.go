// Package queue owns every state change of a job. Each is one SQL statement over arrays that moves the jobs and writes
// their events; concurrent callers share statements through package batch. It also owns what this node knows of where
// available jobs are (ready.go). It must never answer a caller before commit, and never read the clock of this machine
// to decide anything about a job.
package queue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/worker/cache"
)

// maxErrorHistory is how many failures are kept per job, the newest.
const maxErrorHistory = 50

// Config holds what the store decides by. Values are taken as they are.
type Config struct {
	// DefaultVisibility is the reservation of a job when neither the fetch nor the job asks for another.
	DefaultVisibility time.Duration

	// DefaultTimeout is the execution timeout of a job that has none.
	DefaultTimeout time.Duration

	// ResultTTL is how long the result of a job that sets no result_ttl is shown, in whole seconds: below one it is not
	// kept; 0: as long as the job.
	ResultTTL time.Duration

	// OnFlush gets, for each statement that callers share, the operation, how many requests shared it and what it took.
	// It must not block. nil: nobody.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the store works with. All but Tracer are required.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Logger  *slog.Logger
	Tracer  *tracing.Tracer // makes the spans of jobs and of passes over them
}

// Store performs state changes of jobs. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	workers *cache.Workers
	logger  *slog.Logger
	tracer  *tracing.Tracer
	config  Config

	enqueue  *batch.Batcher[*job.Job, enqueued]
	named    *batch.Batcher[*job.Job, enqueued] // jobs with client-chosen ids, which may have to wait for another's
	complete *batch.Batcher[job.Ack, *job.Record]
	fail     *batch.Batcher[nack, *job.Record]
	cancel   *batch.Batcher[cancellation, *job.Record]
	results  *batch.Batcher[[16]byte, *Result]
	fetchers fetchers

	ready   ready
	endings endings
	queues  sync.Map // names known to exist

	draining  chan struct{}
	drainOnce sync.Once

	onCronJobs func(ctx context.Context, crons []string)
}

// New returns a store on the database.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, logger: deps.Logger, tracer: deps.Tracer,
		config: config, draining: make(chan struct{}),
		onCronJobs: func(context.Context, []string) {},
	}
	s.ready.init()
	s.endings.waiters = map[[16]byte][]*ending{}
	s.fetchers.byQueues = map[string]*batch.Batcher[claimant, []*job.Record]{}
	byID := func(j *job.Job) ([16]byte, bool) { return j.ID, j.ClientID }
	s.enqueue = newBatcher(s, "enqueue", s.flushEnqueue, byID)
	s.named = newBatcher(s, "enqueue", s.flushEnqueue, byID)
	s.complete = newBatcher(s, "complete", s.flushComplete, func(a job.Ack) ([16]byte, bool) { return a.JobID, true })
	s.fail = newBatcher(s, "fail", s.flushFail, func(n nack) ([16]byte, bool) { return n.JobID, true })
	s.cancel = newBatcher(s, "cancel", s.flushCancel, func(c cancellation) ([16]byte, bool) { return c.id, true })
	s.results = newBatcher(s, "result", s.flushResults, nil)
	return s
}

// newBatcher collects the calls of one operation; requests with the same key never share a statement.
func newBatcher[Req, Res any](s *Store, operation string, flush func(context.Context, []Req) ([]Res, error), key func(Req) ([16]byte, bool)) *batch.Batcher[Req, Res] {
	return batch.New(batch.Config[Req, Res]{
		Flush: flush, Key: key, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.flushed(operation),
	})
}

// flushed is nil if nobody wants to know.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.config.OnFlush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.config.OnFlush(operation, requests, took) }
}

// OnCronJobs sets what is called after a commit that moved jobs of these crons. It may take a statement: callers of the
// change are answered after it.
func (s *Store) OnCronJobs(f func(ctx context.Context, crons []string)) { s.onCronJobs = f }

func (s *Store) releaseCrons(ctx context.Context, crons []string) {
	if len(crons) > 0 {
		s.onCronJobs(ctx, crons)
	}
}

// DefaultVisibility is the reservation of a job when nobody asks for another.
func (s *Store) DefaultVisibility() time.Duration { return s.config.DefaultVisibility }
