package queue

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Sampled is how many ids the answer to a dry run shows (docs/reference/http.md, Dry run).
const Sampled = 10

// BulkChange is a bulk operation over chosen jobs (docs/reference/http.md, Bulk change).
type BulkChange struct {
	Op job.BulkOp
	// At most the items of a bulk call (10 000), each once: the API layer takes repetitions out and reports them as listed twice.
	IDs [][16]byte
	// The statement checks them again under the lock of each row.
	States []ojs.JobState // in which jobs are taken; see Eligible
	Cancel Cancel
	Atomic bool // a single job that is skipped or unknown rolls back all
}

// BulkResult is the outcome for each id.
// An id that is in none of the maps belongs to no job.
type BulkResult struct {
	Changed  map[[16]byte]bool
	Eligible map[[16]byte]bool         // Changed, or what would have changed if an atomic operation was rolled back
	Skipped  map[[16]byte]ojs.JobState // state of the other stored jobs

	// Duplicates are the discarded jobs among Skipped that were not retried because another job has their unique key, and that job.
	Duplicates map[[16]byte][16]byte
}

// Eligible are the states in which an operation takes a job.
// See docs/reference/http.md, Bulk change. The API passes them with every list of ids, so that a job
// that a filter has found in another state is skipped.
func Eligible(op job.BulkOp) []ojs.JobState {
	switch op {
	case job.BulkCancel:
		return job.WaitingStates
	case job.BulkRetry:
		return []ojs.JobState{ojs.StateDiscarded, ojs.StateRetryable}
	default:
		return []ojs.JobState{ojs.StateCompleted, ojs.StateCancelled, ojs.StateDiscarded}
	}
}

// errSkipped rolls back an atomic operation because a job is not eligible.
// It never leaves Tx.Bulk.
var errSkipped = errors.New("a job is not eligible")

// Bulk changes the jobs in a savepoint of its own.
//
// The savepoint lets an atomic operation be undone while the transaction goes on: the idempotency key of the call commits with
// the answer. It waits for rows that others have locked, up to the timeouts of the transaction, because it shares its statement
// with no other caller.
func (t *Tx) Bulk(ctx context.Context, b BulkChange) (BulkResult, error) {
	var done bulkDone
	err := pg.InTx(ctx, t.tx, func(tx pgx.Tx) (err error) {
		done, err = t.store.bulk(ctx, dbsqlc.New(tx), b)
		if err == nil && b.Atomic && len(done.changed) < len(b.IDs) {
			return errSkipped
		}
		return err
	})
	if err != nil && !errors.Is(err, errSkipped) {
		return BulkResult{}, err
	}
	changed, eligible := done.changed, done.changed
	if errors.Is(err, errSkipped) {
		changed = nil
	} else if len(changed) > 0 {
		t.after = append(t.after, done.after)
		// Any of them will do: if the answer to the commit is lost, the event of one job tells of all.
		for id := range changed {
			t.changed, t.did = &id, bulkDid(b.Op)
		}
	}
	res := BulkResult{Changed: changed, Eligible: eligible, Skipped: map[[16]byte]ojs.JobState{}, Duplicates: done.duplicates}
	if len(eligible) == len(b.IDs) {
		return res, nil
	}
	// A statement of its own, after the change: the states are those that made it skip the jobs, or newer ones.
	rows, err := dbsqlc.New(t.tx).JobListByID(ctx, job.MaxWholeSize(len(b.IDs)), b.IDs)
	for _, r := range rows {
		if !eligible[r.ID] {
			res.Skipped[r.ID] = ojs.JobState(r.State)
		}
	}
	return res, err
}

// bulkDid tells the change that an operation makes from others.
func bulkDid(op job.BulkOp) func(c dbsqlc.EventListOwnByJobRow) bool {
	to := map[job.BulkOp]ojs.JobState{job.BulkCancel: ojs.StateCancelled, job.BulkRetry: ojs.StateAvailable, job.BulkDelete: ""}[op]
	return func(c dbsqlc.EventListOwnByJobRow) bool { return c.FromState != "" && c.ToState == string(to) }
}

