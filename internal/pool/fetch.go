package pool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Fetch claims jobs for a worker by the rules of its pool, or by the strategy that the fetch names. Any other fetch is that of package
// queue, without the queues of isolated pools.
func (s *Store) Fetch(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	v, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	if len(v.pools) == 0 && f.Pool == "" && f.Strategy == "" {
		return s.jobs.Fetch(ctx, f)
	}
	p, err := s.poolOf(ctx, v, f)
	if err != nil {
		return nil, err
	}
	c := choice{key: "queues " + join(f.Queues), strategy: f.Strategy, weights: f.Weights}
	switch {
	case p != nil:
		f.Queues = p.restrict(f.Queues)
		c = choice{key: "pool " + p.Name, strategy: p.Strategy, weights: p.WeightsOfQueues(), starvation: p.Starvation}
	case len(v.isolated) > 0:
		f.Queues = slices.DeleteFunc(slices.Clone(f.Queues), func(q string) bool { return v.isolated[q] })
	}
	if f.Tenant != "" {
		c.key += " tenant " + f.Tenant // what it finds in a queue says nothing about the jobs of others
	}
	switch {
	case len(f.Queues) == 0:
		pause(ctx, f.Wait)
		return nil, nil
	case p != nil && p.Concurrency > 0:
		return s.jobs.FetchBy(ctx, f, s.by(func(ctx context.Context) ([]*job.Record, error) { return s.reserve(ctx, p.Name, f, c) }))
	case c.plain():
		return s.jobs.Fetch(ctx, f)
	}
	return s.jobs.FetchBy(ctx, f, s.by(func(ctx context.Context) ([]*job.Record, error) { return s.claim(ctx, f, c) }))
}

// poolOf is the pool of a fetch, by its own word or that of the worker; nil: none. A pool that the worker has named and that does not
// exist is none.
func (s *Store) poolOf(ctx context.Context, v *view, f job.Fetch) (*Pool, error) {
	if f.Pool != "" {
		if v.pools[f.Pool] == nil {
			return nil, ojs.ErrNotFound("pool", f.Pool)
		}
		return v.pools[f.Pool], nil
	}
	if f.WorkerID == "" || len(v.pools) == 0 {
		return nil, nil
	}
	name, err := s.workers.get(ctx, s, f.WorkerID)
	return v.pools[name], err
}

// pause keeps a worker that can get nothing from asking all the time.
func pause(ctx context.Context, wait time.Duration) {
	if wait <= 0 {
		return
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
	case <-timeout.C:
	}
}

// reserve claims within the concurrency of a pool. The room is reserved before the claim, in a transaction of its own, so whatever
// else bounds the claim knows nothing of pools.
func (s *Store) reserve(ctx context.Context, pool string, f job.Fetch, c choice) ([]*job.Record, error) {
	if s.jobs.Idle(f) {
		return nil, nil
	}
	id := job.NewID()
	room, err := s.room(ctx, pool, id, f.Count)
	if err != nil || room == 0 {
		s.freed.await(err == nil)
		return nil, err
	}
	f.Count = room
	jobs, err := s.claim(ctx, f, c)
	if held := s.hold(ctx, pool, id, jobs); held != nil {
		s.jobs.HandBack(ctx, jobs) // nobody would count them
		return nil, errors.Join(held, err)
	}
	return jobs, err
}

func (s *Store) room(ctx context.Context, pool string, id [16]byte, want int) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	room, err := s.db.Q.PoolReserve(ctx, dbsqlc.PoolReserveParams{Pool: pool, Reservation: id, Want: int32(want)})
	return int(room), pg.ClientError(err)
}

// hold replaces a reservation by the claimed jobs. It does so for a worker that has gone, too, because the jobs have been claimed.
func (s *Store) hold(ctx context.Context, pool string, id [16]byte, jobs []*job.Record) error {
	p := dbsqlc.PoolHoldParams{Pool: pool, Reservation: id, Ids: make([][16]byte, len(jobs)), StartedAt: make([]pgtype.Timestamptz, len(jobs))}
	for i, j := range jobs {
		p.Ids[i], p.StartedAt[i] = j.ID, j.StartedAt
	}
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	return pg.ClientError(pg.Retry(func() error { return s.db.Q.PoolHold(ctx, p) }))
}

// freed wakes parked fetches of pools without room when jobs have ended somewhere.
type freed struct {
	waiting atomic.Bool // a fetch has found no room since the latest wake

	mu   sync.Mutex
	c    chan struct{}
	last time.Time
}

// wakeGap is the least time between two wakes: each lets every parked fetch of pools look for room.
const wakeGap = 20 * time.Millisecond

func (f *freed) await(noRoom bool) {
	if noRoom {
		f.waiting.Store(true)
	}
}

func (f *freed) wait() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.c
}

// wake costs nothing while no fetch has found a pool full.
func (f *freed) wake() {
	if !f.waiting.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if gap := wakeGap - time.Since(f.last); gap > 0 {
		if f.waiting.Swap(false) {
			time.AfterFunc(gap, func() { f.waiting.Store(true); f.wake() })
		}
		return
	}
	f.waiting.Store(false)
	f.last = time.Now()
	close(f.c)
	f.c = make(chan struct{})
}

// Freed is called when jobs may have ended: after commits of this node, and when those of others are published.
func (s *Store) Freed() { s.freed.wake() }

// workerPools are the pools that workers have named, for some seconds.
type workerPools struct {
	mu sync.Mutex
	of map[string]workerPool
}

type workerPool struct {
	name  string // "": none
	until time.Time
}

const (
	// knownFor is how long the pool that a worker has named is remembered.
	knownFor = 2 * time.Second

	// maxWorkers bounds the workers, whose ids clients choose.
	maxWorkers = 10_000
)

func (w *workerPools) get(ctx context.Context, s *Store, worker string) (string, error) {
	w.mu.Lock()
	known := w.of[worker]
	w.mu.Unlock()
	if known.until.After(time.Now()) {
		return known.name, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.PoolOfWorker(ctx, worker)
	if err != nil {
		return "", pg.ClientError(err)
	}
	known = workerPool{until: time.Now().Add(knownFor)}
	if len(rows) > 0 {
		known.name = rows[0]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.of) >= maxWorkers {
		clear(w.of)
	}
	w.of[worker] = known
	return known.name, nil
}

func (w *workerPools) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.of)
}
