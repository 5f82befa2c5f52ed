// Package queueadmin owns what is done to queues as a whole: create, configure, pause, resume, drain, delete and purge, with their
// events. It must never decide about a single job: the statements of package queue do.
package queueadmin

import (
	"context"
	"log/slog"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// portion bounds the jobs of one statement, and looked those that it may read to find them.
	portion = 1000
	looked  = 10_000

	// fenceWait is how long a change waits for transactions that began before it held everywhere.
	fenceWait = 2 * time.Second
)

// Config holds the settings of the store.
type Config struct {
	// ExtensionEvents writes events when a queue is created, configured or deleted.
	ExtensionEvents bool

	// Retention is shown as the retention of queues that set none. Zero: for ever.
	Retention Retention
}

// Retention is how long finished jobs are kept.
type Retention struct{ Completed, Discarded, Cancelled time.Duration }

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Jobs    *queue.Store
	Queues  *queueconfig.Cache
	Logger  *slog.Logger
}

// Store changes queues. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	queues  *queueconfig.Cache
	logger  *slog.Logger
	config  Config

	settled  time.Duration // queueconfig.Settled and a little more; only tests change it
	begunFor time.Duration // begunFor; only tests change it
}

// New returns a store.
func New(deps Deps, config Config) *Store {
	return &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, queues: deps.Queues, logger: deps.Logger, config: config,
		settled: queueconfig.Settled + 250*time.Millisecond, begunFor: begunFor,
	}
}

// committed lets this node know of a change before the caller is answered; other nodes are notified by the change itself.
func (s *Store) committed(ctx context.Context, name string, changes ...eventlog.Change) {
	if len(changes) > 0 {
		eventlog.Emit(ctx, s.commits, changes, func(all []eventlog.Change, c *eventlog.Change) []eventlog.Change { return append(all, *c) })
		s.commits.Committed()
	}
	if err := s.queues.Refresh(ctx); err != nil {
		s.queues.Changed() // the watcher tries again
	}
	s.jobs.QueueChanged(name)
}

// changed logs what has happened to a queue, and returns its event if there is one.
func (s *Store) changed(ctx context.Context, eventType, message, name string) []eventlog.Change {
	s.logger.InfoContext(ctx, message, slog.String("category", "queue"), slog.Group("ojs", "queue", name))
	if !s.config.ExtensionEvents {
		return nil
	}
	return []eventlog.Change{{Type: eventType, Subject: name, Queue: name}}
}

// notFound is the 404 for a queue.
func notFound(name string) error { return ojs.ErrNotFound("queue", name) }

// roomFor refuses the configuration of one more queue than nodes keep in memory.
func (s *Store) roomFor(ctx context.Context, name string) error {
	if s.queues.Known(name) != nil {
		return nil
	}
	n, err := s.db.Q.QueueCountConfigured(ctx, name, queueconfig.MaxConfigured)
	if err != nil || n < queueconfig.MaxConfigured {
		return err
	}
	return ojs.ErrUnsupported("This server keeps the settings of at most 10000 queues; remove those of queues that are not used any more.",
		map[string]any{"limit": queueconfig.MaxConfigured})
}
