package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
)

// longestLease is the longest reservation that a fetch may ask for: 7 days.
const longestLease = 7 * 24 * time.Hour

// LongestVisibility is the longest reservation that a job can have.
func (s *Store) LongestVisibility() time.Duration {
	return max(longestLease, s.config.DefaultVisibility)
}

// DefaultVisibility is the reservation of a job if neither the fetch nor the job sets one.
func (s *Store) DefaultVisibility() time.Duration { return s.config.DefaultVisibility }

// FailOverdue fails up to 2 000 active jobs whose lease, run time, heartbeat timeout or total timeout has ended. It reads
// the jobs without locking them; JobFail compares the run and due_at again, so a heartbeat or an ack in between wins. Jobs that
// other transactions have locked stay at the head of what is read, so it reads on behind them.
func (s *Store) FailOverdue(ctx context.Context, after pgtype.Timestamptz) (found, failed int, err error) {
	ctx, pass := s.tracer.Pass(ctx, "ojs.visibility.check")
	defer func() { pass.End(found, err) }()
	for page := dueBatch; page == dueBatch && failed < dueBatch; found += page {
		rows, err := s.listOverdue(ctx, after, found-failed)
		if err != nil {
			return found, failed, err
		}
		page = len(rows)
		n, err := s.failOverdue(ctx, rows)
		if failed += n; err != nil {
			return found, failed, err
		}
	}
	return found, failed, nil
}

func (s *Store) listOverdue(ctx context.Context, after pgtype.Timestamptz, skip int) ([]dbsqlc.JobListOverdueRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.db.Q.JobListOverdue(ctx, dbsqlc.JobListOverdueParams{After: after, SkipRows: int32(skip), MaxRows: dueBatch})
}

func (s *Store) failOverdue(ctx context.Context, rows []dbsqlc.JobListOverdueRow) (failed int, err error) {
	if len(rows) == 0 {
		return 0, nil
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
	s.follow(ctx, jobs)
	return failed, err
}

// overdue decides which limit a job has exceeded. If it has exceeded several, a limit that ends the job takes precedence and
// the lease comes last (docs/reference/retries.md, Reservations).
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

// Lost is a reservation that the server takes away from a worker.
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
func (s *Store) FailLost(ctx context.Context, lost []Lost) ([]*job.Record, error) {
	nacks := make([]nack, len(lost))
	for i, l := range lost {
		nacks[i] = nack{
			Nack:      job.Nack{JobID: l.JobID, WorkerID: l.WorkerID, Attempt: l.Attempt, Error: l.Error},
			startedAt: l.StartedAt, reason: l.Reason, source: "scheduler",
		}
	}
	jobs, err := s.flushFail(ctx, nacks)
	s.follow(ctx, jobs)
	return jobs, err
}
