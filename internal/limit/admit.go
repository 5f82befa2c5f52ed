package limit

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/service"
)

const (
	// maxKeys bounds the partitions of one statement. It locks them until its commit. More would let an enqueue of one key
	// wait behind the admission of all others.
	maxKeys = 200

	// maxRounds bounds the statements for a partition with more jobs to move than fit one. The Follower goes on. Callers
	// wait for the flush, so it must end although jobs keep coming.
	maxRounds = 20
)

// Admit lets jobs of the partitions be fetched, as many as may start. Concurrent callers share a transaction, which begins after the
// changes of all of them were committed. It goes on if ctx ends. When it returns nil, what could start then has its place
// and can be fetched. After an error some partitions may have been admitted; a repetition admits the rest, and never too
// many, as each call counts anew. Nodes may call it for the same keys at once: they take turns at the locks of the rows.
func (s *Store) Admit(ctx context.Context, keys []string) error {
	_, errs := s.admitting.DoMany(context.WithoutCancel(ctx), keys)
	return errors.Join(errs...)
}

// follow is called after commits that moved jobs of these partitions. If they cannot be looked at now, the Follower does
// it. It is the hook of queue.Store.OnLimitedJobs. The change that called it is committed, so an error is logged and not
// returned.
func (s *Store) follow(ctx context.Context, keys []string) {
	if err := s.Admit(ctx, keys); err != nil {
		s.logger.WarnContext(ctx, "jobs that wait for a rate limit were not looked at; trying again within seconds",
			slog.String("category", "error"), slog.Any("error", err))
		s.Wake()
	}
}

// flush admits jobs of all the partitions, and again of those that had more than one statement moves. The keys of all
// callers are asked for once each. limit_admit locks their rows in the order of the keys, so that two nodes cannot block
// each other. An error fails the flush, and the batcher halves it if the error may be that of one key.
func (s *Store) flush(ctx context.Context, keys []string) ([]struct{}, error) {
	left := slices.Compact(slices.Sorted(slices.Values(keys)))
	for round := 0; len(left) > 0 && round < maxRounds; round++ {
		rows, err := s.admit(ctx, left)
		if err != nil {
			return nil, err
		}
		// A new array, because the old one may be that of the parameter.
		left = left[:0:0]
		for _, r := range rows {
			if r.More {
				left = append(left, r.Key)
			}
		}
	}
	if len(left) > 0 {
		s.Wake()
	}
	return make([]struct{}, len(keys)), nil
}

// Fetches are woken after the commit, by the places that the statement has returned.
func (s *Store) admit(ctx context.Context, keys []string) (partitions []dbsqlc.LimitAdmitRow, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.LimitAdmitRow
	err = s.db.WithPartitions(ctx, func() (err error) {
		rows, err = s.db.Q.LimitAdmit(ctx, keys, s.commits.Node)
		return err
	})
	if err != nil {
		return nil, err
	}
	var places []queue.Place
	for _, r := range rows {
		if r.Queue != "" {
			places = append(places, queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.ReadySeq})
			continue
		}
		partitions = append(partitions, r)
		// The partition becomes due by time; the Follower sets its timer anew.
		if r.WaitUs >= 0 {
			signal(s.due)
		}
	}
	if len(places) > 0 {
		s.jobs.NotifyAvailable(places)
		s.commits.Committed()
	}
	return partitions, nil
}

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
