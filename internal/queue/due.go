package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

// dueBatch bounds the jobs of one statement of a sweep.
const dueBatch = 1000

// ApplyDue applies one batch of each kind of due transition. The timer calls it; after is explained at DueGetNext.
func (s *Store) ApplyDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	promoted, err := s.PromoteDue(ctx, after)
	if err != nil {
		return promoted, err
	}
	_, failed, err := s.FailOverdue(ctx, after)
	return promoted + failed, err
}

// PromoteDue applies up to 1 000 due transitions of jobs that are not active: scheduled and retryable jobs become
// available, expired jobs are discarded. Every node may call it at any time.
func (s *Store) PromoteDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	ctx, poll := s.tracer.Pass(ctx, "ojs.scheduler.poll")
	_, retries := s.tracer.Pass(ctx, "ojs.retry.evaluate")
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobPromoteDue(ctx, dbsqlc.JobPromoteDueParams{
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
