// Package queueadmin owns what is done to queues as a whole: create, configure, pause, resume, drain, delete and purge, with their
// events, the figures of queues, tenants and the deployment, and the deletion of ended jobs and workflows that were kept for long enough
// (retention.go). It must never decide about a single job: the statements of package queue do.
//
// Most changes are one statement on the row of the queue, with the event of the change. Triggers on the table notify all
// nodes, which read the row into their caches (package queueconfig) within a second. A pause needs no cache: the statement
// of a fetch reads the status itself. Drain and Delete do need all nodes to know, and wait for it (settle).
//
// Deletion is the only change in several steps. It is written into the row before anything else happens, so that any node
// can finish it (delete.go).
package queueadmin

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/loop"
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
	config  config.Config

	settled  time.Duration // loop.Settled and a little more; only tests change it
	begunFor time.Duration // begunFor; only tests change it
}

// New returns a store.
func New(deps Deps, c config.Config) *Store {
	return &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, queues: deps.Queues, logger: deps.Logger, config: c,
		settled: loop.Settled + 250*time.Millisecond, begunFor: begunFor,
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
		s.logger.WarnContext(ctx, "configuration of queues not read after a change; trying again", slog.String("category", "error"),
			slog.Group("ojs", "queue", name), slog.Any("error", err))
		s.queues.Changed() // for the follower
	}
	s.jobs.QueueChanged(name)
}

// changed logs what has happened to a queue, and returns its event if there is one. Without ExtensionEvents the statement
// has written no event, so none may be emitted.
func (s *Store) changed(ctx context.Context, eventType, message, name string) []eventlog.Change {
	s.logger.InfoContext(ctx, message, slog.String("category", "queue"), slog.Group("ojs", "queue", name))
	if !s.config.Events.ExtensionTypes {
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

// Detail is a queue as it is stored. Config is the stored object, which Own and Config show in the form for clients.
type Detail struct {
	Name                 string
	Status               string
	PausedAt             time.Time // zero: not paused
	Config               []byte    // its own configuration; nil: none
	CreatedAt, UpdatedAt time.Time
	Deleting             bool
}

// newDetail has a zero time for NULL.
func newDetail(r dbsqlc.Queue) *Detail {
	return &Detail{
		Name: r.Name, Status: r.Status, PausedAt: r.PausedAt.Time, Config: r.Config,
		CreatedAt: r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time,
		Deleting: r.Deletion != nil,
	}
}

// Get reads a queue. It reads the row and not the cache, so it shows a change at once.
func (s *Store) Get(ctx context.Context, name string) (*Detail, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.QueueGet(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, notFound(name)
	}
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return newDetail(row), nil
}

// Figures are the counts of a queue, and what happened in it since midnight. The day begins at midnight UTC. The counts of
// today lag behind by the time of a publication, those of Stats do not.
type Figures struct {
	queue.Stats
	CompletedToday, FailedToday int64
}

// Figures reads the figures of a queue.
func (s *Store) Figures(ctx context.Context, name string) (Figures, error) {
	// An unknown queue has zeros; callers ask Get before.
	stats, err := s.jobs.QueueStats(ctx, name)
	if err != nil {
		return Figures{}, err
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	today, err := s.db.Q.QueueGetToday(ctx, name)
	return Figures{stats, today.Completed, today.Failed}, pg.ClientError(err)
}

// maxTotal bounds the number of queues that is counted. docs/reference/queues.md, Endpoints.
const maxTotal = 10_000

// List is a page of queues by name.
type List struct {
	Queues []dbsqlc.QueueListPageRow
	Total  int64 // up to 10 000
	More   bool
}

// List reads the queues behind a name. The statement returns at least one row, for the total. Default is left out: it is no
// queue.
func (s *Store) List(ctx context.Context, after string, offset, limit int) (List, error) {
	ctx, cancel, err := s.db.Reading(ctx)
	if err != nil {
		return List{}, pg.ClientError(err)
	}
	defer cancel()
	rows, err := s.db.Q.QueueListPage(ctx, dbsqlc.QueueListPageParams{After: after, SkipRows: int32(offset), MaxRows: int32(limit) + 1,
		MaxTotal: maxTotal})
	if err != nil {
		return List{}, pg.ClientError(err)
	}
	list := List{Queues: rows, Total: rows[0].Total, More: len(rows) > limit}
	if list.More {
		list.Queues = rows[:limit]
	}
	// The row of an empty page.
	if rows[0].Name == "" {
		list.Queues = nil
	}
	return list, nil
}

// Config is the configuration of a queue as answers show it. A field that this release cannot read is left out and logged.
func (s *Store) Config(ctx context.Context, own []byte) ([]byte, error) {
	view, err := s.queues.View(ctx)
	if err != nil {
		return nil, err
	}
	effective, err := queueconfig.Effective(own, view.Inherited())
	if err != nil {
		s.logger.ErrorContext(ctx, "configuration of a queue cannot be read whole", slog.Any("error", err))
	}
	r, kept := effective.Retention, s.config.Retention
	return queueconfig.Show(own, keptFor(r.Completed, kept.Completed), keptFor(r.Discarded, kept.Discarded),
		keptFor(r.Cancelled, kept.Completed)), nil
}

// Own is the configuration that was set for the queue, without what it inherits.
func (d *Detail) Own() []byte { return queueconfig.Show(d.Config, "", "", "") }

// keptFor shows whole days as such, because operators set them so.
func keptFor(set *queueconfig.Duration, standard time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case set != nil:
		return set.Text
	case standard == 0:
		return ""
	case standard%day == 0:
		return "P" + strconv.Itoa(int(standard/day)) + "D"
	}
	return jsonread.FormatDuration(standard)
}

// StoreServerSettings stores the settings by which ojs.enqueue goes. Nearly always they are stored already: then nothing is written, which
// a hot standby would refuse. A node calls it at its start. With nodes of different settings the one that starts last decides for SQL; HTTP
// and gRPC calls keep the settings of their node.
func (s *Store) StoreServerSettings(ctx context.Context) error {
	tenancy, maxJobBytes := TenantMode(s.config.Server.Tenancy) != TenantsOff, int64(s.config.Jobs.MaxJobBytes)
	stored, err := s.db.Q.ServerSettingGet(ctx)
	if err != nil || stored.Tenancy == tenancy && stored.MaxJobBytes == maxJobBytes {
		return err
	}
	return s.db.Q.ServerSettingStore(ctx, tenancy, maxJobBytes)
}
