// Package progress owns what workers report about a running job: its progress, and the checkpoint from which a later attempt
// can continue. A report also extends the reservation, like a heartbeat. The package must never change the state of a job.
package progress

import (
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/worker/cache"
)

// Config holds the settings of the store. It has no defaults: a zero is taken as a zero.
// The settings must be those of package queue, or reports and claims compute different ends of a run.
type Config struct {
	// DefaultTimeout is the execution timeout of a job that sets none.
	DefaultTimeout time.Duration

	// OnFlush is called after each statement that callers share, with the operation, the number of requests and the time it
	// took. It must not block. May be nil.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Jobs    *queue.Store
}

// Store keeps progress and checkpoints. Use New.
// It keeps nothing in memory but calls that wait for a flush.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	workers *cache.Workers
	jobs    *queue.Store
	config  Config

	// Two batchers, because the statements are different. A report and a save of one job at the same time wait for each other's
	// rows at most: the one that finds the row locked is tried again.
	progress   *batch.Batcher[job.ProgressReport, *dbsqlc.JobProgressRow]
	checkpoint *batch.Batcher[job.CheckpointSave, *dbsqlc.JobCheckpointRow]
}

// New returns a store on the database.
func New(deps Deps, config Config) *Store {
	s := &Store{db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, jobs: deps.Jobs, config: config}
	s.progress = batch.New(batch.Config[job.ProgressReport, *dbsqlc.JobProgressRow]{
		Flush: s.flushProgress, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.flushed("progress"),
		Key:    func(r job.ProgressReport) ([16]byte, bool) { return r.JobID, true },
		Weight: func(r job.ProgressReport) int { return weight(len(r.Data) + len(r.Checkpoint)) },
	})
	s.checkpoint = batch.New(batch.Config[job.CheckpointSave, *dbsqlc.JobCheckpointRow]{
		Flush: s.flushCheckpoint, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.flushed("checkpoint"),
		Key:    func(save job.CheckpointSave) ([16]byte, bool) { return save.JobID, true },
		Weight: func(save job.CheckpointSave) int { return weight(len(save.Stored)) },
	})
	return s
}

// flushed is OnFlush for one operation, or nil.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.config.OnFlush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.config.OnFlush(operation, requests, took) }
}

// weight keeps the size of a statement below a few MiB; a single checkpoint may have 1 MiB.
// A flush weighs up to 1 000 (batch.Config.Max), so its checkpoints have 4 MiB together.
func weight(bytes int) int { return 1 + bytes/4096 }
