// Package queueadmin owns what is done to queues as a whole: create, configure, pause, resume, drain, delete and purge, with their
// events. It must never decide about a single job: the statements of package queue do.
//
// Most changes are one statement on the row of the queue, with the event of the change. Triggers on the table notify all
// nodes, which read the row into their caches (package queueconfig) within a second. A pause needs no cache: the statement
// of a fetch reads the status itself. Drain and Delete do need all nodes to know, and wait for it (settle).
//
// Deletion is the only change in several steps. It is written into the row before anything else happens, so that any node
// can finish it (finisher.go).
package queueadmin

import (
	"context"
	"log/slog"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/follow"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
)

const (
	// portion bounds the jobs of one statement, and looked those that it may read to find them. Both bound how long a
	// statement holds row locks or reads.
	portion = 1000
	looked  = 10_000

	// fenceWait is how long a change waits for transactions that began before it held everywhere. Longer would have the
	// client wait for a stranger's transaction; docs/reference/queues.md, Status tells the bound.
	fenceWait = 2 * time.Second
)

// Config holds the settings of the store. Neither changes what the server does with jobs.
type Config struct {
	// ExtensionEvents writes events when a queue is created, configured or deleted.
	ExtensionEvents bool

	// Retention is shown as the retention of queues that set none. Zero: for ever.
	Retention Retention
}

// Retention is how long finished jobs are kept. It is that of package retention, for answers only.
type Retention struct{ Completed, Discarded, Cancelled time.Duration }

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Jobs    *queue.Store
	Queues  *queueconfig.Cache
	Logger  *slog.Logger
}

// Store changes queues. Use New. It has no state of queues; the cache belongs to package queueconfig.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	queues  *queueconfig.Cache
	logger  *slog.Logger
	config  Config

	settled  time.Duration // follow.Settled and a little more; only tests change it
	begunFor time.Duration // begunFor; only tests change it
}

// New returns a store.
func New(deps Deps, config Config) *Store {
	return &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, queues: deps.Queues, logger: deps.Logger, config: config,
		settled: follow.Settled + 250*time.Millisecond, begunFor: begunFor,
	}
}

// committed lets this node know of a change before the caller is answered; other nodes are notified by the change itself.
// If Refresh fails the change holds all the same; this node then learns of it like the others. Waiting fetches and calls
// are woken last, when the cache has the new settings.
func (s *Store) committed(ctx context.Context, name string, changes ...eventlog.Change) {
	if len(changes) > 0 {
		eventlog.Emit(ctx, s.commits, changes, func(all []eventlog.Change, c *eventlog.Change) []eventlog.Change { return append(all, *c) })
		s.commits.Committed()
	}
	if err := s.queues.Refresh(ctx); err != nil {
		s.queues.Changed() // the follower tries again
	}
	s.jobs.QueueChanged(name)
}

// changed logs what has happened to a queue, and returns its event if there is one. Without ExtensionEvents the statement
// has written no event, so none may be emitted.
func (s *Store) changed(ctx context.Context, eventType, message, name string) []eventlog.Change {
	s.logger.InfoContext(ctx, message, slog.String("category", "queue"), slog.Group("ojs", "queue", name))
	if !s.config.ExtensionEvents {
		return nil
	}
	return []eventlog.Change{{Type: eventType, Subject: name, Queue: name}}
}

// notFound is the 404 for a queue.
func notFound(name string) error { return spec.NotFound("queue", name) }

// roomFor refuses the configuration of one more queue than nodes keep in memory. The count is taken without a lock, so
// calls at the same time may exceed the bound by a few; nodes hold ten times as many.
func (s *Store) roomFor(ctx context.Context, name string) error {
	// It has its place already.
	if s.queues.Known(name) != nil {
		return nil
	}
	n, err := s.db.Q.QueueCountConfigured(ctx, name, queueconfig.MaxConfigured)
	if err != nil || n < queueconfig.MaxConfigured {
		return err
	}
	return spec.Unsupported("This server keeps the settings of at most 10000 queues; remove those of queues that are not used any more.",
		map[string]any{"limit": queueconfig.MaxConfigured})
}
