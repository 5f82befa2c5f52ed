// Package pool owns worker pools and the strategies by which a fetch chooses between its queues: which queues its workers may fetch, how
// many jobs they may run together, and statistics of what was started. It claims through package queue, one queue after the other; a
// fetch that names no pool and no strategy, while no pool is isolated, is handed on as it is. It must never change a job itself.
//
// This file reads what clients send, keeps what a node knows of pools and answers lists; fetch.go decides what a fetch claims. A limit of
// concurrency is kept in the database, over all nodes; strategies and starvation are counted per node, in memory, and begin anew with it.
//
// A claim knows nothing of pools, so a job is fetched through a pool only if its worker asks for that: isolation is kept by
// leaving queues out of the fetches of others.
package pool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Definition says what the workers of a pool may fetch (docs/reference/fairness.md, Pools). It is stored as JSON by these
// names, so a name must not change. Strategy is never empty after Decode. A weight that is absent counts as 1.
type Definition struct {
	Queues      []string         `json:"queues"`
	Concurrency int32            `json:"concurrency,omitempty"` // most active jobs; 0: no limit
	Strategy    string           `json:"strategy"`
	Weights     map[string]int64 `json:"weights,omitempty"`
	Isolated    bool             `json:"isolated"` // other fetches get nothing from its queues
	Starvation  Starvation       `json:"starvation_prevention"`
}

// Starvation says when a queue gets the next slot although the strategy would choose another one. The interval is kept as
// text for answers; interval is what it means, set by Decode and by stored.
type Starvation struct {
	Enabled  bool    `json:"enabled"`
	Interval string  `json:"rotation_interval"`  // as it was given
	Ratio    float64 `json:"min_dispatch_ratio"` // of the jobs started in an interval

	interval time.Duration
}

const (
	// maxConcurrency bounds what a fetch costs that finds a pool full: it counts its holds one by one (ojs.pool_reserve), so the bound is a
	// cost of each such fetch.
	maxConcurrency   = 10_000
	maxNameBytes     = 128
	defaultInterval  = "PT30S"
	defaultRatio     = 0.05
	shortestInterval = time.Second
	longestInterval  = time.Hour
)

// ValidName reports whether s can be the name of a pool: letters, digits, ., _ and -, at most 128 bytes.
func ValidName(s string) bool {
	return s != "" && len(s) <= maxNameBytes && jsonread.AllIn(s, jsonread.IsNameByte)
}

// Decode reads the body of a PUT. All problems of the body are reported at once.
func Decode(raw []byte) (*Definition, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "queues", "concurrency", "strategy", "weights", "isolated", "starvation_prevention")
	if err != nil {
		return nil, err
	}
	o.RefuseOthers("id", "name", "active_workers", "workers", "active_jobs", "created_at", "updated_at")
	d := &Definition{Isolated: o.Boolean("isolated")}
	d.readQueues(&o)
	if n, given := o.Integer("concurrency", 0, maxConcurrency, "an integer from 0, no limit, to 10000"); given {
		d.Concurrency = int32(n)
	}
	d.Strategy = cmp.Or(job.ReadStrategy(&o), job.StrategyRoundRobin)
	for name, weight := range job.ReadWeights(&o) {
		d.setWeight(name, weight)
	}
	d.Starvation.read(&o)
	return d, o.Err()
}

// setWeight takes a weight for a queue that the pool does not have; it counts for nothing.
func (d *Definition) setWeight(name string, weight int64) {
	if d.Weights == nil {
		d.Weights = map[string]int64{}
	}
	d.Weights[name] = weight
}

// readQueues reads an array of names, or an object of {"weight":n} by name. Names are checked as those of a fetch, and
// repetitions are left out.
func (d *Definition) readQueues(o *jsonread.Object) {
	v := o.Get("queues")
	switch {
	case v == nil:
		o.Refuse("queues", "a non-empty array of queue names, or an object such as {\"mail\":{\"weight\":70}}")
	case v[0] == '{':
		for literal, value := range jsonread.Members(v) {
			name := string(jsonread.Name(literal))
			d.Queues = append(d.Queues, name)
			weight := jsonread.Present(value)
			if weight != nil && weight[0] == '{' {
				weight = jsonread.Present(jsonread.Find(weight, "weight"))
			}
			if weight == nil {
				continue
			}
			n, ok := job.Weight(weight)
			if !ok {
				o.Refuse("queues", "an object with weights that are "+job.WeightForm)
			}
			d.setWeight(name, n)
		}
		d.Queues = job.CheckQueues(d.Queues, o.Problems())
	case v[0] == '[':
		texts, ok := jsonread.Texts(v)
		if !ok {
			o.Refuse("queues", "an array of queue names")
			return
		}
		d.Queues = job.CheckQueues(texts, o.Problems())
	default:
		o.Refuse("queues", "an array or an object")
	}
}

