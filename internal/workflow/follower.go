package workflow

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/ojs"
)

const (
	// lookInterval is how often a Follower looks for changes that no node has followed, while jobs move; leftAge is how long a node
	// has had for it.
	lookInterval = time.Second
	leftAge      = time.Second

	// lookCost is the least time between two looks, as a multiple of what the latest one took: with an old snapshot in the cluster the
	// dead rows of workflow_pending stay, and a look walks them.
	lookCost = 20

	// checkInterval is how often running workflows without a live job are looked for, and checkRoots how many are looked at.
	checkInterval = time.Minute
	checkRoots    = 200

	leftRoots = 1000
)

// Follower lets workflows follow changes of jobs that are left over, because the node that made them stopped before its workflow
// had followed, or because an application made them in SQL. Every node runs one. On a server on which nothing moves it reads nothing.
type Follower struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store   *Store
	moved   atomic.Bool // jobs have moved since the latest look
	running atomic.Bool // jobs have moved since the latest check, or it has seen a running workflow
	after   [16]byte    // the latest root of the check
}

// NewFollower returns a follower for the workflows of the store.
func NewFollower(archetype *baseservice.Archetype, store *Store) *Follower {
	return baseservice.Init(archetype, &Follower{store: store})
}

// Notify reports that jobs moved, on this node or on another one.
func (f *Follower) Notify() {
	if !f.moved.Load() {
		f.moved.Store(true)
	}
	if !f.running.Load() {
		f.running.Store(true)
	}
}

// Start runs the loop until stopped. It looks at once: no node may have run for long.
func (f *Follower) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := f.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	f.store.Wake()
	go func() {
		started()
		defer stopped()
		f.loop(ctx)
	}()
	return nil
}

func (f *Follower) loop(ctx context.Context) {
	look, check := time.NewTicker(lookInterval), time.NewTicker(checkInterval)
	defer look.Stop()
	defer check.Stop()
	var rest time.Time // no look before
	for {
		age := leftAge
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			if f.running.Load() {
				f.check(ctx)
			}
			continue
		case <-f.store.left:
			age = 0
		case <-look.C:
			if !f.moved.Load() || time.Now().Before(rest) {
				continue
			}
		}
		began := time.Now()
		f.look(ctx, age)
		rest = time.Now().Add(lookCost * time.Since(began))
	}
}

// look lets the trees follow whose changes are older than age. It looks again if there are younger ones, or an error.
func (f *Follower) look(ctx context.Context, age time.Duration) {
	f.moved.Store(false)
	again, err := f.store.FollowLeft(ctx, age)
	if again || err != nil {
		f.moved.Store(true)
	}
	if err != nil && ctx.Err() == nil {
		f.Logger.WarnContext(ctx, "changes of workflow jobs were not looked for; trying again", slog.String("category", "error"), slog.Any("error", err))
	}
}

// FollowLeft lets trees follow whose changes are older than age, and goes on with interrupted cancels. again: there are younger ones.
func (s *Store) FollowLeft(ctx context.Context, age time.Duration) (again bool, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkflowListLeft(bounded, age.Seconds(), leftRoots)
	if err != nil {
		return false, err
	}
	for _, r := range rows {
		if !r.Old {
			again = true
			continue
		}
		if r.Cancelling {
			done, err := s.resumeCancel(ctx, r.RootID)
			if err != nil {
				return true, err
			}
			again = again || !done
		} else if err := s.Advance(ctx, r.RootID); err != nil {
			return true, err
		}
	}
	return again || len(rows) == leftRoots, nil
}

func (s *Store) resumeCancel(ctx context.Context, root [16]byte) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	rows, err := s.db.Q.WorkflowGet(ctx, root)
	if err != nil || len(rows) == 0 {
		return true, err
	}
	_, done, err = s.cancelJobs(ctx, root, rows[0].Workflow.Forced)
	return done, err
}

func (f *Follower) check(ctx context.Context) {
	f.running.Store(false)
	c, err := f.store.Check(ctx, f.after)
	if c.Running > 0 || c.More || err != nil {
		f.running.Store(true)
	}
	if err != nil && ctx.Err() == nil {
		f.Logger.WarnContext(ctx, "running workflows were not checked; trying again", slog.String("category", "error"), slog.Any("error", err))
	}
	f.after = [16]byte{}
	if c.More {
		f.after = c.Last
	}
}

// Checked is the outcome of a check.
type Checked struct {
	Running int      // roots that were looked at
	Stuck   int      // of them, those that no job would have moved
	Last    [16]byte // the last of them
	More    bool     // there may be roots behind it
}

// Check looks at running roots behind one for those that none of their jobs will move any more, and lets them follow what became of the
// jobs. There should be none.
func (s *Store) Check(ctx context.Context, after [16]byte) (c Checked, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkflowListStuck(bounded, after, checkRoots)
	if err != nil {
		return c, err
	}
	c.Running, c.More = len(rows), len(rows) == checkRoots
	for _, r := range rows {
		c.Last = r.ID
		if !r.Stuck.Bool {
			continue
		}
		c.Stuck++
		s.logger.ErrorContext(ctx, "a running workflow has no job that could move it; reading what became of its jobs", slog.String("category", "error"),
			slog.Group("ojs", "workflow_id", ojs.FormatID(r.ID)))
		if err := s.repair(ctx, r.ID); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (s *Store) repair(ctx context.Context, root [16]byte) error {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	if _, err := s.db.Q.WorkflowPendingRepair(bounded, root); err != nil {
		return err
	}
	return s.Advance(ctx, root)
}
