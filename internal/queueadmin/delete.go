package queueadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// What the deletion of a queue does with the jobs that wait in it.
const (
	Reject  = "reject" // it is refused if there are unfinished jobs
	Discard = "discard"
	Move    = "move"
)

// Deletion is a request to delete a queue. Callers have checked Strategy, and that Target is the name of a queue.
type Deletion struct {
	Queue    string
	Strategy string // Reject, Discard or Move
	Target   string // of Move
	DryRun   bool   // only the checks; the answer says how many jobs wait
}

// Deleted is what has become of a deletion. Affected counts what this call has done. Draining true means that the row is
// still there and the Finisher deletes it later.
type Deleted struct {
	Affected int64 // jobs that were discarded or moved
	Draining bool  // active jobs have to end first
}

// deletion is the stored part of a Deletion. It is kept in the row of the queue, so that any node can go on. Began is the
// time of the database; Previous is what Reject restores.
type deletion struct {
	Strategy string    `json:"strategy"`
	Target   string    `json:"target_queue,omitempty"`
	Previous string    `json:"previous"` // status before
	Began    time.Time `json:"began"`
}

// Delete deletes a queue (docs/reference/queues.md, Deletion). It refuses new jobs first, because a job that came in between would be in
// a queue that does not exist. What a node that stops leaves behind, the Finisher of any node finishes. The order is:
// begin, which makes all nodes refuse new jobs; settle, which waits until they do; finish, which empties the queue and
// deletes the row. After an error behind begin the deletion goes on without the caller, unless Resume takes it back. A
// second call meanwhile is a conflict.
func (s *Store) Delete(ctx context.Context, d Deletion) (Deleted, error) {
	ctx = context.WithoutCancel(ctx) // a client that hangs up must not leave half of it to the finisher
	if err := s.checkDeletion(ctx, d); err != nil {
		return Deleted{}, err
	}
	if d.DryRun {
		c, err := s.counts(ctx, d.Queue)
		return Deleted{Affected: c.waiting, Draining: c.active > 0}, pg.ClientError(err)
	}
	if err := s.beginDeletion(ctx, d); err != nil {
		return Deleted{}, pg.WriteError(err)
	}
	// This node refuses new jobs from here on.
	s.committed(ctx, d.Queue)
	// The deletion stays begun; a Finisher goes on after begunFor.
	if err := s.settle(ctx); err != nil {
		return Deleted{}, pg.PartlyError(err)
	}
	done, err := s.finish(ctx, d.Queue)
	return done, pg.PartlyError(err)
}

// checkDeletion refuses what can be refused before anything is changed. It looks without a lock, to spare clients the wait;
// tryDelete decides.
func (s *Store) checkDeletion(ctx context.Context, d Deletion) error {
	// finish would move the jobs for ever.
	if d.Strategy == Move && d.Target == d.Queue {
		return spec.InvalidPayload("target_queue", "another queue", d.Target, "'target_queue' must be another queue.")
	}
	if _, err := s.Get(ctx, d.Queue); err != nil {
		return err
	}
	if d.Strategy == Move {
		found, err := s.queues.Get(ctx, d.Target)
		if err != nil {
			return err
		}
		// From the cache: a target that drains a moment later gets the jobs all the same.
		if q := found[d.Target]; q != nil && q.Draining() {
			return spec.With(spec.QueuePaused(d.Target), "status", queueconfig.Draining)
		}
	}
	// A queue that is being deleted has a status of its own and takes room in the memory of nodes.
	if d.Strategy != Reject {
		return s.roomFor(ctx, d.Queue)
	}
	c, err := s.counts(ctx, d.Queue)
	if err == nil && c.waiting+c.active > 0 {
		err = errNotEmpty(d.Queue, c)
	}
	return err
}

// errNotEmpty has the counts of the moment of the refusal.
func errNotEmpty(name string, c counts) error {
	return spec.QueueState(name, fmt.Sprintf("Queue %s has %d unfinished jobs; delete it with strategy discard or move, or drain it first.",
		name, c.waiting+c.active),
		map[string]any{"waiting": c.waiting, "active": c.active})
}

func errBeingDeleted(name string) error {
	return spec.QueueState(name, "Queue "+name+" is being deleted; it goes when its active jobs have ended. Resume it to keep it.", nil)
}

