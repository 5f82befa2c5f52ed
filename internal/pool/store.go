package pool

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// MaxPools is how many pools there may be.
const MaxPools = 1000

// settled is how long after its commit a change holds on every node.
const settled = time.Second

// Pool is a pool as it is stored.
type Pool struct {
	Name string
	Definition
	CreatedAt, UpdatedAt time.Time
}

// Deps are the parts of a node that the store uses. All are required.
type Deps struct {
	DB     *pg.DB
	Jobs   *queue.Store
	Logger *slog.Logger
}

// Store owns the pools, and fetches for their workers. Use New.
type Store struct {
	db     *pg.DB
	jobs   *queue.Store
	logger *slog.Logger

	view      atomic.Pointer[view]
	changes   atomic.Int64 // counted by Changed
	reading   sync.Mutex   // one read of the pools at a time
	began     time.Time
	listening func() bool

	workers workerPools
	turns   turns
	changed broadcast // at Changed
	freed   freed
	draw    func(n int64) int64 // a random number below n; only tests change it
	now     func() time.Time    // to measure how long a queue waits; only tests change it
}

// New returns a store that has read nothing yet.
func New(d Deps) *Store {
	return &Store{
		db: d.DB, jobs: d.Jobs, logger: d.Logger, began: time.Now(), listening: func() bool { return false },
		workers: workerPools{of: map[string]workerPool{}}, turns: turns{of: map[string]*rotation{}}, freed: freed{broadcast: broadcast{c: make(chan struct{})}},
		draw: rand.Int64N, now: time.Now, changed: broadcast{c: make(chan struct{})},
	}
}

// view is what a node knows of pools.
type view struct {
	pools    map[string]*Pool
	isolated map[string]bool // queues that only the workers of their pools may fetch
	readAt   time.Duration   // since Store.began
	changes  int64           // Store.changes before it was read
}

// OnListening sets how the store learns whether notifications arrive. Without them a fetch reads the pools again once a second.
func (s *Store) OnListening(f func() bool) { s.listening = f }

// Changed is called when pools may have changed on any node. It does not block.
func (s *Store) Changed() {
	s.changes.Add(1)
	s.changed.wake()
}

// Forget drops everything, after a reset of the database.
func (s *Store) Forget() {
	s.view.Store(nil)
	s.workers.forget()
	s.turns.forget()
}

// known is the view; it is at most as old as settled.
func (s *Store) known(ctx context.Context) (*view, error) {
	if v := s.view.Load(); v != nil && v.changes == s.changes.Load() && (s.listening() || time.Since(s.began)-v.readAt < settled) {
		return v, nil
	}
	return s.read(ctx)
}

func (s *Store) read(ctx context.Context) (*view, error) {
	asked := time.Since(s.began)
	s.reading.Lock()
	defer s.reading.Unlock()
	next := &view{pools: map[string]*Pool{}, isolated: map[string]bool{}, readAt: time.Since(s.began), changes: s.changes.Load()}
	if v := s.view.Load(); v != nil && v.readAt > asked && v.changes == next.changes {
		return v, nil // another caller has read them meanwhile
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		p := &all[i]
		next.pools[p.Name] = p
		for _, q := range p.Queues {
			if p.Isolated {
				next.isolated[q] = true
			}
		}
	}
	s.view.Store(next)
	return next, nil
}

func (s *Store) list(ctx context.Context) ([]Pool, error) {
	rows, err := s.db.Q.PoolList(ctx, MaxPools)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	all := make([]Pool, 0, len(rows))
	for _, r := range rows {
		d, err := stored(r.Definition)
		if err != nil {
			s.logger.ErrorContext(ctx, "definition of a pool cannot be read; its workers fetch as if there were no pool", slog.String("pool", r.Name), slog.Any("error", err))
			continue
		}
		all = append(all, Pool{r.Name, *d, r.CreatedAt.Time, r.UpdatedAt.Time})
	}
	return all, nil
}

