package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

// dueBatch bounds the jobs of one statement of a sweep.
// A sweep that has a full batch runs again at once, so the bound only decides how long rows stay locked.
const dueBatch = 1000

// ApplyDue applies one batch of each kind of due transition. The timer calls it; after is explained at DueGetNext.
//
// Every node may call it at any time, and several do so for the same jobs: promotions skip rows that another node has locked,
// failures compare due_at again. A node that stops in between leaves the rest to the next sweep of any node.
func (s *Store) ApplyDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	// Promotions come first: they are one statement, and fetches wait for them. An error leaves the failures to the next sweep, a
	// second later.
	promoted, err := s.PromoteDue(ctx, after)
	if err != nil {
		return promoted, err
	}
	_, failed, err := s.FailOverdue(ctx, after)
	return promoted + failed, err
}

// PromoteDue applies up to 1 000 due transitions of jobs that are not active: scheduled and retryable jobs become
// available, expired jobs are discarded. Every node may call it at any time.
//
// The rows that it returns include jobs that only wait for another job of their cron: their due_at has moved, nothing else. after
// excludes dead entries at the head of the index.
func (s *Store) PromoteDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	ctx, poll := s.tracer.Pass(ctx, "ojs.scheduler.poll")
	_, retries := s.tracer.Pass(ctx, "ojs.retry.evaluate")
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobPromoteDue(ctx, dbsqlc.JobPromoteDueParams{
		// During maintenance only deadlines are applied; what became due waits in its state
		// (docs/reference/admin.md, Maintenance).
		After: after, MaxRows: dueBatch, Node: s.commits.Node, RequeueEventType: s.commits.RequeueEvent, DeadlinesOnly: s.maintenance.On(),
	})
	if err != nil {
		return 0, err
	}
	eventlog.Emit(ctx, s.commits, rows, promoteChange)
	var a afterCommit
	retried := 0
	for _, r := range rows {
		if r.Was == string(ojs.StateRetryable) {
			retried++
		}
		// No due time is recorded here: the timer reads the earliest one after each batch anyway.
		a.add(r.Queue, r.Lane, r.Priority, r.ReadySeq, r.Cron)
		if r.State == string(ojs.StateDiscarded) {
			s.awaiting.ended(r.ID)
		}
	}
	s.notify(ctx, a)
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.FollowLimits(ctx, namesOf(rows, func(r *dbsqlc.JobPromoteDueRow) pgtype.Text { return r.LimitKey }))
	s.advance(ctx, workflowsOf(rows, func(r *dbsqlc.JobPromoteDueRow) (root pgtype.UUID) {
		if r.State == string(ojs.StateDiscarded) {
			root = r.WorkflowID
		}
		return root
	}))
	poll.End(len(rows)-retried, nil)
	retries.End(retried, nil)
	return len(rows), nil
}
