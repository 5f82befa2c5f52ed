package queueadmin

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Create creates a queue; one that exists is a conflict. It is one statement, so of two calls at once one creates the queue
// and the other gets the conflict. It goes on if the client hangs up, so that this node hears of its own change.
func (s *Store) Create(ctx context.Context, name string, change queueconfig.Change) (*Detail, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	stored, wire := change.Apply(nil)
	if wire != nil {
		return nil, wire
	}
	if stored.Config != nil {
		// Only a configuration takes room in the memory of nodes.
		if err := s.roomFor(ctx, name); err != nil {
			return nil, pg.ClientError(err)
		}
	}
	rows, err := s.db.Q.QueueCreate(ctx, dbsqlc.QueueCreateParams{Name: name, Config: stored.Config, Settings: stored.Settings,
		Node: s.commits.Node, Extended: s.config.Events.ExtensionTypes})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if len(rows) == 0 {
		return nil, spec.QueueExists(name)
	}
	s.committed(ctx, name, s.changed(ctx, ojs.EventQueueCreated, "queue created", name)...)
	return newDetail(dbsqlc.Queue(rows[0])), nil
}

// Configure changes the configuration of a queue, or of queueconfig.Default, and creates the queue if there is none. A change that sets
// nothing anew writes nothing. It merges (docs/reference/queues.md, Configuration), so a repetition changes nothing and
// writes no event. The row is locked between the read and the write: two changes of different fields both hold. Jobs and
// fetches do not wait for that lock.
func (s *Store) Configure(ctx context.Context, name string, change queueconfig.Change) (*Detail, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	if change.Sets() {
		if err := s.roomFor(ctx, name); err != nil {
			return nil, pg.ClientError(err)
		}
	}
	var row dbsqlc.Queue
	var created, configured bool
	err := pg.Retry(func() error {
		return pg.InTx(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
			q := dbsqlc.New(tx)
			inserted, err := q.QueueCreate(ctx, dbsqlc.QueueCreateParams{Name: name, Node: s.commits.Node,
				Extended: s.config.Events.ExtensionTypes})
			if err != nil {
				return err
			}
			// Each try sets both flags anew.
			created = len(inserted) > 0
			row, configured, err = s.configure(ctx, q, name, change)
			return err
		})
	})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if created {
		s.committed(ctx, name, s.changed(ctx, ojs.EventQueueCreated, "queue created", name)...)
	}
	if configured {
		s.committed(ctx, name, s.changed(ctx, ojs.EventQueueConfigUpdated, "queue configured", name)...)
	}
	return newDetail(row), nil
}

// configure does not write an unchanged configuration, as every write makes all nodes read.
func (s *Store) configure(ctx context.Context, q *dbsqlc.Queries, name string, change queueconfig.Change) (row dbsqlc.Queue,
	configured bool, err error) {
	rows, err := q.QueueLock(ctx, name)
	if err != nil {
		return row, false, err
	}
	if len(rows) == 0 { // it was deleted since its row was found
		return row, false, spec.Unavailable()
	}
	stored, wire := change.Apply(rows[0].Config)
	if wire != nil {
		return row, false, wire
	}
	// encode gives equal configurations equal bytes.
	if string(stored.Config) == string(rows[0].Config) {
		return rows[0], false, nil
	}
	changed, err := q.QueueConfigure(ctx, dbsqlc.QueueConfigureParams{
		Name: name, Config: stored.Config, Settings: stored.Settings, Node: s.commits.Node, Extended: s.config.Events.ExtensionTypes,
	})
	return dbsqlc.Queue(changed), true, err
}

// Status is a queue after its status was set. Remaining is 0 but for Drain.
type Status struct {
	Name      string
	Status    string
	PausedAt  time.Time // zero: not paused
	Since     time.Time // when the status was set
	Remaining int64     // jobs that a draining queue still has
}

// Pause stops fetches from a queue; jobs that run go on, and new ones are taken. The statement of a fetch reads the row, so
// it holds at once on every node (docs/reference/queues.md, Status). A queue that drains becomes a paused one. A repetition
// changes nothing. A queue that is being deleted is refused with the conflict of a second deletion: only Resume takes a
// deletion back.
func (s *Store) Pause(ctx context.Context, name, by string) (Status, error) {
	return s.setStatus(ctx, name, queueconfig.Paused, by)
}

// Resume makes a queue active, whatever it was. A deletion that was begun is taken back. If the deletion has ended before,
// the queue is created anew. Parked fetches are woken on this node by committed, on others by the notification.
func (s *Store) Resume(ctx context.Context, name, by string) (Status, error) {
	return s.setStatus(ctx, name, queueconfig.Active, by)
}