// Put creates or replaces a pool.
func (s *Store) Put(ctx context.Context, name string, d *Definition) (p *Shown, created bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.PoolPut(ctx, dbsqlc.PoolPutParams{
		Name: name, Definition: d.encode(), Concurrency: pgtype.Int4{Int32: d.Concurrency, Valid: d.Concurrency > 0}, MaxPools: MaxPools,
	})
	if err != nil {
		return nil, false, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, false, ojs.NewError(ojs.KindValidation, "There are 1000 pools already; delete one that is not needed.", map[string]any{"field": "pools", "max_pools": MaxPools})
	}
	s.Changed()
	s.freed.wake()
	shown, err := s.shown(ctx, []Pool{{name, *d, rows[0].CreatedAt.Time, rows[0].UpdatedAt.Time}})
	if err != nil {
		return nil, false, err
	}
	return &shown[0], rows[0].Created, nil
}

// Delete deletes a pool. Its jobs go on.
func (s *Store) Delete(ctx context.Context, name string) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.PoolDelete(ctx, name)
	if err != nil {
		return pg.ClientError(err)
	}
	if len(rows) == 0 {
		return ojs.ErrNotFound("pool", name)
	}
	s.Changed()
	return nil
}

// Shown is a pool with what its workers do.
type Shown struct {
	Pool
	Workers    int64 // that live, and have named the pool in a registration or heartbeat
	ActiveJobs int64 // of its workers if it has a concurrency, else of its queues
}

// List returns all pools by name.
func (s *Store) List(ctx context.Context) ([]Shown, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return s.shown(ctx, all)
}

// Get returns one pool.
func (s *Store) Get(ctx context.Context, name string) (*Shown, error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(p Shown) bool { return p.Name == name })
	if at < 0 {
		return nil, ojs.ErrNotFound("pool", name)
	}
	return &all[at], nil
}

func (s *Store) shown(ctx context.Context, all []Pool) ([]Shown, error) {
	shown := make([]Shown, len(all))
	if len(all) == 0 {
		return shown, nil
	}
	var limited, queues []string
	for i, p := range all {
		shown[i].Pool = p
		if p.Concurrency > 0 {
			limited = append(limited, p.Name)
		} else {
			queues = append(queues, p.Queues...)
		}
	}
	workers, err := s.db.Q.PoolWorkers(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	held, err := s.db.Q.PoolActive(ctx, limited)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	counts, err := s.db.Q.PoolQueueCounts(ctx, queues)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	live, active, inQueue := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for _, r := range workers {
		live[r.Pool] = r.Workers
	}
	for _, r := range held {
		active[r.Pool] = r.Active
	}
	for _, r := range counts {
		if r.State == string(ojs.StateActive) {
			inQueue[r.Queue] = r.Count
		}
	}
	for i := range shown {
		p := &shown[i]
		p.Workers, p.ActiveJobs = live[p.Name], active[p.Name]
		if p.Concurrency == 0 {
			for _, q := range p.Queues {
				p.ActiveJobs += inQueue[q]
			}
		}
	}
	return shown, nil
}

// QueueStats is what was started from a queue in the last 60 s.
type QueueStats struct {
	Name       string
	Weight     int64 // in the first pool, by name, that gives it one; else 1
	Dispatched int64
	Ratio      float64 // of all that was started
	AvgWaitMS  int64
	Active     int64
	Starved    bool // jobs wait, and none was started
}

// maxStats bounds the queues of Stats, by name.
const maxStats = 1000

// Stats returns what was started in the last 60 s, as of the published events.
func (s *Store) Stats(ctx context.Context) (queues []QueueStats, total int64, err error) {
	v, err := s.known(ctx)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.SchedulingStats(ctx, maxStats)
	if err != nil {
		return nil, 0, fmt.Errorf("read scheduling statistics: %w", pg.ClientError(err))
	}
	weights := v.weights()
	sum := 0.0
	for _, r := range rows {
		sum += r.Started
	}
	queues = make([]QueueStats, len(rows))
	for i, r := range rows {
		q := QueueStats{Name: r.Name, Weight: max(1, weights[r.Name]), Dispatched: int64(r.Started + 0.5), Active: max(0, r.Active), Starved: r.Available > 0 && r.Started == 0}
		if r.Started > 0 {
			q.Ratio, q.AvgWaitMS = r.Started/sum, int64(r.WaitMs/r.Started)
		}
		queues[i], total = q, total+q.Dispatched
	}
	return queues, total, nil
}

// weights are those that pools give to queues.
func (v *view) weights() map[string]int64 {
	all := map[string]int64{}
	names := make([]string, 0, len(v.pools))
	for name := range v.pools {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for q, w := range v.pools[name].Weights {
			if all[q] == 0 {
				all[q] = w
			}
		}
	}
	return all
}
