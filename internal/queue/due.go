package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// dueBatch bounds a sweep's statement.
const dueBatch = 1000

// PromoteDue applies up to 1 000 due transitions of jobs that are not active: scheduled and retryable ones become
// available, expired ones are discarded. Any node may call it at any time.
func (s *Store) PromoteDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	ctx, poll := s.tracer.Pass(ctx, "ojs.scheduler.poll")
	_, retries := s.tracer.Pass(ctx, "ojs.retry.evaluate")
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobPromoteDue(ctx, dbsqlc.JobPromoteDueParams{
		After: after, MaxRows: dueBatch, Node: s.commits.Node, Loud: s.commits.EnqueuedOnRequeue,
	})
	if err != nil {
		return 0, err
	}
	eventlog.Emit(ctx, s.commits, rows, promoteChange)
	var m afterCommit
	retried := 0
	for _, r := range rows {
		if r.Was == string(ojs.StateRetryable) {
			retried++
		}
		m.add(r.Queue, r.Priority, r.ReadySeq, r.Cron)
		if r.State == string(ojs.StateDiscarded) {
			s.endings.ended(r.ID)
		}
	}
	s.notify(ctx, m)
	if len(rows) > 0 {
		s.commits.Committed()
	}
	poll.End(len(rows)-retried, nil)
	retries.End(retried, nil)
	return len(rows), nil
}

// FailOverdue fails up to 1 000 active jobs whose lease or execution time is over. It looks first and changes after,
// guarded by attempt and due_at, so a heartbeat or an ack in between wins.
func (s *Store) FailOverdue(ctx context.Context, after pgtype.Timestamptz) (found, failed int, err error) {
	ctx, pass := s.tracer.Pass(ctx, "ojs.visibility.check")
	defer func() { pass.End(found, err) }()
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListOverdue(bounded, after, dueBatch)
	if err != nil || len(rows) == 0 {
		return 0, 0, err
	}
	nacks := make([]nack, len(rows))
	for i, r := range rows {
		nacks[i] = s.overdue(r)
	}
	jobs, err := s.flushFail(ctx, nacks)
	for _, job := range jobs {
		if job != nil {
			failed++
		}
	}
	return len(rows), failed, err
}

// overdue decides what ran out. When several did, what ends the job comes first, and the reservation last (contract 20 §4).
func (s *Store) overdue(r dbsqlc.JobListOverdueRow) nack {
	limit := s.config.DefaultTimeout
	if r.TimeoutMs.Valid {
		limit = time.Duration(r.TimeoutMs.Int64) * time.Millisecond
	}
	now := r.Now.Time
	elapsed := now.Sub(r.StartedAt.Time)
	n := nack{
		Nack:      job.Nack{JobID: r.ID, Attempt: r.Attempt},
		startedAt: r.StartedAt, dueOnly: true, reason: job.VisibilityTimeout, source: "scheduler",
	}
	switch {
	case r.TotalDueAt.Valid && !r.TotalDueAt.Time.After(now):
		n.reason = job.TotalTimeout
		n.Error = job.ServerError(n.reason, r.TotalDueAt.Time.Sub(r.EnteredAt.Time), now.Sub(r.EnteredAt.Time))
	case elapsed >= limit+time.Duration(r.GraceMs.Int64)*time.Millisecond:
		n.reason = job.Timeout
		n.Error = job.ServerError(n.reason, limit, elapsed)
	case r.StallDueAt.Valid && !r.StallDueAt.Time.After(now):
		silence := time.Duration(r.StallMs.Int64) * time.Millisecond
		n.reason = job.Stalled
		n.Error = job.ServerError(n.reason, silence, now.Sub(r.StallDueAt.Time)+silence)
	default:
		n.Error = job.ServerError(n.reason, r.LeaseUntil.Time.Sub(r.StartedAt.Time), elapsed)
	}
	return n
}

// ApplyDue does one batch of everything that is due for jobs.
func (s *Store) ApplyDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	promoted, err := s.PromoteDue(ctx, after)
	if err != nil {
		return promoted, err
	}
	_, failed, err := s.FailOverdue(ctx, after)
	return promoted + failed, err
}
