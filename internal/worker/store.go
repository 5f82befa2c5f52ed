// Package worker owns the registry of workers: heartbeats, directives of operators, and reaping (reap.go). It extends
// reservations itself (heartbeat.go); every other change of a job goes through package queue. It must never decide by the
// clock of this machine that a worker is dead.
//
// A worker exists for the server from its first heartbeat or registration until it deregisters, or an hour after its death.
// Whether it is dead is decided in SQL. A node keeps what it may forget in package worker/cache: which workers are quiet,
// and the calls that count as signs of life until they are written.
//
// Two rules keep a worker that comes back from its old jobs: an expired worker has a time of death, and jobs that it
// fetched before are not extended any more, and fail. Jobs that it fetches afterwards are its own.
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

// Config holds the settings of the registry. It has no defaults: a zero is taken as a zero. All nodes should have the same
// DeadAfter: the one with the shortest declares workers dead for all.
type Config struct {
	// DeadAfter is the silence after which a registered worker is dead.
	DeadAfter time.Duration

	// DefaultTimeout is the execution timeout of a job that sets none.
	DefaultTimeout time.Duration

	// HeartbeatEvents writes worker.heartbeat, one event per heartbeat call.
	HeartbeatEvents bool

	// JobHeartbeatInterval is the least time between two job.heartbeat events of a run. 0: one per extension.
	JobHeartbeatInterval time.Duration

	// TestDirectives lets meta.test_directive of a job choose the directive that its worker gets. For tests only.
	TestDirectives bool

	// OnFlush is called after each statement that callers share, with the operation, the number of requests and the time it
	// took. It must not block. May be nil.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the registry uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
}

// Store is the registry. Use New. It has no state of a worker; what nodes may forget is in the worker cache. listeningSince
// is written by ListenAgain at any time.
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

	listeningSince atomic.Pointer[time.Time] // before this time, workers may not have reached any node; nil: Prepare was not called
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
	// Key keeps two beats of one worker out of one statement; Weight bounds a flush by its jobs, as a beat may list
	// thousands. An error of one row splits the flush, so it fails one beat.
	s.heartbeat = batch.New(batch.Config[Beat, BeatResult]{
		Flush: s.flushHeartbeat, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: flushed,
		Key:    func(b Beat) ([16]byte, bool) { return batch.TextKey(b.WorkerID), true },
		Weight: func(b Beat) int { return 1 + len(b.Jobs.IDs) },
	})
	return s
}

// Prepare reads which workers are quiet. Call it once, before the node answers requests. Without it, a worker that was
// quiet would get jobs from a node that has just started.
func (s *Store) Prepare(ctx context.Context) error {
	s.ListenAgain()
	return s.readQuiet(ctx)
}