// beginDeletion creates the target before, in the same transaction, so that it exists when the first job moves.
func (s *Store) beginDeletion(ctx context.Context, d Deletion) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.Retry(func() error {
		return pg.InTx(ctx, s.db.Pool, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			if d.Strategy == Move {
				if err := q.QueueInsert(ctx, []string{d.Target}); err != nil {
					return err
				}
				if err := lockTarget(ctx, q, d); err != nil {
					return err
				}
			}
			// The status that Reject restores is read under the lock.
			rows, err := q.QueueLock(ctx, d.Queue)
			switch {
			case err != nil:
				return err
			case len(rows) == 0:
				return notFound(d.Queue)
			// A second deletion could have another strategy, and both would run.
			case rows[0].Deletion != nil:
				return errBeingDeleted(d.Queue)
			}
			// A deletion that moves jobs here locks this row, too, so none can begin between this look and the end.
			moving, err := q.QueueListMovingTo(ctx, d.Queue)
			if err != nil {
				return err
			}
			if len(moving) > 0 {
				return spec.QueueState(d.Queue, "Queue "+d.Queue+" gets the jobs of queue "+moving[0]+", which is being deleted; delete it when that has ended.",
					map[string]any{"moving_from": moving[0]})
			}
			now, err := q.SystemPing(ctx)
			if err != nil {
				return err
			}
			text, err := json.Marshal(deletion{d.Strategy, d.Target, rows[0].Status, now.Time})
			if err != nil {
				return err
			}
			return q.QueueBeginDeletion(ctx, text, d.Queue)
		})
	})
}

// lockTarget refuses a target that is being deleted itself: two queues that move their jobs to each other would never be empty. Both rows
// are locked at once, in the order of their names, so two such deletions cannot both begin.
func lockTarget(ctx context.Context, q *dbsqlc.Queries, d Deletion) error {
	if err := q.QueueLockBounded(ctx, []string{d.Queue, d.Target}); err != nil {
		return err
	}
	rows, err := q.QueueLock(ctx, d.Target)
	if err == nil && len(rows) > 0 && rows[0].Deletion != nil {
		err = errBeingDeleted(d.Target)
	}
	return err
}

// finish discards or moves what waits in a queue that takes no new jobs, and deletes its row if it is empty then. It may
// run on several nodes at once: a job is discarded or moved by one of them, and one of them deletes the row. It loops while
// it makes progress, because a retry may put a job back into the queue meanwhile.
func (s *Store) finish(ctx context.Context, name string) (done Deleted, err error) {
	for {
		d, found, err := s.deletionOf(ctx, name)
		if err != nil || !found {
			return done, err
		}
		n, err := s.empty(ctx, name, d)
		done.Affected += n
		if err != nil {
			return done, err
		}
		// It is tried after each round, as a round may have left nothing.
		deleted, left, err := s.tryDelete(ctx, name, d)
		if err != nil || deleted {
			return done, err
		}
		if left.waiting == 0 || n == 0 { // active ones, or jobs that others have locked: the finisher comes back
			done.Draining = true
			return done, nil
		}
	}
}

// deletionOf reads the deletion that was begun; not found: the queue is gone, or the deletion was taken back. The lock ends
// with the statement; what was read may be taken back right after. tryDelete looks again under its own lock.
func (s *Store) deletionOf(ctx context.Context, name string) (d deletion, found bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.QueueLock(ctx, name)
	if err != nil || len(rows) == 0 || rows[0].Deletion == nil {
		return d, false, err
	}
	return d, true, json.Unmarshal(rows[0].Deletion, &d)
}

// empty discards or moves the waiting jobs. Each portion is a transaction of package queue and stays after an error. Jobs
// that others have locked are left; the Finisher comes back for them.
func (s *Store) empty(ctx context.Context, name string, d deletion) (n int64, err error) {
	if d.Strategy == Reject {
		return 0, nil
	}
	// Both skip jobs that are no longer waiting, and return how many they have changed.
	apply := func(ids [][16]byte) (int, error) { return s.jobs.DiscardWaiting(ctx, ids, job.QueueDeleted) }
	if d.Strategy == Move {
		apply = func(ids [][16]byte) (int, error) { return s.jobs.MoveWaiting(ctx, ids, name, d.Target) }
	}
	if n, err = s.emptyReady(ctx, name, apply); err != nil {
		return n, err
	}
	left, err := s.counts(ctx, name)
	if err != nil || left.waiting == 0 {
		return n, err
	}
	more, err := s.emptyWaiting(ctx, name, apply)
	return n + more, err
}

// emptyReady takes the jobs that a fetch would find. It stops when a portion changes nothing, as the same jobs would come
// again.
func (s *Store) emptyReady(ctx context.Context, name string, apply func(ids [][16]byte) (int, error)) (n int64, err error) {
	for {
		bounded, cancel := s.db.Bounded(ctx)
		ids, err := s.db.Q.QueueJobListReady(bounded, name, portion)
		cancel()
		if err != nil || len(ids) == 0 {
			return n, err
		}
		applied, err := apply(ids)
		if n += int64(applied); err != nil || applied == 0 {
			return n, err
		}
	}
}

