package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

const (
	// lookInterval is how often a Follower looks for changes that no node has followed, while jobs move; leftAge is how long a node
	// has had for it. Together they bound what a client waits for the next step after a crash of the node that took its
	// ack: about two seconds. A smaller age would have the Follower compete with the nodes that are at it.
	lookInterval = time.Second
	leftAge      = time.Second

	// lookCost is the least time between two looks, as a multiple of what the latest one took: with an old snapshot in the cluster the
	// dead rows of workflow_pending stay, and a look walks them. A look thus takes at most a twentieth of the time of one
	// connection.
	lookCost = 20

	// checkInterval is how often running workflows without a live job are looked for, and checkRoots how many are looked
	// at. It is a net for defects, not a part of the normal way.
	checkInterval = time.Minute
	checkRoots    = 200

	// leftRoots bounds the roots of one look; more are taken by the next one.
	leftRoots = 1000
)

// Follower lets workflows follow changes of jobs that are left over, because the node that made them stopped before its workflow
// had followed, or because an application made them in SQL. Every node runs one. On a server on which nothing moves it
// reads nothing. All nodes look at the same rows. That costs a look of each and no more: a root that another node has
// advanced has no pending rows, and its turn ends after one statement.
//
// moved and running are written by any goroutine through Notify and cleared by the loop before it reads the database,
// never after: a change that arrives during the read is then looked for again. after belongs to the loop.
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

// Notify reports that jobs moved, on this node or on another one. It runs after every commit of the node, so it writes only
// if the value changes: a store to a shared cache line per commit costs the other processors a miss.
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
	loop.Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

// loop is one goroutine, so looks and checks never overlap on a node. A signal on left is taken once; what it stands for is
// read from the database.
func (f *Follower) loop(ctx context.Context) {
	f.store.Wake()
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
		// Somebody knows that something is left, so its age does not matter, nor does the rest. A change that another node
		// is just about to follow is followed by whichever comes first.
		case <-f.store.left:
			age = 0
		case <-look.C:
			if !f.moved.Load() || time.Now().Before(rest) {
				continue
			}
		}
		began := time.Now()
		f.moved.Store(false) // first; see Follower
		again, err := f.store.FollowLeft(ctx, age)
		if again || err != nil {
			f.moved.Store(true)
		}
		if err != nil && ctx.Err() == nil {
			f.Logger.WarnContext(ctx, "changes of workflow jobs were not looked for; trying again", slog.String("category", "error"),
				slog.Any("error", err))
		}
		rest = time.Now().Add(lookCost * time.Since(began))
	}
}

// FollowLeft lets trees follow whose changes are older than age, and goes on with interrupted cancels. again: there are
// younger ones. Roots are advanced one after the other, each in its own transactions; one that fails does not keep the
// others from it, and the errors are joined. Changes younger than age are left to the node that made them.
func (s *Store) FollowLeft(ctx context.Context, age time.Duration) (again bool, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkflowListLeft(bounded, age.Seconds(), leftRoots)
	if err != nil {
		return false, err
	}
	var failed error
	for _, r := range rows {
		if !r.Old {
			again = true
			continue
		}
		done := true
		if r.Cancelling {
			done, err = s.resumeCancel(ctx, r.RootID)
		} else {
			err = s.Advance(ctx, r.RootID)
		}
		again = again || !done
		if err == nil {
			continue
		}
		failed = errors.Join(failed, fmt.Errorf("workflow %s: %w", spec.FormatID(r.RootID), err))
		if ctx.Err() != nil || pg.IsUnavailable(err) {
			break // the others would meet it, too
		}
	}
	return again || failed != nil || len(rows) == leftRoots, failed
}

// resumeCancel cancels active jobs if that was stored with the cancel.
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