// read keeps the values even if it is not enabled, so that answers show the defaults.
func (s *Starvation) read(body *jsonread.Object) {
	s.Interval, s.Ratio = defaultInterval, defaultRatio
	o, _ := body.OpenMember("starvation_prevention", "an object", "enabled", "rotation_interval", "min_dispatch_ratio")
	o.RefuseOthers()
	s.Enabled = jsonread.Optional(&o, "enabled", "true or false", jsonread.Bool)
	if o.Duration("rotation_interval", "a duration from PT1S to PT1H", shortestInterval, longestInterval) > 0 {
		s.Interval, _ = jsonread.Text(o.Get("rotation_interval"))
	}
	if o.Get("min_dispatch_ratio") != nil {
		s.Ratio = jsonread.Optional(&o, "min_dispatch_ratio", "a number from 0 to 1", func(v jsontext.Value) (ratio float64, ok bool) {
			err := json.Unmarshal(v, &ratio)
			return ratio, err == nil && ratio >= 0 && ratio <= 1
		})
	}
	s.interval, _ = jsonread.ParseDuration(s.Interval)
}

// stored reads what Put has written. An error makes the pool unknown to this node (see Store.list), so a later release
// must be able to read what an earlier one has stored.
func stored(definition []byte) (*Definition, error) {
	d := &Definition{}
	if err := json.Unmarshal(definition, d); err != nil {
		return nil, err
	}
	var err error
	d.Starvation.interval, err = jsonread.ParseDuration(d.Starvation.Interval)
	return d, err
}

// WeightsOfQueues are the weights of the queues, 1 where none is set.
func (d *Definition) WeightsOfQueues() map[string]int64 {
	all := make(map[string]int64, len(d.Queues))
	for _, q := range d.Queues {
		all[q] = max(1, d.Weights[q])
	}
	return all
}

// restrict gives the queues of a fetch that the pool has, in the order of the pool; all of the pool if the fetch names
// none. The result may be the list of the pool itself and must not be changed. Order and duplicates of the fetch have no
// effect.
func (d *Definition) restrict(queues []string) []string {
	if len(queues) == 0 {
		return d.Queues
	}
	return slices.DeleteFunc(slices.Clone(d.Queues), func(q string) bool { return !slices.Contains(queues, q) })
}

// MaxPools is how many pools there may be. All of them are kept in memory by every node, and read as a whole when one
// changes.
const MaxPools = 1000

// settled is how long after its commit a change holds on every node. docs/reference/fairness.md, Pools promises it. Smaller
// would cost a read more often on nodes without LISTEN.
const settled = time.Second

// Pool is a pool as it is stored. It does not change once it is in a view; a change of the pool makes a new view.
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

	// Listening tells whether notifications arrive. Without them a fetch reads the pools again once a second. nil: they do not.
	Listening func() bool
}

// Store owns the pools, and fetches for their workers. Use New. view is replaced as a whole and may be stale as known says.
// changes counts the notifications. reading is held during a read of the pools, so that a burst of fetches makes one
// statement. turns are this node's alone.
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
	if d.Listening == nil {
		d.Listening = func() bool { return false }
	}
	return &Store{
		db: d.DB, jobs: d.Jobs, logger: d.Logger, began: time.Now(), listening: d.Listening,
		workers: workerPools{of: map[string]workerPool{}}, turns: turns{of: map[string]*rotation{}},
		freed: freed{broadcast: broadcast{c: make(chan struct{})}}, draw: rand.Int64N,
		now: time.Now, changed: broadcast{c: make(chan struct{})},
	}
}

// view is what a node knows of pools. changes is read before the statement: a notification that arrives during it makes the
// view stale at once, although it may have been included.
type view struct {
	pools    map[string]*Pool
	isolated map[string]bool // queues of isolated pools: only workers of such a pool may fetch them
	readAt   time.Duration   // since Store.began
	changes  int64           // Store.changes before it was read
}

// open gives those of the queues that no pool has isolated. The queues are not changed, because they may be those of a pool.
func (v *view) open(queues []string) []string {
	if len(v.isolated) == 0 {
		return queues
	}
	return slices.DeleteFunc(slices.Clone(queues), func(q string) bool { return v.isolated[q] })
}

// Changed is called when pools may have changed on any node. It does not block. The counter goes first: a fetch that is
// woken by the channel must not find the old view fresh.
func (s *Store) Changed() {
	s.changes.Add(1)
	s.changed.wake()
}

// Forget drops everything, after a reset of the database. Parked fetches keep what they know until their next round.
func (s *Store) Forget() {
	s.view.Store(nil)
	s.workers.mu.Lock()
	clear(s.workers.of)
	s.workers.mu.Unlock()
	s.turns.mu.Lock()
	clear(s.turns.of)
	s.turns.mu.Unlock()
}

// known is the view; it is at most as old as settled. While notifications arrive it costs no statement.
func (s *Store) known(ctx context.Context) (*view, error) {
	if v := s.view.Load(); v != nil && v.changes == s.changes.Load() && (s.listening() || time.Since(s.began)-v.readAt < settled) {
		return v, nil
	}
	return s.read(ctx)
}

