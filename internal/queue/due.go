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
		a.add(jobChange{
			id: r.ID, queue: r.Queue, lane: r.Lane, priority: r.Priority, state: ojs.JobState(r.State), readySeq: r.ReadySeq, cron: r.Cron,
			limitKey: r.LimitKey, workflowID: r.WorkflowID,
		})
	}
	s.notify(ctx, a)
	s.follow(ctx, a)
	poll.End(len(rows)-retried, nil)
	retries.End(retried, nil)
	return len(rows), nil
}

// longestLease is the longest reservation that a fetch may ask for: 7 days.
// job.MaxVisibilityMS is the same bound for requests. The search for the jobs of dead workers and of lost claims reads due_at
// up to that far ahead, so a longer one would have to be stored elsewhere.
const longestLease = 7 * 24 * time.Hour

// LongestVisibility is the longest reservation that a job can have.
func (s *Store) LongestVisibility() time.Duration {
	return max(longestLease, s.config.Jobs.VisibilityTimeout)
}

// DefaultVisibility is the reservation of a job if neither the fetch nor the job sets one.
func (s *Store) DefaultVisibility() time.Duration { return s.config.Jobs.VisibilityTimeout }

// FailOverdue fails up to 2 000 active jobs whose lease, run time, heartbeat timeout or total timeout has ended. It reads
// the jobs without locking them; JobFail compares the run and due_at again, so a heartbeat or an ack in between wins. Jobs that
// other transactions have locked stay at the head of what is read, so it reads on behind them.
//
// Every node may run it at once. Two nodes may read the same jobs: JobFail of the second one skips them, or finds them failed.
// found counts what was read, failed what this call has changed.
func (s *Store) FailOverdue(ctx context.Context, after pgtype.Timestamptz) (found, failed int, err error) {
	ctx, pass := s.tracer.Pass(ctx, "ojs.visibility.check")
	defer func() { pass.End(found, err) }()
	// Three conditions end it: an error, a page that is not full, and enough failures for one batch of the timer.
	for page := dueBatch; page == dueBatch && failed < dueBatch; found += page {
		// What this call has failed is no longer at the head; what it could not lock is, and is skipped.
		bounded, cancel := s.db.Bounded(ctx)
		rows, err := s.db.Q.JobListOverdue(bounded, dbsqlc.JobListOverdueParams{After: after, SkipRows: int32(found - failed),
			MaxRows: dueBatch})
		cancel()
		if page = len(rows); err != nil || page == 0 {
			return found, failed, err
		}
		nacks := make([]nack, len(rows))
		for i, r := range rows {
			nacks[i] = s.overdue(r)
		}
		jobs, err := s.flushFail(ctx, nacks)
		for _, j := range jobs {
			if j != nil {
				failed++
			}
		}
		s.followRecords(ctx, jobs)
		if err != nil {
			return found, failed, err
		}
	}
	return found, failed, nil
}

// overdue decides which limit a job has exceeded. If it has exceeded several, a limit that ends the job takes precedence and
// the lease comes last (docs/reference/retries.md, Reservations).
//
// The limits are read with the job and judged by the same clock, now() of the read. dueOnly lets the statement refuse the failure
// if a heartbeat has come since.
func (s *Store) overdue(r dbsqlc.JobListOverdueRow) nack {
	limit := s.config.Jobs.Timeout
	if r.TimeoutMs.Valid {
		limit = time.Duration(r.TimeoutMs.Int64) * time.Millisecond
	}
	now := r.Now.Time
	elapsed := now.Sub(r.StartedAt.Time) - time.Duration(r.OutageMs)*time.Millisecond // outages do not count as run time
	n := nack{
		Nack:      job.Nack{JobID: r.ID, Attempt: r.Attempt},
		startedAt: r.StartedAt, dueOnly: true, reason: job.VisibilityTimeout, source: "scheduler",
	}
	// A job that reaches no case but the last has lost its lease: due_at is the least of these times.
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
		n.Error = job.ServerError(n.reason, r.LeaseUntil.Time.Sub(r.StartedAt.Time), now.Sub(r.StartedAt.Time))
	}
	return n
}

// Lost is a reservation that the server takes away from a worker.
// Package worker makes them, for the jobs of dead workers.
type Lost struct {
	JobID     [16]byte
	WorkerID  string
	Attempt   int32
	StartedAt pgtype.Timestamptz // identifies the run: a job that was handed back gets the same attempt again
	Reason    string             // of the job's change of state
	Error     job.WorkerError
}

// FailLost fails the jobs of lost reservations, in the same way as a nack. A job that was acked or fetched again meanwhile
// does not change; its result is nil.
// At most a page of the reaper, in one statement. Unlike an overdue job it fails whether its lease has ended or not: its worker
// is dead.
func (s *Store) FailLost(ctx context.Context, lost []Lost) ([]*job.Record, error) {
	nacks := make([]nack, len(lost))
	for i, l := range lost {
		nacks[i] = nack{
			Nack:      job.Nack{JobID: l.JobID, WorkerID: l.WorkerID, Attempt: l.Attempt, Error: l.Error},
			startedAt: l.StartedAt, reason: l.Reason, source: "scheduler",
		}
	}
	jobs, err := s.flushFail(ctx, nacks)
	s.followRecords(ctx, jobs)
	return jobs, err
}