// bulkDone is what a bulk operation has done in its transaction.
type bulkDone struct {
	changed    map[[16]byte]bool
	duplicates map[[16]byte][16]byte // see BulkResult
	// The transaction collects it and calls it once (InTx). It is dropped if the savepoint or the transaction rolls back.
	after func() // to call after the commit
}

func (s *Store) bulk(ctx context.Context, q *dbsqlc.Queries, b BulkChange) (bulkDone, error) {
	changed := make(map[[16]byte]bool, len(b.IDs))
	switch b.Op {
	case job.BulkCancel:
		cs := make([]cancellation, len(b.IDs))
		for i, id := range b.IDs {
			cs[i] = cancellation{id, b.Cancel.eventData()}
		}
		rows, err := s.cancelRows(ctx, q, cs, b.States)
		for _, r := range rows {
			changed[r.ID] = true
		}
		return bulkDone{changed: changed, after: func() {
			s.afterCancel(ctx, rows)
			s.followRecords(ctx, cancelledRecords(rows))
		}}, err
	case job.BulkRetry:
		rows, duplicates, err := s.retryRows(ctx, q, manualRetry{ids: b.IDs, states: b.States})
		for _, r := range rows {
			changed[r.ID] = true
		}
		others := make(map[[16]byte][16]byte, len(duplicates))
		for id, other := range duplicates {
			others[id] = other.ID
		}
		return bulkDone{changed, others, func() { s.afterRetry(ctx, rows) }}, err
	default:
		rows, err := q.JobDelete(ctx, dbsqlc.JobDeleteParams{
			Ids: b.IDs, States: texts(b.States), Node: s.commits.Node, EventType: eventlog.StateChanged,
			Source: "api", Reason: reasonDeleted,
		})
		for _, r := range rows {
			changed[r.ID] = true
		}
		return bulkDone{changed: changed, after: func() {
			eventlog.Emit(ctx, s.commits, rows, deleteChange)
			s.commits.Committed()
		}}, err
	}
}

// What the deletion of a queue does with its waiting jobs. Both leave out jobs that another transaction has locked.

// DiscardWaiting discards those of the jobs that wait, with an error of the server, and returns how many they were.
//
// At most a page of ids, in one statement that commits. Package queueadmin calls it page by page, on any node, and again after a
// failure: a job that was discarded is not in the states any more.
func (s *Store) DiscardWaiting(ctx context.Context, ids [][16]byte, code string) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobDiscardWaiting(ctx, dbsqlc.JobDiscardWaitingParams{
		Ids: ids, States: texts(job.WaitingStates), Code: code, Message: job.ServerError(code, 0, 0).Message,
		EventType: ojs.EventJobDiscarded, Source: "api", Node: s.commits.Node,
	})
	if err != nil {
		return 0, pg.ClientError(err)
	}
	eventlog.Emit(ctx, s.commits, rows, func(changes []eventlog.Change, r *dbsqlc.JobDiscardWaitingRow) []eventlog.Change {
		return append(changes, eventlog.Change{
			Type: ojs.EventJobDiscarded, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was,
			To: string(ojs.StateDiscarded), At: r.Now.Time, Reason: code,
		})
	})
	var a afterCommit
	for _, r := range rows {
		a.add(jobChange{id: r.ID, queue: r.Queue, state: ojs.StateDiscarded, cron: r.Cron, limitKey: r.LimitKey, workflowID: r.WorkflowID})
	}
	s.notify(ctx, a)
	s.follow(ctx, a)
	return len(rows), nil
}

