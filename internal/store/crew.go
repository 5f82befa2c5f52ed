package store

import (
	"context"
	"slices"
	"sync"
	"time"
)

// crew is what this node knows of workers without asking the database: who gets no jobs, who gave signs of life that are
// not written yet, and what each of them fetches.
type crew struct {
	mu      sync.Mutex
	quiet   map[string]bool
	learnt  map[string]bool // while quiet is read again: what commits of this node said meanwhile; else nil
	changed chan struct{}   // closed when somebody becomes quiet
	seen    map[string]time.Time
	habits  map[string]habit
}

// habit is what a worker asks for when it fetches.
type habit struct {
	queues []string
	count  int
}

// What a node remembers of ids that clients choose is bounded. A sign of life too many is lost until the worker's next.
const (
	maxSeen        = 100_000
	maxHabits      = 10_000
	maxHabitQueues = 50
)

func (c *crew) init() {
	c.quiet = map[string]bool{}
	c.changed = make(chan struct{})
	c.seen = map[string]time.Time{}
	c.habits = map[string]habit{}
}

func (c *crew) isQuiet(worker string) bool {
	if worker == "" {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quiet[worker]
}

// changes is closed when somebody becomes quiet after the call; nil for a fetch without worker, which never does.
func (c *crew) changes(worker string) <-chan struct{} {
	if worker == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// set notes what a commit of this node says about a worker.
func (c *crew) set(worker string, quiet bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.learnt != nil {
		c.learnt[worker] = quiet
	}
	if c.apply(worker, quiet) {
		c.announce()
	}
}

// apply reports whether the worker became quiet.
func (c *crew) apply(worker string, quiet bool) bool {
	was := c.quiet[worker]
	if quiet {
		c.quiet[worker] = true
	} else {
		delete(c.quiet, worker)
	}
	return quiet && !was
}

func (c *crew) announce() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *crew) learning() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learnt = map[string]bool{}
}

// learned replaces what was known, but for what this node wrote since the database was asked.
func (c *crew) learned(ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.learnt == nil {
		return // forgotten meanwhile
	}
	was := c.quiet
	c.quiet = make(map[string]bool, len(ids))
	for _, id := range ids {
		c.quiet[id] = true
	}
	for id, quiet := range c.learnt {
		c.apply(id, quiet)
	}
	c.learnt = nil
	for id := range c.quiet {
		if !was[id] {
			c.announce()
			return
		}
	}
}

func (c *crew) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.quiet)
	clear(c.seen)
	clear(c.habits)
	c.learnt = nil
}

// note remembers a sign of life and reports whether it is the first since they were written.
func (c *crew) note(worker string) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) >= maxSeen {
		return false
	}
	first = len(c.seen) == 0
	c.seen[worker] = time.Now()
	return first
}

func (c *crew) takeSeen() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = map[string]time.Time{}
	return seen
}

// putBack keeps signs of life that could not be written for the next try, unless there are later ones.
func (c *crew) putBack(seen map[string]time.Time) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = len(c.seen) == 0
	for id, at := range seen {
		if _, later := c.seen[id]; !later && len(c.seen) < maxSeen {
			c.seen[id] = at
		}
	}
	return first
}

// fetches notes what a worker asks for.
func (c *crew) fetches(f Fetch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, known := c.habits[f.WorkerID]
	if !known && len(c.habits) >= maxHabits {
		clear(c.habits) // they come again with the next fetches
	}
	h.count = max(h.count, f.Count)
	for _, q := range f.Queues {
		if len(h.queues) < maxHabitQueues && !slices.Contains(h.queues, q) {
			h.queues = append(slices.Clip(h.queues), q) // a reader may have the old one
		}
	}
	c.habits[f.WorkerID] = h
}

// habit is nil and 0 if the worker has fetched nothing here.
func (c *crew) habit(worker string) (queues []string, count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.habits[worker]
	return h.queues, h.count
}

// OnSeen sets what is called when there are signs of life to be written. It must not block.
func (s *Store) OnSeen(f func()) { s.hooks.seen = f }

// seen notes that a worker has called. Nothing is written now, and nothing ever for a worker that is not registered.
func (s *Store) seen(worker string) {
	if worker != "" && s.crew.note(worker) && s.hooks.seen != nil {
		s.hooks.seen()
	}
}

func (s *Store) fetching(f Fetch) {
	if f.WorkerID != "" {
		s.crew.fetches(f)
		s.seen(f.WorkerID)
	}
}

// SeenInterval is how often WriteSeen should be called while there is something to write: 5 s, and never near the silence that
// means death.
func (s *Store) SeenInterval() time.Duration { return min(5*time.Second, s.config.WorkerDeadAfter/4) }

// WriteSeen writes the signs of life that this node has collected; without any it issues no statement.
func (s *Store) WriteSeen(ctx context.Context) error {
	seen := s.crew.takeSeen()
	if len(seen) == 0 {
		return nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	ids, ages := make([]string, 0, len(seen)), make([]int64, 0, len(seen))
	for id, at := range seen {
		ids, ages = append(ids, id), append(ages, time.Since(at).Milliseconds())
	}
	err := s.q.WorkerTouch(ctx, ids, ages)
	if err != nil && s.crew.putBack(seen) && s.hooks.seen != nil {
		s.hooks.seen()
	}
	return WireError(err)
}

// LearnQuiet reads which workers get no jobs.
func (s *Store) LearnQuiet(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	s.crew.learning()
	ids, err := s.q.WorkerListQuiet(ctx)
	if err != nil {
		return err
	}
	s.crew.learned(ids)
	return nil
}
