package queue

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// addFailure decides the outcome of a failure and adds it to the statement.
//
// It sends nothing and may run for a job that JobFail then leaves out. The order of the appends is that of the arrays of the
// statement, one element per failure.
func (s *Store) addFailure(ctx context.Context, p *dbsqlc.JobFailParams, n nack, job *dbsqlc.JobListForFailRow) {
	policy, err := retry.Decode(job.Retry)
	if err != nil { // one invalid policy must not fail the other jobs of the statement
		s.logger.WarnContext(ctx, "job has an invalid retry policy, the default policy applies", "job_id", spec.FormatID(n.JobID), "error", err)
		n.Error.PolicyError = err.Error()
	}
	outcome := retry.Decide(s.failure(n, job, policy))
	state := ojs.StateRetryable
	switch outcome.Kind {
	case retry.Discard:
		state = ojs.StateDiscarded
	// Only a release has a delay: a lost reservation is fetched again at once.
	case retry.Release, retry.LoseToAvailable:
		state = ojs.StateAvailable
		if outcome.Delay > 0 {
			state = ojs.StateScheduled
		}
	}
	worker := n.WorkerID
	if worker == "" {
		worker = job.WorkerID.String
	}
	stored, shown := `{}`, `{}`
	// A job that is handed back has no error: the empty objects are not read.
	if !n.Requeue {
		stored = string(n.Error.Encode(int(job.Attempt), time.Time{}, worker))
		// Half of the room: job.discarded contains the error twice.
		shown = string(n.Error.EventErrorWithin((eventlog.MaxPayload - eventlog.PayloadRoom) / 2))
	}
	// The server's own failures name the scheduler; all others the worker that sent them, or the one that has the job.
	source := n.source
	if source == "" && worker != "" {
		if n.WorkerID == "" { // else Fail has recorded the beat
			s.workers.Beat(worker)
		}
		source = eventlog.WorkerSource(worker)
	}
	p.Ids = append(p.Ids, n.JobID)
	p.Workers = append(p.Workers, n.WorkerID)
	// The attempt that was read, not the one that was sent, which may be missing. The statement guards it.
	p.Attempts = append(p.Attempts, job.Attempt)
	p.StartedAt = append(p.StartedAt, job.StartedAt)
	p.DueOnly = append(p.DueOnly, n.dueOnly)
	p.Outcomes = append(p.Outcomes, string(state))
	p.Releases = append(p.Releases, outcome.Kind == retry.Release)
	p.DeadLetters = append(p.DeadLetters, outcome.DeadLetter)
	p.DelaysMs = append(p.DelaysMs, outcome.Delay.Milliseconds())
	p.Errors = append(p.Errors, stored)
	p.EventErrors = append(p.EventErrors, shown)
	p.Reasons = append(p.Reasons, n.reason)
	p.EventTypes = append(p.EventTypes, s.outcomeEvent(state))
	p.Sources = append(p.Sources, source)
	p.BlockedUntil = append(p.BlockedUntil, pg.Timestamp(n.Error.RateLimitUntil))
}

// failure collects the values that the decision depends on.
// Elapsed counts from the enqueue or the latest manual retry, by the clock of the database.
func (s *Store) failure(n nack, job *dbsqlc.JobListForFailRow, policy retry.Policy) retry.Failure {
	f := n.Error.Failure()
	f.Attempt, f.MaxAttempts, f.Policy, f.Requeue, f.Delay = int64(job.Attempt), job.MaxAttempts, policy, n.Requeue, n.Delay
	f.Elapsed = job.Now.Time.Sub(job.EnteredAt.Time)
	f.RunTimeout = s.config.DefaultTimeout
	if job.TimeoutMs.Valid {
		f.RunTimeout = time.Duration(job.TimeoutMs.Int64) * time.Millisecond
	}
	if job.TotalDueAt.Valid {
		// Zero would mean that there is none.
		f.TotalTimeout = max(time.Nanosecond, job.TotalDueAt.Time.Sub(job.EnteredAt.Time))
	}
	return f
}