// read takes readAt and asked both on the monotonic clock of the node. asked is from before the wait for the lock: a view
// that was read after it is as new as one that this caller would read.
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

// list leaves out and logs a pool that cannot be read, so that one bad row does not stop all fetches.
func (s *Store) list(ctx context.Context) ([]Pool, error) {
	rows, err := s.db.Q.PoolList(ctx, MaxPools)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	all := make([]Pool, 0, len(rows))
	for _, r := range rows {
		d, err := stored(r.Definition)
		if err != nil {
			s.logger.ErrorContext(ctx, "definition of a pool cannot be read; its workers fetch as if there were no pool",
				slog.String("pool", r.Name), slog.Any("error", err))
			continue
		}
		all = append(all, Pool{r.Name, *d, r.CreatedAt.Time, r.UpdatedAt.Time})
	}
	return all, nil
}

// Put creates or replaces a pool. It is idempotent. The change is committed before the answer is read, so after an error
// the pool may have changed. Two creations at the same time may exceed MaxPools by one.
func (s *Store) Put(ctx context.Context, name string, d *Definition) (p *Shown, created bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// It is compared with nothing, so its form may change as long as stored reads it.
	definition, err := json.Marshal(d)
	if err != nil {
		panic("pool: " + err.Error()) // names and numbers, which always have a text
	}
	// The statement notifies all nodes at its commit.
	rows, err := s.db.Q.PoolPut(ctx, dbsqlc.PoolPutParams{
		Name: name, Definition: definition, Concurrency: pgtype.Int4{Int32: d.Concurrency, Valid: d.Concurrency > 0}, MaxPools: MaxPools,
	})
	if err != nil {
		return nil, false, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, false, spec.NewError(ojs.ErrValidation, "There are 1000 pools already; delete one that is not needed.",
			map[string]any{"field": "pools", "max_pools": MaxPools})
	}
	s.Changed()
	// A higher concurrency makes room.
	s.freed.wake()
	shown, err := s.shown(ctx, []Pool{{name, *d, rows[0].CreatedAt.Time, rows[0].UpdatedAt.Time}})
	if err != nil {
		return nil, false, err
	}
	return &shown[0], rows[0].Created, nil
}

// Delete deletes a pool. Its jobs go on. Its holds go with it, so its jobs are not counted any more.
func (s *Store) Delete(ctx context.Context, name string) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.PoolDelete(ctx, name)
	if err != nil {
		return pg.ClientError(err)
	}
	if len(rows) == 0 {
		return spec.NotFound("pool", name)
	}
	s.Changed()
	return nil
}

// Shown is a pool with what its workers do. Both figures are read without a common snapshot. Those by queues are as of the
// published events.
type Shown struct {
	Pool
	Workers    int64 // that live, and have named the pool in a registration or heartbeat
	ActiveJobs int64 // of its workers if it has a concurrency, else of its queues
}

// List returns all pools by name. It reads the database and not the view, so it shows a change at once.
func (s *Store) List(ctx context.Context) ([]Shown, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return s.shown(ctx, all)
}

// Get returns one pool. It reads all pools: there are few, and calls for one are rare.
func (s *Store) Get(ctx context.Context, name string) (*Shown, error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(p Shown) bool { return p.Name == name })
	if at < 0 {
		return nil, spec.NotFound("pool", name)
	}
	return &all[at], nil
}

// shown counts pools with a concurrency by their holds, others by the counts of their queues: no other record tells through
// which pool a job was fetched.
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
	// At most the 10 000 workers that called last are counted.
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
		// The statement also returns available jobs, which leastLoaded needs.
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

// QueueStats is what was started from a queue in the last 60 s. The part of the minute before is estimated as its share, so
// Dispatched and AvgWaitMS are rounded.
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

// Stats returns what was started in the last 60 s, as of the published events. docs/reference/fairness.md, Statistics.
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
	// Names are sorted, so that answers do not depend on the order of a map.
	weights := map[string]int64{}
	for _, name := range slices.Sorted(maps.Keys(v.pools)) {
		for q, w := range v.pools[name].Weights {
			if weights[q] == 0 {
				weights[q] = w
			}
		}
	}
	sum := 0.0
	for _, r := range rows {
		sum += r.Started
	}
	queues = make([]QueueStats, len(rows))
	for i, r := range rows {
		q := QueueStats{Name: r.Name, Weight: max(1, weights[r.Name]), Dispatched: int64(math.Round(r.Started)), Active: max(0, r.Active),
			Starved: r.Available > 0 && r.Started == 0}
		if r.Started > 0 {
			q.Ratio, q.AvgWaitMS = r.Started/sum, int64(math.Round(r.WaitMs/r.Started))
		}
		queues[i], total = q, total+q.Dispatched
	}
	return queues, total, nil
}
