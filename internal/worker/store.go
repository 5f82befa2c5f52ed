// Package worker is the registry of workers: heartbeats, directives of operators, and the recovery of the jobs of workers
// that died. It changes jobs only through package queue.
package worker

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/worker/cache"
)

// Config holds what the registry decides by. Values are taken as they are.
type Config struct {
	// DeadAfter is the silence after which a worker that has sent heartbeats is dead.
	DeadAfter time.Duration

	// DefaultTimeout is the execution timeout of a job that has none.
	DefaultTimeout time.Duration

	// HeartbeatEvents writes worker.heartbeat, one event per heartbeat call.
	HeartbeatEvents bool

	// JobHeartbeatInterval is the least time between two job.heartbeat events of a run. 0: one per extension.
	JobHeartbeatInterval time.Duration

	// TestDirectives lets meta.test_directive of a job decide what its worker is told. For tests only.
	TestDirectives bool

	// OnFlush gets, for each statement that callers share, the operation, how many requests shared it and what it took.
	// It must not block. nil: nobody.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the registry works with.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
}

// Store is the registry. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	workers *cache.Workers
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	config  Config

	heartbeat *batch.Batcher[Beat, BeatResult]

	listeningSince atomic.Pointer[time.Time] // before, workers may have called in vain; nil: never
}

// New returns a registry on the database.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer,
		config: config,
	}
	var flushed func(requests int, took time.Duration)
	if config.OnFlush != nil {
		flushed = func(requests int, took time.Duration) { config.OnFlush("heartbeat", requests, took) }
	}
	s.heartbeat = batch.New(batch.Config[Beat, BeatResult]{
		Flush: s.flushHeartbeat, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: flushed,
		Key:    func(b Beat) ([16]byte, bool) { return batch.TextKey(b.WorkerID), true },
		Weight: func(b Beat) int { return 1 + len(b.Jobs.IDs) },
	})
	return s
}

// Prepare learns which workers get no jobs. Call it once, before the node answers requests.
func (s *Store) Prepare(ctx context.Context) error {
	s.ListenAgain()
	return s.readQuiet(ctx)
}

// DeadAfter is the silence that means death.
func (s *Store) DeadAfter() time.Duration { return s.config.DeadAfter }