// emptyWaiting takes all others, which no index finds by their queue: it walks over the jobs of all queues, in small
// statements. It runs only if the counts tell that such jobs exist. An index on the queue of all jobs would cost every
// state change more than a rare deletion saves.
func (s *Store) emptyWaiting(ctx context.Context, name string, apply func(ids [][16]byte) (int, error)) (n int64, err error) {
	var after [16]byte
	for {
		bounded, cancel := s.db.Bounded(ctx)
		rows, err := s.db.Q.QueueJobListWaiting(bounded, dbsqlc.QueueJobListWaitingParams{Queue: name, After: after, MaxLooked: portion})
		cancel()
		if err != nil || len(rows) == 0 {
			return n, err
		}
		var ids [][16]byte
		for _, r := range rows {
			if r.Waiting {
				ids = append(ids, r.ID)
			}
		}
		if len(ids) > 0 {
			applied, err := apply(ids)
			if n += int64(applied); err != nil {
				return n, err
			}
		}
		// Also behind jobs that could not be changed, so the walk ends.
		after = rows[len(rows)-1].ID
	}
}

// tryDelete deletes the row if no unfinished job is left. One that was to be deleted only if empty, and is not, becomes
// what it was. The counts are read under the lock of the row and after settle, and include events that are not published. A job can come in
// later all the same, from an application that had called ojs.enqueue and kept its transaction open, or from a node that stood still: the
// relay makes the queue anew when it publishes that job (RelayPublish).
func (s *Store) tryDelete(ctx context.Context, name string, d deletion) (deleted bool, left counts, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	err = pg.Retry(func() error {
		return pg.InTx(bounded, s.db.Pool, func(tx pgx.Tx) (err error) {
			q := dbsqlc.New(tx)
			if err = q.RelayExclude(bounded); err != nil {
				return err
			}
			if _, err = q.QueueLock(bounded, name); err != nil {
				return err
			}
			// A statement of its own behind the lock: its snapshot includes what the last holder has done.
			if left, err = countsOf(bounded, q, name); err != nil {
				return err
			}
			switch {
			case left.waiting+left.active == 0:
				n, err := q.QueueDelete(bounded, dbsqlc.QueueDeleteParams{Name: name, Node: s.commits.Node,
					Extended: s.config.Events.ExtensionTypes})
				deleted = n > 0
				return err
			case d.Strategy == Reject:
				return q.QueueTakeBackDeletion(bounded, d.Previous, name)
			// Active jobs alone are left: workers may fetch their retries no more, but acks and nacks go on.
			case left.waiting == 0:
				return q.QueueDrainDeleted(bounded, name)
			}
			return nil
		})
	})
	if err != nil {
		return false, left, err
	}
	var changes []eventlog.Change
	if deleted {
		changes = s.changed(ctx, ojs.EventQueueDeleted, "queue deleted", name)
	}
	s.committed(ctx, name, changes...)
	if d.Strategy == Reject && !deleted {
		return false, left, errNotEmpty(name, left)
	}
	return deleted, left, nil
}

const (
	// finishInterval is how often a node looks at queues that are being deleted. It sends no query while it knows of none.
	// docs/reference/queues.md, Deletion promises 10 s.
	finishInterval = time.Second

	// begunFor is how old a deletion is before a finisher touches it: the request that began it settles and finishes it
	// itself. Earlier, the row could go while a node still takes jobs for the queue.
	begunFor = loop.Settled + 2*fenceWait
)

// Finisher deletes queues whose active jobs have ended, and goes on with deletions of nodes that have stopped. Any number of nodes may
// run one. It learns of deletions from the cache of queues, which every change of a queue refreshes.
type Finisher struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
}

// NewFinisher returns a finisher.
func NewFinisher(archetype *baseservice.Archetype, s *Store) *Finisher {
	return baseservice.Init(archetype, &Finisher{store: s})
}

// Start runs the loop until stopped.
func (f *Finisher) Start(ctx context.Context) error {
	loop.Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

func (f *Finisher) loop(ctx context.Context) {
	// The deletion may have been begun by a node that has stopped since.
	f.store.queues.Changed() // a node that starts may be the only one
	loop.Every(ctx, finishInterval, func(ctx context.Context) {
		if err := f.store.Finish(ctx); err != nil && ctx.Err() == nil {
			f.Logger.WarnContext(ctx, "deletion of a queue is not finished yet; it is tried again every second", slog.Any("error", err))
		}
	})
}

// Finish goes on with all deletions that this node knows of. One that fails does not stop the others.
func (s *Store) Finish(ctx context.Context) error {
	view := s.queues.Latest()
	// A server without settings pays nothing.
	if view == nil || view.Plain() {
		return nil
	}
	var names []string
	view.Each(func(q *queueconfig.Queue) {
		if q.Deleting {
			names = append(names, q.Name)
		}
	})
	var failed []error
	for _, name := range names {
		failed = append(failed, s.finishOld(ctx, name))
	}
	return errors.Join(failed...)
}

// finishOld compares ages by the clock of the database.
func (s *Store) finishOld(ctx context.Context, name string) error {
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	d, found, err := s.deletionOf(ctx, name)
	// The request that began it may still be at work.
	if err != nil || !found || now.Sub(d.Began) < s.begunFor {
		return err
	}
	_, err = s.finish(ctx, name)
	return err
}
