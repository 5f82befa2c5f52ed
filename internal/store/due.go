package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// FromTheStart leaves nothing out; see NextDue.
var FromTheStart = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}

// dueBatch bounds a sweep's statement.
const dueBatch = 1000

// PromoteDue applies up to 1 000 due transitions of jobs that are not active: scheduled and retryable ones become
// available, expired ones are discarded. Any node may call it at any time.
func (s *Store) PromoteDue(ctx context.Context, after pgtype.Timestamptz) (moved int, err error) {
	ctx, poll := s.config.Tracer.Pass(ctx, "ojs.scheduler.poll")
	_, retries := s.config.Tracer.Pass(ctx, "ojs.retry.evaluate")
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobPromoteDue(ctx, dbsqlc.JobPromoteDueParams{
		After: after, MaxRows: dueBatch, Node: s.node, Instance: s.instance, Loud: s.config.EnqueuedOnRequeue,
	})
	if err != nil {
		return 0, err
	}
	tell(ctx, s, rows, promoteChange)
	var m aftermath
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
	s.announce(ctx, m)
	if len(rows) > 0 {
		s.committedEvents()
	}
	poll.End(len(rows)-retried, nil)
	retries.End(retried, nil)
	return len(rows), nil
}

// FailOverdue fails up to 1 000 active jobs whose lease or execution time is over. It looks first and changes after,
// guarded by attempt and due_at, so a heartbeat or an ack in between wins.
func (s *Store) FailOverdue(ctx context.Context, after pgtype.Timestamptz) (found, failed int, err error) {
	ctx, pass := s.config.Tracer.Pass(ctx, "ojs.visibility.check")
	defer func() { pass.End(found, err) }()
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobListOverdue(bounded, after, dueBatch)
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
		Nack:      Nack{JobID: r.ID, Attempt: r.Attempt},
		startedAt: r.StartedAt, dueOnly: true, reason: job.VisibilityTimeout, source: s.origin("scheduler"),
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

// Due is what time will bring next, by the database's clock. Not valid: nothing of the kind is to come; any time is one that
// a client can have chosen.
type Due struct {
	Now     time.Time
	Jobs    pgtype.Timestamptz
	Workers pgtype.Timestamptz // the longest silent worker is dead then
	Crons   pgtype.Timestamptz
}

// Next is the earliest time; ok is false if there is none.
func (d Due) Next() (next time.Time, ok bool) {
	for _, t := range []pgtype.Timestamptz{d.Jobs, d.Workers, d.Crons} {
		if t.Valid && (!ok || t.Time.Before(next)) {
			next, ok = t.Time, true
		}
	}
	return next, ok
}

// Is reports whether one of the times has come.
func (d Due) Is(t pgtype.Timestamptz) bool { return t.Valid && !t.Time.After(d.Now) }

// NextDue looks at the first entry of each timer. Jobs due before after are left out: the caller has swept them.
func (s *Store) NextDue(ctx context.Context, after pgtype.Timestamptz) (Due, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	row, err := s.q.SweepNextDue(ctx, after)
	if err != nil {
		s.hearAgain() // perhaps nobody could reach the database, workers included
		return Due{}, err
	}
	due := Due{Now: row.Now.Time, Jobs: row.JobDue, Workers: row.WorkerLeft, Crons: row.CronDue}
	if row.WorkerSeen.Valid {
		death := row.WorkerSeen.Time.Add(s.config.WorkerDeadAfter)
		if soonest := due.Now.Add(s.deaf()); soonest.After(death) {
			death = soonest
		}
		if !due.Workers.Valid || death.Before(due.Workers.Time) {
			due.Workers = pgtype.Timestamptz{Time: death, Valid: true}
		}
	}
	return due, nil
}
