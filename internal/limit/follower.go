package limit

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/service"
)

const (
	// lookInterval is how often a Follower looks for partitions that are due, while jobs move or one is known to become due. Timers of
	// this node are met exactly. It bounds how long jobs wait for room that a node left behind when it stopped.
	lookInterval = time.Second

	// lookCost is the least time between two looks, as a multiple of what the latest one took if that was more than lookCheap: with an
	// old snapshot in the cluster the dead rows of limit_pending stay, and a look walks them.
	lookCost  = 20
	lookCheap = 10 * time.Millisecond

	// A full list is followed by another look at once.
	dueRows = 1000
)

// Follower lets jobs be fetched when time has made room for them, and after changes that are left over, because the node that made
// them stopped, or because an application made them in SQL. Every node runs one. On a server on which nothing moves it
// reads nothing. All nodes look. Two that admit one partition at once take turns, and the second one finds nothing to do.
//
// moved is cleared before a look reads the database, not after: a change during the look is looked for again.
type Follower struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
	moved atomic.Bool // jobs have moved since the latest look
}

// NewFollower returns a follower for the partitions of the store.
func NewFollower(archetype *baseservice.Archetype, store *Store) *Follower {
	return baseservice.Init(archetype, &Follower{store: store})
}

// Notify reports that jobs moved, on this node or on another one. It runs after every commit, so it writes only if the
// value changes.
func (f *Follower) Notify() {
	if !f.moved.Load() {
		f.moved.Store(true)
	}
}

// Start runs the loop until stopped. It looks at once: no node may have run for long.
func (f *Follower) Start(ctx context.Context) error {
	service.Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

// The timer due is set to the time that the database has told, so a rate limit is met to the millisecond on nodes that know
// of it; the tick is for what a notification did not tell.
func (f *Follower) loop(ctx context.Context) {
	f.store.Wake()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	due := time.NewTimer(lookInterval)
	defer due.Stop()
	waiting := false // a partition is known to become due
	var rest time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.store.left:
		case <-f.store.due:
		case <-due.C:
		case <-tick.C:
			if !waiting && !f.moved.Load() {
				continue
			}
		}
		// A signal that came meanwhile is not lost: the look that follows covers it.
		if pause := time.Until(rest); pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		next, cost := f.look(ctx)
		if waiting = next >= 0; waiting {
			due.Reset(next)
		}
		rest = time.Time{}
		if cost > lookCheap {
			rest = time.Now().Add(min(lookCost*cost, lookInterval))
		}
	}
}

// look admits jobs of the partitions that are due. It returns how long until the next one is, below 0 if none is known, and what it
// took to find out. After an error it is repeated after lookInterval.
func (f *Follower) look(ctx context.Context) (next, cost time.Duration) {
	f.moved.Store(false)
	next, cost, err := f.store.admitDue(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.Logger.WarnContext(ctx, "partitions of rate limits were not looked at; trying again", slog.String("category", "error"), slog.Any("error", err))
		}
		return lookInterval, 0
	}
	return next, cost
}

// AdmitDue admits jobs of the partitions that are due, and returns how long until the next one is; below 0: none is known.
// Tests call it; nodes run the loop.
func (s *Store) AdmitDue(ctx context.Context) (next time.Duration, err error) {
	next, _, err = s.admitDue(ctx)
	return next, err
}

// cost is that of the list alone, not that of the admissions: those are work, not looking.
func (s *Store) admitDue(ctx context.Context) (next, cost time.Duration, err error) {
	began := time.Now()
	keys, err := s.listDue(ctx)
	cost = time.Since(began)
	if err != nil {
		return 0, 0, err
	}
	full := len(keys) == dueRows
	// A partition has a row for each reason to look at it.
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > 0 {
		if err := s.Admit(ctx, keys); err != nil {
			return 0, 0, err
		}
	}
	if full {
		return 0, 0, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.LimitNextDue(ctx)
	if err == nil {
		// Package queue need not look for blocked jobs in fetches while none waits.
		s.jobs.SetLimitsWaiting(row.Waiting)
	}
	return time.Duration(row.WaitUs) * time.Microsecond, cost, err
}

func (s *Store) listDue(ctx context.Context) ([]string, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.db.Q.LimitListDue(ctx, dueRows)
}
