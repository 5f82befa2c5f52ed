package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// nack is a Nack of a worker, or a failure that the server has found.
type nack struct {
	job.Nack
	startedAt pgtype.Timestamptz // of the run that the server found; not valid: the current run
	// A heartbeat between the read and the statement has moved due_at then, and the job goes on.
	dueOnly bool // the job fails only if it is still overdue
	// It is for logs and statistics; clients see the error.
	reason string // of the internal event when the job becomes available again
	source string // of the events; "": the worker
}

// bytes is about the size of the error as it is stored.
// An entry of a backtrace counts 32 bytes, whatever its length: it decides only how many nacks share a statement.
func (n nack) bytes() int {
	return len(n.Error.Message) + len(n.Error.Details) + 32*len(n.Error.Backtrace)
}

// concerns reports whether a nack is about the run that the job is in. A job that was handed back and fetched again has the
// same attempt, and perhaps the same worker, so started_at is compared too.
// The worker is not compared here: JobFail does that, and refuse explains it.
func (n *nack) concerns(job *dbsqlc.JobListForFailRow) bool {
	return job.State == string(ojs.StateActive) && (n.Attempt < 0 || n.Attempt == job.Attempt) &&
		(!n.startedAt.Valid || n.startedAt.Time.Equal(job.StartedAt.Time))
}

// Fail moves an active job to retryable, discarded or, with Requeue, available or scheduled. A job that was cancelled during this
// run is returned with ojs.StateCancelled and no error; nothing has changed then.
//
// A retry, its delay and a dead letter are decided by package job/retry (docs/reference/retries.md, Failure). When it returns,
// the outcome is committed. Like an ack, a nack without worker and attempt is accepted for any run.
func (s *Store) Fail(ctx context.Context, n job.Nack) (*job.Record, error) {
	s.workers.Beat(n.WorkerID)
	return s.fail.do(ctx, nackOf(n))
}

// FailEach fails many jobs, each as if its nack were sent alone, in order. errs is nil if none failed.
func (s *Store) FailEach(ctx context.Context, nacks []job.Nack) (jobs []*job.Record, errs []error) {
	reqs := make([]nack, len(nacks))
	for i, n := range nacks {
		s.workers.Beat(n.WorkerID)
		reqs[i] = nackOf(n)
	}
	return s.fail.doEach(ctx, reqs)
}

// reason is that of a requeue; a nack that fails the job has its error instead.
func nackOf(n job.Nack) nack { return nack{Nack: n, reason: reasonRequeue} }

func nackedRun(n nack) Run { return Run{JobID: n.JobID, WorkerID: n.WorkerID, Attempt: n.Attempt} }

// flushFail reads the jobs, decides their outcomes and changes them. No lock is held while Go decides: all values that the
// decision depends on are fixed at enqueue, except attempt and started_at, and JobFail guards those two. A job that another
// worker has fetched meanwhile is therefore not changed.
//
// Sweeps, the reaper and the search for lost claims call it directly, beside the batcher: two of them may decide about a run at
// the same time. The second one finds another state, attempt or start, or a locked row, and its job is nil in the result. It does
// not call follow: its caller does, outside of flushes.
func (s *Store) flushFail(ctx context.Context, nacks []nack) ([]*job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids := make([][16]byte, len(nacks))
	for i, n := range nacks {
		ids[i] = n.JobID
	}
	// Without lock. A row that is locked until JobFail runs is skipped there, and its caller tries again.
	read, err := s.db.Q.JobListForFail(ctx, ids)
	if err != nil {
		return nil, err
	}
	jobs := make(map[[16]byte]*dbsqlc.JobListForFailRow, len(read))
	for i := range read {
		jobs[read[i].ID] = &read[i]
	}

	p := dbsqlc.JobFailParams{MaxErrors: maxErrorHistory, Node: s.commits.Node, FailedEventType: ojs.EventJobFailed, MaxSize: job.SizeOfEach(len(nacks))}
	for _, n := range nacks {
		job := jobs[n.JobID]
		if job == nil || !n.concerns(job) {
			continue
		}
		s.addFailure(ctx, &p, n, job)
	}
	if len(p.Ids) == 0 {
		return make([]*job.Record, len(nacks)), nil
	}
	var rows []dbsqlc.JobFailRow
	// No partition has to be made here: a failure writes no row of jobs_done, and those of the events are made 3 000 000 numbers
	// ahead.
	err = s.db.Write(ctx, func(conn *pgxpool.Conn) (err error) {
		rows, err = dbsqlc.New(conn).JobFail(ctx, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	failed := InOrder(len(nacks), func(i int) [16]byte { return nacks[i].JobID }, rows, func(r *dbsqlc.JobFailRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
	// Before afterFail, which wakes fetches: the failure is logged before the next start.
	s.emitFailed(ctx, failed, nacks, jobs)
	s.afterFail(ctx, rows)
	return failed, nil
}

// afterFail wakes fetches for jobs that are available again, schedules the end of backoffs, and wakes the calls that wait for the
// result of a job that is discarded now.
// It is also what follows a nack whose answer was lost (operation.settle); there nothing was emitted, because the row before the
// failure is gone.
func (s *Store) afterFail(ctx context.Context, rows []dbsqlc.JobFailRow) {
	leftActive(s, rows, func(r *dbsqlc.JobFailRow) string { return r.Queue })
	var a afterCommit
	for i, r := range rows {
		a.add(r.Queue, r.Lane, r.Priority, r.ReadySeq, r.Cron)
		a.due(r.DueAt, failedAt((*job.Record)(&rows[i])))
		if r.State == string(ojs.StateDiscarded) {
			s.awaiting.ended(r.ID)
		}
	}
	s.notify(ctx, a)
	if len(rows) > 0 {
		s.commits.Committed()
	}
}

// emitFailed makes the changes from the rows before and after the statement: the new row has lost its worker and its start. It does
// nothing if nobody subscribes to changes.
func (s *Store) emitFailed(ctx context.Context, failed []*job.Record, nacks []nack, read map[[16]byte]*dbsqlc.JobListForFailRow) {
	if !s.commits.Emitting() {
		return
	}
	failures := make([]failure, 0, len(failed))
	for i, job := range failed {
		if job != nil {
			was := read[job.ID]
			failures = append(failures, failure{
				job: job, nack: &nacks[i], eventType: s.outcomeEvent(ojs.JobState(job.State)), started: was.StartedAt,
				worker: cmp.Or(nacks[i].WorkerID, was.WorkerID.String),
			})
		}
	}
	eventlog.Emit(ctx, s.commits, failures, failChange)
}

// failedAt is when a job failed, by the clock of the database.
// JobFail stores no time of a failure that is retried, so it is computed from the end of the backoff.
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