// Drain refuses new jobs, while those that the queue has can be fetched. A queue that is being deleted is refused, as by Pause.
//
// It returns when no node takes jobs any more, which are answered by other nodes for as long as they do not know of the change.
// The status is committed before the wait: an error after that says that a part was done, and a repetition waits again.
func (s *Store) Drain(ctx context.Context, name, by string) (Status, error) {
	status, err := s.setStatus(ctx, name, queueconfig.Draining, by)
	if err != nil {
		return status, err
	}
	if err := s.settle(ctx); err != nil {
		return status, pg.PartlyError(err)
	}
	counts, err := s.counts(ctx, name)
	status.Remaining = counts.waiting + counts.active
	return status, err
}

// setStatus locks the row, so of two calls at once the later one wins and each event tells a real change.
func (s *Store) setStatus(ctx context.Context, name, status, by string) (Status, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // what follows a commit does not depend on who still listens
	defer cancel()
	// An active queue takes no room in the memory of nodes.
	if status != queueconfig.Active {
		if err := s.roomFor(ctx, name); err != nil {
			return Status{}, pg.ClientError(err)
		}
	}
	// Another round is needed only if another transaction creates the queue between the look and the insert of the
	// statement; ctx bounds it.
	for {
		rows, err := s.db.Q.QueueSetStatus(ctx, dbsqlc.QueueSetStatusParams{
			Name: name, Status: status, By: by, Node: s.commits.Node, Extended: s.config.Events.ExtensionTypes,
		})
		if err != nil {
			return Status{}, pg.WriteError(err)
		}
		if len(rows) > 0 {
			r := rows[0]
			if r.Refused {
				return Status{}, errBeingDeleted(name)
			}
			// Without a change there is no event, and nobody has to be woken.
			if r.Moved {
				s.committed(ctx, name, s.statusChanges(ctx, name, r)...)
			}
			return Status{Name: name, Status: r.Status, PausedAt: r.PausedAt.Time, Since: r.UpdatedAt.Time}, nil
		}
	}
}

// statusChanges are the events that QueueSetStatus has written. It repeats the conditions of the statement; both must be
// changed together.
func (s *Store) statusChanges(ctx context.Context, name string, r dbsqlc.QueueSetStatusRow) (changes []eventlog.Change) {
	if r.Previous == "" {
		changes = s.changed(ctx, ojs.EventQueueCreated, "queue created", name)
	}
	if r.Status == queueconfig.Paused {
		changes = append(changes, eventlog.Change{Type: ojs.EventQueuePaused, Subject: name, Queue: name, At: r.UpdatedAt.Time})
	}
	if r.Previous == queueconfig.Paused {
		changes = append(changes, eventlog.Change{Type: ojs.EventQueueResumed, Subject: name, Queue: name, At: r.UpdatedAt.Time})
	}
	if r.Status == queueconfig.Draining {
		changes = append(changes, s.changed(ctx, ojs.EventQueueDraining, "queue draining", name)...)
	}
	if r.Previous == queueconfig.Draining {
		changes = append(changes, s.changed(ctx, ojs.EventQueueAccepting, "queue accepting jobs", name)...)
	}
	return changes
}

// settle waits until a change that has been committed holds on every node, and until the inserts have ended that began before. So no job
// slips in afterwards, and queues without settings need no check in the statement of the insert. A transaction that an application
// keeps open cannot be waited for longer than fenceWait. The sleep lets every node read the change. The fence then waits
// for the transactions that began before that, by their ids: an insert among them could have read the old status. A check
// in the statement of every insert would cost all queues for the sake of a rare call.
func (s *Store) settle(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	serviceutil.CancellableSleep(ctx, s.settled)
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// Taken after the sleep: inserts of nodes that did not know of the change began before it.
	fence, err := s.db.Q.QueueFence(ctx)
	if err != nil {
		return err
	}
	// It compares with the first fence: transactions that begin later know of the change.
	for end := time.Now().Add(fenceWait); fence.Ended < fence.Upper && time.Now().Before(end); {
		serviceutil.CancellableSleep(ctx, 20*time.Millisecond)
		now, err := s.db.Q.QueueFence(ctx)
		if err != nil {
			return err
		}
		fence.Ended = now.Ended
	}
	return nil
}

// counts are the unfinished jobs of a queue. waiting includes available.
type counts struct{ available, waiting, active int64 }

// counts are exact at the time of the read. They include events that are committed but not published.
func (s *Store) counts(ctx context.Context, name string) (counts, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return countsOf(ctx, s.db.Q, name)
}

// countsOf takes the q of a transaction, too; the counts are then those of its statement.
func countsOf(ctx context.Context, q *dbsqlc.Queries, name string) (c counts, err error) {
	rows, err := q.QueueCountListByQueue(ctx, name)
	for _, r := range rows {
		switch state := ojs.JobState(r.State); {
		case state == ojs.StateActive:
			c.active = r.Count
		case slices.Contains(job.WaitingStates, state):
			if c.waiting += r.Count; state == ojs.StateAvailable {
				c.available = r.Count
			}
		}
	}
	return c, pg.ClientError(err)
}
