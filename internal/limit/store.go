package limit

import (
	"log/slog"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
)

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Jobs    *queue.Store
	Logger  *slog.Logger
}

// Store admits jobs and reads and changes partitions. Use New. It keeps no counts: all are in the database. due and left
// have room for one signal each.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	logger  *slog.Logger

	admitting *batch.Batcher[string, struct{}]
	due       chan struct{} // signalled when a partition may be due earlier than the Follower knows
	left      chan struct{} // signalled when an admission has failed
}

// New returns a store on the database. Package queue calls it when jobs with limit keys have moved.
func New(deps Deps) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, logger: deps.Logger,
		due: make(chan struct{}, 1), left: make(chan struct{}, 1),
	}
	// An error that may come from one key splits the flush; a deadlock repeats it.
	s.admitting = batch.New(batch.Config[string, struct{}]{
		Flush: s.flush, Max: maxKeys, Split: pg.IsDivisible, Retry: pg.IsTransient,
	})
	// The hooks are set before the node serves, and read without a lock.
	deps.Jobs.OnLimitedJobs(s.follow)
	deps.Jobs.OnLimitedStarts(s.started)
	return s
}

// started is called after claims: a start may have set a timer.
func (s *Store) started() { signal(s.due) }

// Wake lets the Follower look for changes that are left over, for example after an application has cancelled a job in SQL.
// It never blocks, and works before the Follower has started.
func (s *Store) Wake() { signal(s.left) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