// check goes through the roots a page per interval, and begins again after the last one. It stops while no root runs and no
// job moves.
func (f *Follower) check(ctx context.Context) {
	// It is set again if something runs, or a job moves meanwhile.
	f.running.Store(false)
	c, err := f.store.Check(ctx, f.after)
	if c.Running > 0 || c.More || err != nil {
		f.running.Store(true)
	}
	if err != nil && ctx.Err() == nil {
		f.Logger.WarnContext(ctx, "running workflows were not checked; trying again", slog.String("category", "error"),
			slog.Any("error", err))
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
// jobs. There should be none. A root that cannot be repaired does not keep the others from it; the errors are joined.
func (s *Store) Check(ctx context.Context, after [16]byte) (c Checked, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkflowListStuck(bounded, after, checkRoots)
	if err != nil {
		return c, err
	}
	c.Running, c.More = len(rows), len(rows) == checkRoots
	var failed error
	for _, r := range rows {
		c.Last = r.ID
		if !r.Stuck.Bool {
			continue
		}
		c.Stuck++
		s.logger.ErrorContext(ctx, "a running workflow has no job that could move it; reading what became of its jobs",
			slog.String("category", "error"),
			slog.Group("ojs", "workflow_id", spec.FormatID(r.ID)))
		// The missing rows are reconstructed from the jobs. If two nodes repair a root at once, a job may get two rows; the second one
		// finds the step in that state already and changes nothing.
		repairing, cancel := s.db.Bounded(ctx)
		_, err := s.db.Q.WorkflowPendingRepair(repairing, r.ID)
		cancel()
		if err == nil {
			err = s.Advance(ctx, r.ID)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("workflow %s: %w", spec.FormatID(r.ID), err))
		}
	}
	return c, failed
}

// pruneRoots bounds the roots of one statement of Prune. The loop goes on until a page is not full, so it bounds a
// statement, not a call.
const pruneRoots = 100

// Prune deletes the workflows that ended longer than keep ago, a tree per transaction, and returns how many trees these
// were. The retention of a node calls it. Two nodes may run it at once; both then count a tree that one of them has
// deleted. After an error the trees before stay deleted and the rest is found again. keep is measured from the end of the
// root, by the clock of the database.
func (s *Store) Prune(ctx context.Context, keep time.Duration) (deleted int64, err error) {
	for {
		// The clock of the database decides, so nodes agree on what is old.
		bounded, cancel := s.db.Bounded(ctx)
		roots, err := s.db.Q.WorkflowListEnded(bounded, pg.Interval(keep), pruneRoots)
		cancel()
		if err != nil {
			return deleted, err
		}
		for _, root := range roots {
			if err := s.delete(ctx, root); err != nil {
				return deleted, err
			}
			deleted++
		}
		if len(roots) < pruneRoots {
			return deleted, nil
		}
	}
}

// delete takes the lock, which keeps an advance, for example of a manual retry, from writing steps of a tree that is being deleted. Steps
// go before workflows, in portions, so that no statement exceeds its time; all are one transaction, so no reader finds half a tree. Jobs
// stay: they have a retention of their own.
func (s *Store) delete(ctx context.Context, root [16]byte) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	return s.db.InTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if _, err := q.WorkflowLock(ctx, root); err != nil {
			return err
		}
		for more := true; more; {
			places, err := q.WorkflowStepListPlace(ctx, root, portion)
			if err != nil {
				return err
			}
			// Less than a portion is left if there is no place at its end; the last round then deletes all that is left.
			upto := dbsqlc.WorkflowStepDeleteParams{RootID: root, Flow: math.MaxInt32, Index: math.MaxInt32}
			if more = len(places) > 0; more {
				upto.Flow, upto.Index = places[0].Flow, places[0].Index
			}
			if err := q.WorkflowStepDelete(ctx, upto); err != nil {
				return err
			}
		}
		for n := int64(portion); n == portion; {
			var err error
			if n, err = q.WorkflowDelete(ctx, root, portion); err != nil {
				return err
			}
		}
		return q.WorkflowStartDelete(ctx, root)
	})
}
