// Package progress is what workers report about a job while it runs: how far it has come, and the checkpoint from which a
// later attempt can go on.
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

// Config holds what the store decides by.
type Config struct {
	// DefaultTimeout is the execution timeout of a job that has none.
	DefaultTimeout time.Duration

	// OnFlush gets, for each statement that callers share, the operation, how many requests shared it and what it took.
	// It must not block. nil: nobody.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the store works with.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Jobs    *queue.Store
}

// Store keeps progress and checkpoints. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	workers *cache.Workers
	jobs    *queue.Store
	config  Config

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

// flushed is nil if nobody wants to know.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.config.OnFlush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.config.OnFlush(operation, requests, took) }
}

// weight keeps a statement below a few MiB: a checkpoint may have one.
func weight(bytes int) int { return 1 + bytes/4096 }
