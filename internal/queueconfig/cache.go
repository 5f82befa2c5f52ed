package queueconfig

import (
	"bytes"
	"context"
	"log/slog"
	"slices"

	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// maxQueues bounds what a node holds. MaxConfigured is checked by who changes a queue, so only SQL can exceed it.
	// Queues behind it, by name, count as plain.
	maxQueues = 10 * MaxConfigured

	// MaxConfigured is how many queues may have a configuration or another status than active.
	MaxConfigured = 10_000
)

// Cache is what a node knows of the configuration of queues. It holds the queues with a configuration, or with another status than
// active, and Default; a look-up of any other queue is a miss in a map. Use NewCache, and run its NewFollower. The age of
// what it knows, and who waits for a read, are the matter of loop.Value: a change holds on every node within
// loop.Settled (docs/reference/queues.md, Configuration).
type Cache struct {
	*loop.Value[View]

	logger *slog.Logger
}

// CacheConfig says who is told of a new configuration, and how the cache learns of changes.
type CacheConfig struct {
	// Found is called for each queue of which something new was read; "": for all, because Default has changed. It runs in the goroutine
	// of the read, so it must neither block nor read the cache anew. nil: nobody is told.
	Found func(name string)

	// Listening is loop.ValueConfig.Listening.
	Listening func() bool
}

// NewCache returns a cache that has read nothing yet.
func NewCache(db *pg.DB, logger *slog.Logger, config CacheConfig) *Cache {
	c := &Cache{logger: logger}
	found := func(before, now *View) {
		for _, name := range now.changedSince(before) {
			config.Found(name)
		}
	}
	if config.Found == nil {
		found = nil
	}
	c.Value = loop.NewValue(db, loop.ValueConfig[View]{Read: c.read, Found: found, Listening: config.Listening})
	return c
}

// NewFollower returns the service that reads the cache again.
func NewFollower(archetype *baseservice.Archetype, c *Cache) *loop.Follower[View] {
	return loop.NewFollower(archetype, c.Value, "configurations of queues")
}

// View is loop.Value.View, with an error for clients. After an error nothing may be assumed about a queue: callers refuse
// the request rather than ignore a setting.
func (c *Cache) View(ctx context.Context) (*View, error) {
	view, err := c.Value.View(ctx)
	return view, pg.ClientError(err)
}

