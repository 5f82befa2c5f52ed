package queueconfig

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/rawjson"
)

const (
	// Settled is how long after its commit a change holds on every node.
	Settled = time.Second

	// lookAfter is the age of the latest look at which the watcher looks again, without a request waiting for it.
	lookAfter = Settled / 2

	// maxQueues bounds what a node holds. MaxConfigured is checked by who changes a queue, so only SQL can exceed it.
	maxQueues = 10 * MaxConfigured

	// MaxConfigured is how many queues may have a configuration or another status than active.
	MaxConfigured = 10_000
)

// Cache is what a node knows of the configuration of queues. It holds the queues with a configuration, or with another status than
// active, and Default; a look-up of any other queue is a miss in a map. It is read again when a notification tells of a change
// (Changed), and every second by a look at one row, but only while there are requests. Use NewCache.
type Cache struct {
	db     *pg.DB
	logger *slog.Logger

	view   atomic.Pointer[View]
	looked atomic.Int64 // since began, when the latest look began
	began  time.Time
	mu     sync.Mutex // one look at a time

	kick      chan struct{}
	stale     atomic.Bool
	listening func() bool
	onRead    func(name string)
}

// NewCache returns a cache that has read nothing yet.
func NewCache(db *pg.DB, logger *slog.Logger) *Cache {
	return &Cache{db: db, logger: logger, began: time.Now(), kick: make(chan struct{}, 1), listening: func() bool { return false }, onRead: func(string) {}}
}

// OnRead sets what is called for each queue of which a look has read something new, before any look follows; "": for all, because Default
// has changed. What waits because of the old settings goes on then: a notification comes too early for it. It must not block.
func (c *Cache) OnRead(f func(name string)) { c.onRead = f }

// OnListening sets how the cache learns whether notifications arrive: then no request waits for a look. Without it, a request
// looks itself if nobody has looked for Settled.
func (c *Cache) OnListening(f func() bool) { c.listening = f }

// View is what is known now; it is never older than Settled.
func (c *Cache) View(ctx context.Context) (*View, error) {
	view, age := c.view.Load(), time.Since(c.began)-time.Duration(c.looked.Load())
	switch {
	case view == nil || age > Settled && !c.listening():
		return c.look(ctx, c.db.Q, Settled)
	case age > lookAfter:
		c.wake()
	}
	return view, nil
}

// Get gives those of the queues for which something is configured, or which are not active. nil: none of them.
func (c *Cache) Get(ctx context.Context, names ...string) (found map[string]*Queue, err error) {
	view, err := c.View(ctx)
	if err != nil || view.Plain() {
		return nil, err
	}
	for _, name := range names {
		if q := view.Queue(name); q != nil {
			if found == nil {
				found = make(map[string]*Queue, len(names))
			}
			found[name] = q
		}
	}
	return found, nil
}

// InTx is what was read last, for callers in a transaction: a look would need a second connection, and all could be in transactions that
// wait for one. What was never read is read on the connection of q.
func (c *Cache) InTx(ctx context.Context, q *dbsqlc.Queries) (*View, error) {
	if view := c.view.Load(); view != nil {
		return view, nil
	}
	return c.look(ctx, q, Settled)
}

// Latest is what was read last; nil: nothing yet.
func (c *Cache) Latest() *View { return c.view.Load() }

// Known is the queue as it was known last, for callers that cannot wait; nil: nothing is known to be configured for it.
func (c *Cache) Known(name string) *Queue {
	if view := c.view.Load(); view != nil && !view.Plain() {
		return view.Queue(name)
	}
	return nil
}

// Retry is the policy that jobs of the queue inherit; see Config.Retry. It is job.Limits.QueueRetry. It never reads the database: jobs are
// decoded in transactions, too, where a look would need a second connection. The Watcher reads in time.
func (c *Cache) Retry(name string) (retry.Policy, bool) {
	if time.Since(c.began)-time.Duration(c.looked.Load()) > lookAfter {
		c.wake()
	}
	if q := c.Known(name); q != nil {
		return q.Config.Retry()
	}
	return retry.Policy{}, false
}

// Changed is called when a queue may have changed, and after a reset. It does not block.
func (c *Cache) Changed() {
	c.stale.Store(true)
	c.wake()
}

// Forget drops everything, after a reset of the database.
func (c *Cache) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Store(nil)
}

// Refresh reads what has changed, after a commit of this node.
func (c *Cache) Refresh(ctx context.Context) error {
	_, err := c.look(ctx, c.db.Q, 0)
	return err
}

func (c *Cache) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// look compares the number of changes with that of the view, and reads the queues if it has moved. A caller that finds a look
// younger than fresh when its turn has come needs none of its own.
func (c *Cache) look(ctx context.Context, q *dbsqlc.Queries, fresh time.Duration) (*View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, view := time.Since(c.began), c.view.Load()
	if view != nil && fresh > 0 && now-time.Duration(c.looked.Load()) < fresh {
		return view, nil
	}
	ctx, cancel := c.db.Bounded(ctx)
	defer cancel()
	if view != nil {
		version, err := q.QueueConfigVersion(ctx)
		if err != nil {
			return nil, pg.ClientError(err)
		}
		if version == view.version {
			c.looked.Store(int64(now))
			return view, nil
		}
	}
	rows, err := q.QueueConfigList(ctx, maxQueues)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	next := c.newView(ctx, view, rows)
	c.view.Store(next)
	c.looked.Store(int64(now))
	for _, name := range next.changedSince(view) {
		c.onRead(name)
	}
	return next, nil
}

// newView decodes the rows, but for queues that are as they were.
func (c *Cache) newView(ctx context.Context, old *View, rows []dbsqlc.QueueConfigListRow) *View {
	if old == nil {
		old = &View{}
	}
	next := &View{version: rows[0].Version, queues: make(map[string]*Queue)}
	var inherited []byte
	for i := range rows {
		if rows[i].Name == Default {
			inherited = rows[i].Config
		}
	}
	kept := old.inherited == nil && inherited == nil || old.inherited.same(inherited, Active, false)
	if inherited != nil {
		next.inherited = c.newQueue(ctx, &dbsqlc.QueueConfigListRow{Name: Default, Status: Active, Config: inherited}, nil)
	}
	for i := range rows {
		r := &rows[i]
		switch known := old.queues[r.Name]; {
		case r.Name == "":
		case kept && known.same(r.Config, r.Status, r.Deleting) && known.PausedAt.Equal(r.PausedAt.Time):
			next.queues[r.Name] = known
		case r.Name == Default:
			next.queues[r.Name] = c.newQueue(ctx, r, nil)
		default:
			next.queues[r.Name] = c.newQueue(ctx, r, inherited)
		}
	}
	return next
}

func (c *Cache) newQueue(ctx context.Context, r *dbsqlc.QueueConfigListRow, inherited []byte) *Queue {
	config, err := Effective(r.Config, inherited)
	if err != nil {
		c.logger.ErrorContext(ctx, "configuration of a queue cannot be read; the field holds as if it were not set", slog.String("queue", r.Name), slog.Any("error", err))
	}
	q := &Queue{Name: r.Name, Status: r.Status, Deleting: r.Deleting, Config: config, own: r.Config}
	if r.Name != Default {
		q.Discarded = ownDiscarded(r.Config)
	}
	if r.PausedAt.Valid {
		q.PausedAt = r.PausedAt.Time
	}
	return q
}

func ownDiscarded(own []byte) *Duration {
	if v := read(own)[keepDiscarded]; !rawjson.IsNull(v) {
		if d, problem := keep(v); problem == "" {
			return d
		}
	}
	return nil
}
