// Package worker owns the registry of workers: heartbeats, directives of operators, and reaping (reap.go). It extends
// reservations itself (heartbeat.go); every other change of a job goes through package queue. It must never decide by the
// clock of this machine that a worker is dead.
//
// A worker exists for the server from its first heartbeat or registration until it deregisters, or an hour after its death.
// Whether it is dead is decided in SQL. A node keeps what it may forget in queue.Workers: which workers are quiet,
// and the calls that count as signs of life until they are written.
//
// Two rules keep a worker that comes back from its old jobs: an expired worker has a time of death, and jobs that it
// fetched before are not extended any more, and fail. Jobs that it fetches afterwards are its own.
package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// Deps are the parts of a node that the registry uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *loop.Timer
	Workers *queue.Workers
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer

	// OnFlush is called after each statement that callers share, with the operation, the number of requests and the time it
	// took. It must not block. May be nil.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Store is the registry. Use New. It has no state of a worker; what nodes may forget is in the worker cache.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *loop.Timer
	workers *queue.Workers
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	config  config.Config

	heartbeat *batch.Batcher[Beat, BeatResult]
}

// New returns a registry on the database. All nodes should have the same Workers.DeadAfter: the one with the shortest declares workers dead
// for all.
func New(deps Deps, c config.Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, jobs: deps.Jobs,
		logger: deps.Logger, tracer: deps.Tracer,
		config: c,
	}
	var flushed func(requests int, took time.Duration)
	if deps.OnFlush != nil {
		flushed = func(requests int, took time.Duration) { deps.OnFlush("heartbeat", requests, took) }
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
	return s.readQuiet(ctx)
}

// Record is a worker as it is stored; the migration describes its columns. Directive, StaleAt, DeadAt
// and ReapAt are NULL for "none". LastBeatAt is that of the latest heartbeat, LastSeenAt that of the latest call of any
// kind, written with a delay (heartbeat.go). StaleAt is set while the worker counts as dead; DeadAt is the latest death and
// guards what is done about it; ReapAt is when another node may finish that, NULL when it is finished. Stopped says that
// the worker reported terminate without jobs, so its end needs no event. FetchQueues and FetchCount are what it fetched
// with, shown if it reports no queues and no concurrency. ActiveJobIds, Queues, FetchQueues and Facts are JSON.
type Record = dbsqlc.Worker

// Totals counts workers by state. A stale worker is in Stale only.
type Totals struct {
	Total     int64
	Running   int64
	Quiet     int64
	Terminate int64
	Stale     int64
}

// ReservedJob is a job that is reserved for a worker. LeaseUntil is by the clock of the database.
type ReservedJob = dbsqlc.JobListByWorkerRow

// beatChange has the types of the statement, which has compared the old row with the new one under its lock.
func beatChange(changes []eventlog.Change, r *dbsqlc.WorkerHeartbeatRow) []eventlog.Change {
	for _, eventType := range r.EventTypes {
		changes = append(changes, eventlog.Change{Type: eventType, Subject: r.ID, WorkerID: r.ID, At: r.LastBeatAt.Time})
	}
	return changes
}

// expireChange leaves out a worker that had stopped before: no event was written for it.
func expireChange(changes []eventlog.Change, r *dbsqlc.WorkerExpireRow) []eventlog.Change {
	if r.Stopped {
		return changes
	}
	return append(changes, eventlog.Change{Type: ojs.EventWorkerStopped, Subject: r.ID, WorkerID: r.ID, At: r.DeadAt.Time,
		Reason: job.WorkerDeath})
}

// deregisterChange is for the event that was written by the statement that deleted the row.
func deregisterChange(changes []eventlog.Change, r *dbsqlc.WorkerDeregisterRow) []eventlog.Change {
	return append(changes, eventlog.Change{Type: ojs.EventWorkerStopped, Subject: r.ID, WorkerID: r.ID, At: r.Now.Time})
}

// heartbeatChange has at most one event per JobHeartbeatInterval and run.
func heartbeatChange(changes []eventlog.Change, r *dbsqlc.JobHeartbeatRow) []eventlog.Change {
	if !r.Emitted {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: ojs.EventJobHeartbeat, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID, At: r.Now.Time,
	})
}