// Get gives those of the queues for which something is configured, or which are not active. nil: none of them. A plain
// server costs an atomic load and a test.
func (c *Cache) Get(ctx context.Context, names ...string) (found map[string]*Queue, err error) {
	view, err := c.View(ctx)
	// The names need not be looked up one by one on a plain server.
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

// InTx is loop.Value.InTx, with an error for clients. Callers in a transaction must use it: a read on another connection
// could wait for one that a transaction has.
func (c *Cache) InTx(ctx context.Context, q *dbsqlc.Queries) (*View, error) {
	view, err := c.Value.InTx(ctx, q)
	return view, pg.ClientError(err)
}

// Known is the queue as it was known last, for callers that cannot wait; nil: nothing is known to be configured for it. It
// may be stale, so it serves for hints and defaults, not for refusals.
func (c *Cache) Known(name string) *Queue {
	if view := c.Latest(); view != nil && !view.Plain() {
		return view.Queue(name)
	}
	return nil
}

// Retry is the policy that jobs of the queue inherit; see Config.Retry. It is job.Limits.QueueRetry. It never reads the database: jobs are
// decoded in transactions, too, where a read would need a second connection. The follower reads in time. A job may thus
// inherit a policy that was replaced up to a second ago.
func (c *Cache) Retry(name string) (job.RetryPolicy, bool) {
	c.Poll()
	if q := c.Known(name); q != nil {
		return q.Config.Retry()
	}
	return job.RetryPolicy{}, false
}

// Refresh reads what has changed, after a commit of this node. A read that has begun before the call is not enough, as its
// snapshot may be from before the commit.
func (c *Cache) Refresh(ctx context.Context) error {
	_, err := c.Read(ctx)
	return pg.ClientError(err)
}

// read compares the number of changes with that of the view, and reads the queues if it has moved. The number comes from
// one row, so a read costs little while nothing changes. The result is known itself then, by which loop.Value tells that
// there is nothing new.
func (c *Cache) read(ctx context.Context, q *dbsqlc.Queries, known *View) (*View, error) {
	if known != nil {
		version, err := q.QueueConfigVersion(ctx)
		if err != nil || version == known.version {
			return known, err
		}
	}
	// The number is read with the rows, so a change between the two statements is not missed.
	rows, err := q.QueueConfigList(ctx, maxQueues)
	if err != nil {
		return nil, err
	}
	return c.newView(ctx, known, rows), nil
}

// newView decodes the rows, but for queues that are as they were. A queue that is as it was keeps its *Queue, by which
// changedSince tells changes. If the configuration of Default has changed, all are decoded anew.
func (c *Cache) newView(ctx context.Context, old *View, rows []dbsqlc.QueueConfigListRow) *View {
	if old == nil {
		old = &View{}
	}
	next := &View{version: rows[0].Version, queues: make(map[string]*Queue)}
	var inherited []byte
	for i := range rows {
		// It must be known before the others are decoded over it, wherever it stands among the names.
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

// newQueue leaves out a field that cannot be read, which must not take the others with it.
func (c *Cache) newQueue(ctx context.Context, r *dbsqlc.QueueConfigListRow, inherited []byte) *Queue {
	// Decoded here once, and not by each request.
	config, err := Effective(r.Config, inherited)
	if err != nil {
		c.logger.ErrorContext(ctx, "configuration of a queue cannot be read; the field holds as if it were not set",
			slog.String("queue", r.Name), slog.Any("error", err))
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

// ownDiscarded is read from the own configuration, not from the effective one.
func ownDiscarded(own []byte) *Duration {
	if v := read(own)[keepDiscarded]; !jsonread.IsNull(v) {
		if d, problem := keep(v); problem == "" {
			return d
		}
	}
	return nil
}

// View is what a node knows of all queues at one time. It does not change. version is that of ojs.queue_version in the same
// snapshot.
type View struct {
	version   int64
	queues    map[string]*Queue // those with a row that says more than that they exist
	inherited *Queue            // of Default; nil: it has no configuration
}

// Queue is a queue by name; nil: it is active, and nothing is configured for it. A queue that only inherits gets a copy
// under its name, so it does not need an entry.
func (v *View) Queue(name string) *Queue {
	if q := v.queues[name]; q != nil {
		return q
	}
	if v.inherited == nil || name == Default {
		return nil
	}
	// A copy for each call: callers may keep it, and the one in the view must not change.
	q := *v.inherited
	q.Name, q.own, q.Discarded = name, nil, nil
	return &q
}

// Inherited is the stored configuration of Default; nil: none. It must not be changed.
func (v *View) Inherited() []byte {
	if v.inherited == nil {
		return nil
	}
	return v.inherited.own
}

// Plain reports whether Queue answers nil for every name. Default has an entry like a queue, so a configuration of Default
// makes it false.
func (v *View) Plain() bool { return len(v.queues) == 0 }

// Each calls f for the queues that have a configuration or a status of their own, Default included. In no order.
func (v *View) Each(f func(q *Queue)) {
	for _, q := range v.queues {
		f(q)
	}
}

// changedSince names the queues that differ from those of an older view; "" if Default does. nil for the first view. It
// compares pointers; newView keeps those of queues that have not changed.
func (v *View) changedSince(old *View) (names []string) {
	if old == nil {
		return nil
	}
	for name, q := range v.queues {
		if old.queues[name] != q {
			names = append(names, name)
		}
	}
	for name := range old.queues {
		if v.queues[name] == nil {
			names = append(names, name)
		}
	}
	// All queues inherit from it, also those that are not in the view.
	if slices.Contains(names, Default) {
		return []string{""}
	}
	return names
}

// same reports whether a queue is as it was, so that its configuration need not be decoded again. The inherited part is
// compared by the caller.
func (q *Queue) same(own []byte, status string, deleting bool) bool {
	return q != nil && q.Status == status && q.Deleting == deleting && bytes.Equal(q.own, own)
}
