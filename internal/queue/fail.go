package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/ojs"
)

// nack is what a worker reported, or a failure that a sweep found.
type nack struct {
	job.Nack
	startedAt pgtype.Timestamptz // of the run that the sweep found; not valid: the present one
	dueOnly   bool               // only if the job is still overdue
	reason    string             // of the gap row when the job goes back to available
	source    string             // "": the worker's
}

// means reports whether a nack is about the run that was looked at. A job that was handed back has the same attempt again,
// and perhaps the same worker.
func (n *nack) means(job *dbsqlc.JobListForFailRow) bool {
	return job.State == string(ojs.StateActive) && (n.Attempt < 0 || n.Attempt == job.Attempt) &&
		(!n.startedAt.Valid || n.startedAt.Time.Equal(job.StartedAt.Time))
}

// Fail moves an active job to retryable, discarded or, with Requeue, available. A job cancelled while this worker held
// it is returned with ojs.StateCancelled and no error; nothing has changed then.
func (s *Store) Fail(ctx context.Context, n job.Nack) (*job.Record, error) {
	s.workers.Beat(n.WorkerID)
	return settle(ctx, s, s.fail, reported(n), holderOf(n))
}

// FailEach is Fail for many, each as if sent alone, in order; errs is nil if none failed.
func (s *Store) FailEach(ctx context.Context, nacks []job.Nack) ([]*job.Record, []error) {
	reqs, holders := make([]nack, len(nacks)), make([]Holder, len(nacks))
	for i, n := range nacks {
		s.workers.Beat(n.WorkerID)
		reqs[i], holders[i] = reported(n), holderOf(n)
	}
	return settleEach(ctx, s, s.fail, reqs, holders)
}

func holderOf(n job.Nack) Holder {
	return Holder{JobID: n.JobID, WorkerID: n.WorkerID, Attempt: n.Attempt}
}

func reported(n job.Nack) nack { return nack{Nack: n, reason: "requeue"} }

// flushFail looks, decides and changes. What decides is fixed at enqueue except attempt and started_at, which the change
// guards: no lock is held while Go computes backoffs, and a job that was lost and fetched again meanwhile is left alone.
func (s *Store) flushFail(ctx context.Context, nacks []nack) ([]*job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids := make([][16]byte, len(nacks))
	for i, n := range nacks {
		ids[i] = n.JobID
	}
	looked, err := s.db.Q.JobListForFail(ctx, ids)
	if err != nil {
		return nil, err
	}
	jobs := make(map[[16]byte]*dbsqlc.JobListForFailRow, len(looked))
	for i := range looked {
		jobs[looked[i].ID] = &looked[i]
	}

	p := dbsqlc.JobFailParams{MaxErrors: maxErrorHistory, Node: s.commits.Node, Loud: s.commits.EnqueuedOnRequeue}
	for _, n := range nacks {
		job := jobs[n.JobID]
		if job == nil || !n.means(job) {
			continue
		}
		s.addFailure(ctx, &p, n, job)
	}
	if len(p.Ids) == 0 {
		return make([]*job.Record, len(nacks)), nil
	}
	rows, err := s.db.Q.JobFail(ctx, p)
	if err != nil {
		return nil, err
	}
	failed := InOrder(len(nacks), func(i int) [16]byte { return nacks[i].JobID }, rows, func(r *dbsqlc.JobFailRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
	s.tellFailed(ctx, failed, nacks, jobs)
	s.afterFail(ctx, rows)
	return failed, nil
}

func (s *Store) addFailure(ctx context.Context, p *dbsqlc.JobFailParams, n nack, job *dbsqlc.JobListForFailRow) {
	policy, err := retry.Decode(job.Retry)
	if err != nil { // a producer's mistake must not fail the other jobs of the statement
		s.logger.WarnContext(ctx, "job has an invalid retry policy, the default policy applies", "job_id", ojs.FormatID(n.JobID), "error", err)
		n.Error.PolicyError = err.Error()
	}
	outcome := retry.Decide(s.failure(n, job, policy))
	state := ojs.StateRetryable
	switch outcome.Kind {
	case retry.Discard:
		state = ojs.StateDiscarded
	case retry.Release, retry.LoseToAvailable:
		state = ojs.StateAvailable
	}
	worker := n.WorkerID
	if worker == "" {
		worker = job.WorkerID.String
	}
	stored, shown := `{}`, `{}`
	if !n.Requeue {
		stored = string(n.Error.Encode(int(job.Attempt), time.Time{}, worker))
		// job.discarded carries it twice.
		shown = string(n.Error.EventErrorWithin((eventlog.MaxPayload - eventlog.PayloadRoom) / 2))
	}
	source := n.source
	if source == "" && worker != "" {
		if n.WorkerID == "" { // else its caller has noted it
			s.workers.Beat(worker)
		}
		source = eventlog.WorkerSource(worker)
	}
	p.Ids = append(p.Ids, n.JobID)
	p.Workers = append(p.Workers, n.WorkerID)
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
	p.Sources = append(p.Sources, source)
}

func (s *Store) failure(n nack, job *dbsqlc.JobListForFailRow, policy retry.Policy) retry.Failure {
	f := n.Error.Failure()
	f.Attempt, f.MaxAttempts, f.Policy, f.Requeue = int64(job.Attempt), job.MaxAttempts, policy, n.Requeue
	f.Elapsed = job.Now.Time.Sub(job.EnteredAt.Time)
	f.RunTimeout = s.config.DefaultTimeout
	if job.TimeoutMs.Valid {
		f.RunTimeout = time.Duration(job.TimeoutMs.Int64) * time.Millisecond
	}
	if job.TotalDueAt.Valid {
		f.TotalTimeout = max(time.Nanosecond, job.TotalDueAt.Time.Sub(job.EnteredAt.Time))
	}
	return f
}

func (s *Store) afterFail(ctx context.Context, rows []dbsqlc.JobFailRow) {
	var m afterCommit
	for _, r := range rows {
		m.add(r.Queue, r.Priority, r.ReadySeq, r.Cron)
		if r.State == string(ojs.StateDiscarded) {
			s.endings.ended(r.ID)
		}
		if r.DueAt.Valid {
			s.timer.Schedule(r.DueAt.Time.Sub(failedAt((*job.Record)(&r)).Time))
		}
	}
	s.notify(ctx, m)
	if len(rows) > 0 {
		s.commits.Committed()
	}
}

func (s *Store) tellFailed(ctx context.Context, failed []*job.Record, nacks []nack, looked map[[16]byte]*dbsqlc.JobListForFailRow) {
	if !s.commits.Emitting() {
		return
	}
	failures := make([]failure, 0, len(failed))
	for i, job := range failed {
		if job != nil {
			was := looked[job.ID]
			failures = append(failures, failure{job, &nacks[i], was.StartedAt, cmp.Or(nacks[i].WorkerID, was.WorkerID.String)})
		}
	}
	eventlog.Emit(ctx, s.commits, failures, failChange)
}

// failedAt is when a job failed, by the database's clock.
func failedAt(job *job.Record) pgtype.Timestamptz {
	switch ojs.JobState(job.State) {
	case ojs.StateRetryable:
		failed := job.NextAttemptAt.Time.Add(-time.Duration(job.RetryDelayMs.Int64) * time.Millisecond)
		return pgtype.Timestamptz{Time: failed, Valid: true}
	case ojs.StateDiscarded:
		return job.FinishedAt
	}
	return job.EnqueuedAt
}