// MoveWaiting moves those of the jobs that wait from one queue to another, at their place, and returns how many they were.
//
// Place is ready_seq: the jobs keep their order among those of the new queue, which may be ahead of jobs that are there. The
// bound of that queue does not hold for them. Limits by key move with them.
func (s *Store) MoveWaiting(ctx context.Context, ids [][16]byte, from, to string) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// They are read before the move, in a statement of their own: meta never changes while a job waits.
	keys, err := s.fairKeys(ctx, to, ids)
	if err != nil {
		return 0, pg.ClientError(err)
	}
	rows, err := s.db.Q.JobMoveQueue(ctx, dbsqlc.JobMoveQueueParams{
		Ids: ids, Queue: from, Target: to, FairKeys: keys, EventType: eventlog.StateChanged, Node: s.commits.Node,
	})
	if err != nil {
		return 0, pg.ClientError(err)
	}
	var a afterCommit
	for _, r := range rows {
		a.add(jobChange{id: r.ID, queue: r.Queue, lane: r.Lane, priority: r.Priority, state: ojs.JobState(r.State), readySeq: r.ReadySeq,
			limitKey: r.LimitKey})
		// It waits for its limit, so no commit would tell the new queue of it.
		if r.State == string(ojs.StateAvailable) && r.LimitKey.Valid && !r.ReadySeq.Valid {
			s.limitBlocked.add(to)
		}
	}
	eventlog.Emit(ctx, s.commits, rows, func(changes []eventlog.Change, r *dbsqlc.JobMoveQueueRow) []eventlog.Change {
		c := eventlog.Change{Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: from, From: r.State, At: r.Now.Time,
			Reason: reasonMoved}
		entered := c
		entered.Queue, entered.From, entered.To = to, "", r.State
		return append(changes, c, entered)
	})
	s.notify(ctx, a)
	s.follow(ctx, a)
	return len(rows), nil
}

// SetPriority changes the priority of a job that is available or scheduled (docs/reference/jobs.md, Priority). It returns
// the job and the priority that it had.
//
// The same priority again is a success without an event. While another transaction has locked the row it is tried again, up to
// the statement timeout, then 504.
func (s *Store) SetPriority(ctx context.Context, id [16]byte, priority int16) (stored *job.Record, previous int16, err error) {
	err = s.RetryLocked(ctx, func() error {
		stored, previous, err = s.trySetPriority(ctx, id, priority)
		return err
	})
	return stored, previous, err
}

// trySetPriority gets no row if the job is unknown, locked or in another state.
func (s *Store) trySetPriority(ctx context.Context, id [16]byte, priority int16) (stored *job.Record, previous int16, err error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // the cursors are lowered even if the client hangs up
	defer cancel()
	var changed []dbsqlc.JobSetPriorityRow
	err = pg.Retry(func() error {
		return s.db.InTx(ctx, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			rows, err := q.JobSetPriority(ctx, dbsqlc.JobSetPriorityParams{ID: id, Priority: priority, EventType: eventlog.PriorityChanged,
				Node: s.commits.Node})
			if changed = rows; err != nil || len(rows) == 0 {
				return err
			}
			// In the same transaction: the answer shows the priority that this call has set.
			jobs, err := q.JobListByID(ctx, job.MaxWholeSize(1), [][16]byte{id})
			if err == nil {
				stored = (*job.Record)(&jobs[0])
			}
			return err
		})
	})
	if err != nil {
		return nil, 0, pg.WriteError(err)
	}
	if len(changed) == 0 {
		left, err := s.Get(ctx, id)
		if err != nil {
			return nil, 0, err
		}
		switch state := ojs.JobState(left.State); state {
		case ojs.StateAvailable, ojs.StateScheduled: // it must have been locked: that is tried again
			return nil, 0, ErrLocked
		default:
			return nil, 0, spec.Conflict(spec.FormatID(id), state, ojs.StateAvailable, ojs.StateScheduled)
		}
	}
	if previous = changed[0].Previous; previous == priority {
		return stored, previous, nil
	}
	// The claims of this node find the job at a place that they may have passed; other nodes hear of it from the relay. No fetch is woken:
	// the job could be fetched before, too.
	if r := changed[0]; r.ReadySeq.Valid {
		s.cursors.lower(Place{r.Queue, r.Lane, r.Priority, r.ReadySeq.Int64})
	}
	eventlog.Emit(ctx, s.commits, changed, priorityChange)
	s.commits.Committed()
	if limit := changed[0].LimitKey; limit.Valid {
		s.FollowLimits(ctx, []string{limit.String})
	}
	return stored, previous, nil
}
