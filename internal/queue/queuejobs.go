package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// What the deletion of a queue does with its waiting jobs. Both leave out jobs that another transaction has locked.

// DiscardWaiting discards those of the jobs that wait, with an error of the server, and returns how many they were.
//
// At most a page of ids, in one statement that commits. Package queueadmin calls it page by page, on any node, and again after a
// failure: a job that was discarded is not in the states any more.
func (s *Store) DiscardWaiting(ctx context.Context, ids [][16]byte, code string) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobDiscardWaiting(ctx, dbsqlc.JobDiscardWaitingParams{
		Ids: ids, States: texts(idleStates), Code: code, Message: job.ServerError(code, 0, 0).Message,
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
	if len(rows) > 0 {
		s.commits.Committed()
	}
	for i := range rows {
		s.awaiting.ended(rows[i].ID)
	}
	s.releaseCrons(ctx, namesOf(rows, func(r *dbsqlc.JobDiscardWaitingRow) pgtype.Text { return r.Cron }))
	s.FollowLimits(ctx, namesOf(rows, droppedLimit))
	s.advance(ctx, workflowsOf(rows, droppedWorkflow))
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
	for i := range rows {
		if r := &rows[i]; r.State == string(ojs.StateAvailable) {
			a.add(r.Queue, r.Lane, r.Priority, r.ReadySeq, pgtype.Text{})
			// It waits for its limit, so no commit would tell the new queue of it.
			if r.LimitKey.Valid && !r.ReadySeq.Valid {
				s.parked.park(to)
			}
		}
	}
	eventlog.Emit(ctx, s.commits, rows, func(changes []eventlog.Change, r *dbsqlc.JobMoveQueueRow) []eventlog.Change {
		c := eventlog.Change{Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: from, From: r.State, At: r.Now.Time, Reason: reasonMoved}
		entered := c
		entered.Queue, entered.From, entered.To = to, "", r.State
		return append(changes, c, entered)
	})
	s.notify(ctx, a)
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.FollowLimits(ctx, namesOf(rows, func(r *dbsqlc.JobMoveQueueRow) pgtype.Text { return r.LimitKey }))
	return len(rows), nil
}
