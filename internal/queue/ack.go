package queue

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Complete moves an active job to completed. A job that was cancelled during this run is returned with
// ojs.StateCancelled and no error; nothing has changed then.
//
// A job that is not active is 409. So is one whose worker or attempt are not those of the ack, if they were sent. Acks that name
// neither are accepted for any run (docs/reference/retries.md, Late acks). When it returns, the commit is done and what follows
// in workflows and limits has been tried.
func (s *Store) Complete(ctx context.Context, ack job.Ack) (*job.Record, error) {
	// The ack itself is a sign of life, even if it is refused.
	s.workers.Beat(ack.WorkerID)
	return s.complete.do(ctx, ack)
}

// CompleteEach completes many jobs, each as if its ack were sent alone, in order. errs is nil if none failed.
func (s *Store) CompleteEach(ctx context.Context, acks []job.Ack) (jobs []*job.Record, errs []error) {
	for _, a := range acks {
		s.workers.Beat(a.WorkerID)
	}
	return s.complete.doEach(ctx, acks)
}

func ackedRun(a job.Ack) JobRun {
	return JobRun{JobID: a.JobID, WorkerID: a.WorkerID, Attempt: a.Attempt, Start: a.Start}
}

// flushComplete completes jobs in one statement. Those that another transaction has locked, and those that have reported progress, need
// more of them: few are. It returns the jobs in the order of the acks; nil for one that was not completed. Its caller finds out why
// (refuse).
//
// The statements are transactions of their own. If one fails after the first has committed, the callers of its jobs have no row: refuse
// finds the jobs active and unlocked, and answers ErrLocked, so they are tried again. It may run on several nodes for the same job: the
// DELETE of one finds the row, the other one gets no row. A repeated ack changes nothing.
func (s *Store) flushComplete(ctx context.Context, acks []job.Ack) ([]*job.Record, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	// It locks nothing beforehand, because that would cost every flush a fifth of its throughput. Its lock timeout is set by the statement
	// itself and ends with its transaction.
	var rows []job.Record
	p := s.completeParams(acks)
	err := s.db.WithPartitions(bounded, func() error {
		return s.db.Write(bounded, func(conn *pgxpool.Conn) (err error) {
			rows, err = completeJobs(bounded, dbsqlc.New(conn), &p)
			return err
		})
	})
	// IsTimeout is true for the lock timeout, and for the time limit of the whole flush, after which bounded has ended. Acks of locked jobs
	// have no row then. Their callers wait one by one (operation.retryLocked), so one locked job delays its flush by lockTimeout once.
	if pg.IsTimeout(err) && bounded.Err() == nil {
		ids := make([][16]byte, len(acks))
		for i, a := range acks {
			ids[i] = a.JobID
		}
		rows, err = s.completeSome(bounded, acks, false, func(q *dbsqlc.Queries) ([][16]byte, error) {
			return q.JobLockUnlocked(bounded, ids)
		})
	}
	if err != nil {
		return nil, err
	}
	if len(rows) < len(acks) {
		// What is left has reported progress, or is refused. A flush never has a job twice (its key), so ids tell which acks those are.
		completed := make(map[[16]byte]bool, len(rows))
		for i := range rows {
			completed[rows[i].ID] = true
		}
		rest := slices.DeleteFunc(slices.Clone(acks), func(a job.Ack) bool { return completed[a.JobID] })
		flush := dbsqlc.JobProgressFlushParams{Node: s.commits.Node}
		for _, a := range rest {
			flush.Ids, flush.Workers, flush.Attempts = append(flush.Ids, a.JobID), append(flush.Workers, a.WorkerID),
				append(flush.Attempts, a.Attempt)
		}
		// An event for the last report, if it had none; then the end.
		reported, err := s.completeSome(bounded, rest, true, func(q *dbsqlc.Queries) ([][16]byte, error) {
			return q.JobProgressFlush(bounded, flush)
		})
		switch {
		case err == nil:
			rows = append(rows, reported...)
		case len(rows) == 0 || pg.IsUnknown(err): // unknown: each caller is told what is true, see lookUpLost
			return nil, err
		default:
			s.logger.WarnContext(bounded, "jobs that have reported progress were not completed; their callers try again",
				slog.Int("jobs", len(rest)), slog.Any("error", err))
		}
	}
	s.afterComplete(ctx, rows)
	jobs := InOrder(len(acks), func(i int) [16]byte { return acks[i].JobID }, rows,
		func(r *job.Record) ([16]byte, *job.Record) { return r.ID, r })
	for i, j := range jobs {
		if acks[i].WorkerID == "" && j != nil { // else Complete has recorded the beat
			s.workers.Beat(j.WorkerID.String)
		}
	}
	return jobs, nil
}

// completeJobs returns the rows in any order; InOrder sorts them by the acks.
func completeJobs(ctx context.Context, q *dbsqlc.Queries, p *dbsqlc.JobCompleteParams) ([]job.Record, error) {
	rows, err := q.JobComplete(ctx, *p)
	jobs := make([]job.Record, len(rows))
	for i := range rows {
		jobs[i] = completedRecord(&rows[i])
	}
	return jobs, err
}

// completedRecord sets the columns that JobComplete leaves out, because they are the same for every completed job.
// A job that has reported progress is shown with 1 at its end, as the statement stores it.
func completedRecord(r *dbsqlc.JobCompleteRow) job.Record {
	if r.Progress.Valid {
		r.Progress.Float64 = 1
	}
	return job.Record{
		ID: r.ID, Type: r.Type, Queue: r.Queue, State: string(ojs.StateCompleted), Priority: r.Priority, Attempt: r.Attempt,
		MaxAttempts: r.MaxAttempts, CreatedAt: r.CreatedAt, EnqueuedAt: r.EnqueuedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		ScheduledAt: r.ScheduledAt, ExpiresAt: r.ExpiresAt, WorkerID: r.WorkerID, VisibilityMs: r.VisibilityMs, TimeoutMs: r.TimeoutMs,
		GraceMs: r.GraceMs, RetryDelayMs: r.RetryDelayMs, ResultTtlS: pgtype.Int8{Int64: r.ResultTtlS, Valid: true},
		PreviousState: pgtype.Text{String: string(ojs.StateActive), Valid: true}, ReEnqueuedAt: r.ReEnqueuedAt, ReplayCount: r.ReplayCount,
		TraceID: r.TraceID, Cron: r.Cron, WorkflowID: r.WorkflowID, UniqueKey: r.UniqueKey, Lane: r.Lane, LimitKey: r.LimitKey,
		Retry: r.Retry, Args: r.Args, Meta: r.Meta, Extra: r.Extra, Errors: r.Errors, PreviousErrors: r.PreviousErrors,
		Progress: r.Progress, ProgressMessage: r.ProgressMessage, ProgressData: r.ProgressData, ProgressAt: r.ProgressAt,
		ProgressSentAt: r.ProgressSentAt, Checkpoint: r.Checkpoint, CheckpointSeq: r.CheckpointSeq, CheckpointAt: r.CheckpointAt,
		Result: r.Result, Size: job.SizeColumn(r.Size),
	}
}

// completeSome completes, in one transaction, the jobs that pick chooses.
//
// It may run twice, if a partition of jobs_done is missing. pick locks its rows, so JobComplete waits for none of them.
func (s *Store) completeSome(ctx context.Context, acks []job.Ack, reported bool,
	pick func(q *dbsqlc.Queries) ([][16]byte, error)) (rows []job.Record, err error) {
	err = s.db.InPartitionedTx(ctx, func(tx pgx.Tx) error {
		rows = nil
		q := dbsqlc.New(tx)
		ids, err := pick(q)
		if err != nil || len(ids) == 0 {
			return err
		}
		p := s.completeParams(slices.DeleteFunc(slices.Clone(acks), func(a job.Ack) bool { return !slices.Contains(ids, a.JobID) }))
		p.Reported = reported
		rows, err = completeJobs(ctx, q, &p)
		return err
	})
	return rows, err
}

// completeParams sorts the acks by job, as JobComplete wants them. Most acks of a flush share a few workers and have no
// result, so each worker is sent once, and results only if there are any.
//
// The order of the ids is part of the contract of the statement: width_bucket finds the index of a row by a binary search.
func (s *Store) completeParams(acks []job.Ack) dbsqlc.JobCompleteParams {
	acks = slices.SortedFunc(slices.Values(acks), func(a, b job.Ack) int { return bytes.Compare(a.JobID[:], b.JobID[:]) })
	n := len(acks)
	p := dbsqlc.JobCompleteParams{
		Ids: make([][16]byte, n), Attempts: make([]int32, n), Owners: make([]int32, n), Results: [][]byte{}, EventData: [][]byte{},
		Starts: []pgtype.Timestamptz{},
		Node:   s.commits.Node, EventType: ojs.EventJobCompleted, LockTimeout: lockTimeout,
		DefaultResultTtlS: resultTTL, MaxWholeSize: job.MaxWholeSize(n),
	}
	if slices.ContainsFunc(acks, func(a job.Ack) bool { return a.Result != nil }) {
		p.Results, p.EventData = make([][]byte, n), make([][]byte, n)
	}
	if slices.ContainsFunc(acks, func(a job.Ack) bool { return a.Start.Valid }) {
		p.Starts = make([]pgtype.Timestamptz, n)
	}
	owners := make(map[string]int32, 1)
	for i, a := range acks {
		owner, known := owners[a.WorkerID]
		if !known {
			source := "" // the statement takes the worker that was stored at fetch
			if a.WorkerID != "" {
				source = eventlog.WorkerSource(a.WorkerID)
			}
			p.Workers, p.Sources = append(p.Workers, a.WorkerID), append(p.Sources, source)
			owner = int32(len(p.Workers)) // arrays in SQL begin at 1
			owners[a.WorkerID] = owner
		}
		p.Ids[i], p.Attempts[i], p.Owners[i] = a.JobID, a.Attempt, owner
		if a.Start.Valid {
			p.Starts[i] = a.Start
		}
		if a.Result != nil {
			p.Results[i], p.EventData[i] = a.Result, resultData(a.Result)
		}
	}
	return p
}

// resultData is the payload of job.completed beyond its columns. A result that does not fit is replaced by a flag: the event is sent to
// every subscriber and webhook, and whoever wants the result reads it (docs/reference/jobs.md, Results).
func resultData(result []byte) []byte {
	if len(result) > eventlog.MaxPayload-eventlog.PayloadRoom {
		return []byte(`{"result_truncated":true}`)
	}
	data := make([]byte, 0, len(result)+len(`{"result":}`))
	data = append(data, `{"result":`...)
	data = append(data, result...)
	return append(data, '}')
}

// afterComplete does what follows the commit. operation.lookUpLost calls it too, for an ack whose answer was lost: the flush has emitted
// nothing then.
func (s *Store) afterComplete(ctx context.Context, rows []job.Record) {
	eventlog.Emit(ctx, s.commits, rows, completeChange)
	var a afterCommit
	for i := range rows {
		a.add(recordChange(&rows[i]))
	}
	s.notify(ctx, a)
}

// InOrder matches rows to requests by id; a request without a row gets nil.
// Requests with the same id get the same pointer.
func InOrder[Row, Out any](n int, id func(i int) [16]byte, rows []Row, out func(*Row) ([16]byte, *Out)) []*Out {
	res := make([]*Out, n)
	if n == 1 && len(rows) == 1 {
		_, res[0] = out(&rows[0])
		return res
	}
	byID := make(map[[16]byte]*Out, len(rows))
	for i := range rows {
		id, o := out(&rows[i])
		byID[id] = o
	}
	for i := range res {
		res[i] = byID[id(i)]
	}
	return res
}

// nack is a Nack of a worker, or a failure that the server has found.
type nack struct {
	job.Nack
	startedAt pgtype.Timestamptz // of the run that the server found, or the lease token names; not valid: the current run
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

// Fail moves an active job to retryable, discarded or, with Requeue, available or scheduled. A job that was cancelled during this
// run is returned with ojs.StateCancelled and no error; nothing has changed then.
//
// A retry, its delay and a dead letter are decided by job.DecideFailure (docs/reference/retries.md, Failure). When it returns,
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

// nackOf has the reason of a requeue; a nack that fails the job has its error instead.
func nackOf(n job.Nack) nack { return nack{Nack: n, startedAt: n.Start, reason: reasonRequeue} }

func nackedRun(n nack) JobRun {
	return JobRun{JobID: n.JobID, WorkerID: n.WorkerID, Attempt: n.Attempt, Start: n.Start}
}

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

	p := dbsqlc.JobFailParams{MaxErrors: maxErrorHistory, Node: s.commits.Node, FailedEventType: ojs.EventJobFailed,
		MaxWholeSize: job.MaxWholeSize(len(nacks))}
	for _, n := range nacks {
		// The failure must be about the run that the job is in. A job that was handed back and fetched again has the same attempt, and
		// perhaps the same worker, so started_at is compared too. The worker is not: JobFail does that, and refuse explains it.
		j := jobs[n.JobID]
		if j != nil && j.State == string(ojs.StateActive) && (n.Attempt < 0 || n.Attempt == j.Attempt) &&
			(!n.startedAt.Valid || n.startedAt.Time.Equal(j.StartedAt.Time)) {
			s.addFailure(ctx, &p, n, j)
		}
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
	failed := InOrder(len(nacks), func(i int) [16]byte { return nacks[i].JobID }, rows,
		func(r *dbsqlc.JobFailRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
	// Before afterFail, which wakes fetches: the failure is logged before the next start. The changes are made from the rows before and
	// after the statement: the new row has lost its worker and its start.
	if s.commits.Emitting() {
		failures := make([]failure, 0, len(failed))
		for i, j := range failed {
			if j != nil {
				was := jobs[j.ID]
				failures = append(failures, failure{
					job: j, nack: &nacks[i], eventType: s.outcomeEvent(ojs.JobState(j.State)), started: was.StartedAt,
					worker: cmp.Or(nacks[i].WorkerID, was.WorkerID.String),
				})
			}
		}
		eventlog.Emit(ctx, s.commits, failures, failChange)
	}
	s.afterFail(ctx, rows)
	return failed, nil
}

// afterFail is also what follows a nack whose answer was lost (operation.lookUpLost); there nothing was emitted, because the row before the
// failure is gone.
func (s *Store) afterFail(ctx context.Context, rows []dbsqlc.JobFailRow) {
	var a afterCommit
	for i := range rows {
		c := recordChange((*job.Record)(&rows[i]))
		c.ran = true // the row of a job that will run again does not say so
		a.add(c)
	}
	s.notify(ctx, a)
}

// failedAt is when a job failed, by the clock of the database.
// JobFail stores no time of a failure that is retried, so it is computed from the end of the backoff.
func failedAt(j *job.Record) pgtype.Timestamptz {
	switch ojs.JobState(j.State) {
	case ojs.StateRetryable:
		failed := j.NextAttemptAt.Time.Add(-time.Duration(j.RetryDelayMs.Int64) * time.Millisecond)
		return pgtype.Timestamptz{Time: failed, Valid: true}
	case ojs.StateDiscarded:
		return j.FinishedAt
	}
	return j.EnqueuedAt
}

// addFailure decides the outcome of a failure and adds it to the statement.
//
// It sends nothing and may run for a job that JobFail then leaves out. The order of the appends is that of the arrays of the
// statement, one element per failure.
func (s *Store) addFailure(ctx context.Context, p *dbsqlc.JobFailParams, n nack, row *dbsqlc.JobListForFailRow) {
	policy, err := job.ParseStoredRetry(row.Retry)
	if err != nil { // one invalid policy must not fail the other jobs of the statement
		s.logger.WarnContext(ctx, "job has an invalid retry policy, the default policy applies", "job_id", spec.FormatID(n.JobID), "error",
			err)
		n.Error.PolicyError = err.Error()
	}
	failure := n.Error.Failure()
	failure.Attempt, failure.MaxAttempts, failure.Policy, failure.Requeue, failure.Delay = int64(row.Attempt), row.MaxAttempts, policy,
		n.Requeue, n.Delay
	failure.Elapsed = row.Now.Time.Sub(row.EnteredAt.Time) // since the enqueue or the latest manual retry, by the clock of the database
	failure.RunTimeout = s.config.Jobs.Timeout
	if row.TimeoutMs.Valid {
		failure.RunTimeout = time.Duration(row.TimeoutMs.Int64) * time.Millisecond
	}
	if row.TotalDueAt.Valid { // zero would mean that there is none
		failure.TotalTimeout = max(time.Nanosecond, row.TotalDueAt.Time.Sub(row.EnteredAt.Time))
	}
	outcome := job.DecideFailure(failure)
	state := ojs.StateRetryable
	switch outcome.Kind {
	case job.FailureDiscard:
		state = ojs.StateDiscarded
	// Only a release has a delay: a lost reservation is fetched again at once.
	case job.FailureRelease, job.FailureLost:
		state = ojs.StateAvailable
		if outcome.Delay > 0 {
			state = ojs.StateScheduled
		}
	}
	worker := cmp.Or(n.WorkerID, row.WorkerID.String)
	stored, shown := `{}`, `{}`
	// A job that is handed back has no error: the empty objects are not read.
	if !n.Requeue {
		stored = string(n.Error.Encode(int(row.Attempt), time.Time{}, worker))
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
	p.Attempts = append(p.Attempts, row.Attempt)
	p.StartedAt = append(p.StartedAt, row.StartedAt)
	p.DueOnly = append(p.DueOnly, n.dueOnly)
	p.Outcomes = append(p.Outcomes, string(state))
	p.Releases = append(p.Releases, outcome.Kind == job.FailureRelease)
	p.DeadLetters = append(p.DeadLetters, outcome.DeadLetter)
	p.DelaysMs = append(p.DelaysMs, outcome.Delay.Milliseconds())
	p.Errors = append(p.Errors, stored)
	p.EventErrors = append(p.EventErrors, shown)
	p.Reasons = append(p.Reasons, n.reason)
	p.EventTypes = append(p.EventTypes, s.outcomeEvent(state))
	p.Sources = append(p.Sources, source)
	p.BlockedUntil = append(p.BlockedUntil, pg.Timestamp(n.Error.RateLimitUntil))
}

// Cancel is a request to stop jobs for good (docs/reference/http.md, Cancel).
type Cancel struct {
	By     string // shown as cancelled_by
	Reason string // "": none
}

// cancellation is a Cancel of one job.
type cancellation struct {
	id   [16]byte
	data []byte // payload of the event beyond its columns
}

// Cancel moves a job from any live state to cancelled; PreviousState of the result is the state that it left.
//
// A job that has ended is 409, also if it is cancelled already. The worker of an active job is not interrupted: it learns of the
// cancellation from its next heartbeat, and its ack is answered with the cancelled job (docs/reference/retries.md, Late acks).
func (s *Store) Cancel(ctx context.Context, id [16]byte, c Cancel) (*job.Record, error) {
	return s.cancel.do(ctx, cancellation{id, c.eventData()})
}

func cancelledRun(c cancellation) JobRun { return JobRun{JobID: c.id, cancels: true} }

// eventData is the data of the event as JSON, made once per request: the statement only stores it.
func (c Cancel) eventData() []byte {
	data, _ := jsontext.AppendQuote([]byte(`{"cancelled_by":`), c.By) // fails only for invalid UTF-8, which decoding refuses
	if c.Reason != "" {
		data, _ = jsontext.AppendQuote(append(data, `,"reason":`...), c.Reason)
	}
	return append(data, '}')
}

// flushCancel cancels the jobs that no other transaction has locked. A bulk cancel, which shares its statement with no other caller, waits
// for locks instead. It returns the jobs in the order of the requests; nil for one that is locked, unknown or not live. The caller finds
// out which (JobRun.Refused).
func (s *Store) flushCancel(ctx context.Context, cs []cancellation) ([]*job.Record, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobCancelRow
	// Both statements are one transaction: what JobLockUnlocked has locked stays locked until JobCancel has moved it.
	err := s.db.InPartitionedTx(bounded, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		ids := make([][16]byte, len(cs))
		for i, c := range cs {
			ids[i] = c.id
		}
		unlocked, err := q.JobLockUnlocked(bounded, ids)
		if err != nil || len(unlocked) == 0 {
			return err
		}
		part := slices.DeleteFunc(slices.Clone(cs), func(c cancellation) bool { return !slices.Contains(unlocked, c.id) })
		rows, err = s.cancelRows(bounded, q, part, job.LiveStates)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.afterCancel(ctx, rows)
	return InOrder(len(cs), func(i int) [16]byte { return cs[i].id }, rows,
		func(r *dbsqlc.JobCancelRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) }), nil
}

// afterCancel leaves what follows in workflows and limits to operation.do, outside of the flush.
func (s *Store) afterCancel(ctx context.Context, rows []dbsqlc.JobCancelRow) {
	eventlog.Emit(ctx, s.commits, rows, cancelChange)
	var a afterCommit
	for i := range rows {
		a.add(recordChange((*job.Record)(&rows[i])))
	}
	s.notify(ctx, a)
}

// cancelledRecords are the jobs that a statement has cancelled.
func cancelledRecords(rows []dbsqlc.JobCancelRow) []*job.Record {
	jobs := make([]*job.Record, len(rows))
	for i := range rows {
		jobs[i] = (*job.Record)(&rows[i])
	}
	return jobs
}

// cancelRows waits for rows that other transactions have locked, unless its caller has locked all of them.
func (s *Store) cancelRows(ctx context.Context, q *dbsqlc.Queries, cs []cancellation, states []ojs.JobState) ([]dbsqlc.JobCancelRow,
	error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return q.JobCancel(ctx, s.cancelParams(cs, states, "api"))
}

// cancelParams sorts the cancellations by job, because JobCancel finds the data of a row by a binary search in the ids. Unsorted, a job
// would get the data of another one.
func (s *Store) cancelParams(cs []cancellation, states []ojs.JobState, source string) dbsqlc.JobCancelParams {
	cs = slices.SortedFunc(slices.Values(cs), func(a, b cancellation) int { return bytes.Compare(a.id[:], b.id[:]) })
	p := dbsqlc.JobCancelParams{States: texts(states), Source: source, Node: s.commits.Node, EventType: ojs.EventJobCancelled,
		MaxWholeSize: job.MaxWholeSize(len(cs))}
	for _, c := range cs {
		p.Ids = append(p.Ids, c.id)
		p.EventData = append(p.EventData, c.data)
	}
	return p
}

// Statements guard state, owner and attempt in their WHERE clause, so a refused request only has no row in the result. The
// functions of this file read the job once more to choose the error.

// JobRun names the run of a job that a request is about, as the client described it.
type JobRun struct {
	JobID    [16]byte
	WorkerID string             // "": not sent, so ownership is not checked
	Attempt  int32              // -1: not sent, so the attempt is not checked
	cancels  bool               // the request is a cancel, which any live state accepts
	Start    pgtype.Timestamptz // not valid: not sent, so it is not checked
}

// Began reports whether the run may be the one that has begun at that time. It may if the request names no start.
func (r JobRun) Began(start pgtype.Timestamptz) bool {
	return !r.Start.Valid || start.Valid && r.Start.Time.Equal(start.Time)
}

// Owns reports whether the run may belong to the owner of the job. It may if the request or the job names no worker.
// A job that was fetched without a name has no owner, and anyone may end it (docs/reference/http.md, Ack).
func (r JobRun) Owns(owner pgtype.Text) bool {
	return r.WorkerID == "" || !owner.Valid || owner.String == r.WorkerID
}

// refuse returns why the request had no effect.
// It may find a newer state than the one because of which the statement left the job out. The error then describes that state,
// which is as true for the client.
func (s *Store) refuse(ctx context.Context, r JobRun) (*job.Record, error) {
	stored, err := s.Get(ctx, r.JobID)
	if err != nil {
		return nil, err
	}
	return r.Refused(stored)
}

// refuseMissing does refuse for every request without a job, with one statement for all. failed may be nil, and so are the
// errors it returns if there is none.
// A request with an error keeps it: it was not refused, and its job may have changed.
func (s *Store) refuseMissing(ctx context.Context, jobs []*job.Record, failed []error, runs []JobRun) ([]*job.Record, []error) {
	var missing [][16]byte
	for i, j := range jobs {
		if j == nil && (failed == nil || failed[i] == nil) {
			missing = append(missing, runs[i].JobID)
		}
	}
	if missing == nil && failed == nil {
		return jobs, nil
	}
	errs := make([]error, len(jobs))
	stored, readErr := s.getEach(ctx, missing)
	for i, j := range jobs {
		switch {
		case failed != nil && failed[i] != nil:
			errs[i] = pg.ClientError(failed[i])
		case j != nil:
		case readErr != nil:
			errs[i] = readErr
		default:
			jobs[i], errs[i] = runs[i].Refused(stored[runs[i].JobID])
		}
	}
	return jobs, errs
}

// Refused chooses the error for a job that the statement did not change: 404 or a conflict (docs/reference/jobs.md, Allowed
// operations). If the job was cancelled during this run, it returns the job and no error.
func (r JobRun) Refused(j *job.Record) (*job.Record, error) {
	id := spec.FormatID(r.JobID)
	switch {
	case j == nil:
		return nil, spec.NotFound("job", id)
	// The statement takes every live job, so it can only have been locked.
	case r.cancels && !ojs.JobState(j.State).Terminal():
		return nil, ErrLocked
	case r.cancels:
		return nil, spec.Conflict(id, ojs.JobState(j.State), job.LiveStates...)
	}
	owned := r.Owns(j.WorkerID)
	current := (r.Attempt < 0 || r.Attempt == j.Attempt) && r.Began(j.StartedAt)
	switch {
	case j.State == string(ojs.StateCancelled) && j.PreviousState.String == string(ojs.StateActive) && owned && current:
		return j, nil
	case j.State == string(ojs.StateActive) && !owned:
		return nil, spec.NotOwner(id, r.WorkerID, j.WorkerID.String)
	case j.State == string(ojs.StateActive) && !r.Began(j.StartedAt):
		return nil, spec.StaleLease(id, int64(j.Attempt))
	case j.State == string(ojs.StateActive) && !current:
		return nil, spec.StaleAttempt(id, int64(r.Attempt), int64(j.Attempt))
	case j.State == string(ojs.StateActive):
		return nil, ErrLocked
	}
	return nil, spec.Conflict(id, ojs.JobState(j.State), ojs.StateActive)
}

// handBackTimeout bounds the return of jobs. The request that claimed them may be cancelled, so its context does not bound it.
// After it the jobs wait for their leases, 30 s by default, so there is no point in trying for long.
const handBackTimeout = 5 * time.Second

// HandBack returns jobs that were claimed and cannot be delivered, without counting the attempt. A job for which this fails
// becomes available when its lease ends.
// The API layers and package pool call it for jobs whose client has gone, or that do not fit into an answer. It is safe for jobs
// that were acked, failed or lost meanwhile: they are refused, which is logged.
func (s *Store) HandBack(ctx context.Context, jobs []*job.Record) {
	if len(jobs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handBackTimeout)
	defer cancel()
	nacks := make([]job.Nack, len(jobs))
	for i, j := range jobs {
		// Worker and attempt are sent, so that a run of another worker, or a later attempt, is left alone.
		nacks[i] = job.Nack{JobID: j.ID, WorkerID: j.WorkerID.String, Attempt: j.Attempt, Requeue: true}
	}
	_, errs := s.FailEach(ctx, nacks)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		s.logger.WarnContext(ctx, "undelivered job was not handed back; it becomes available when its lease ends",
			slog.String("category", "worker"), slog.Group("ojs", "job_id", spec.FormatID(jobs[i].ID)), slog.Any("error", errs[i]))
	}
}

// Activate moves a pending job to available.
// Any other state is 409 (docs/reference/jobs.md, Allowed operations). Of two calls at once one succeeds, and the other one waits
// for its row and is refused.
//
// It is not batched: activations are rare, and unlike acks they wait for a locked row, up to the statement timeout, which callers
// of a flush must not share.
func (s *Store) Activate(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // fetches are woken even if the client hangs up
	defer cancel()
	// The statement is its own transaction. An error of the connection leaves the outcome unknown: WriteError says 504 and not
	// 503, so that the client looks before it repeats the call.
	rows, err := s.db.Q.JobActivate(ctx, dbsqlc.JobActivateParams{Ids: [][16]byte{id}, Node: s.commits.Node,
		EventType: ojs.EventJobEnqueued})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if len(rows) == 1 {
		eventlog.Emit(ctx, s.commits, rows, activateChange)
		activated := (*job.Record)(&rows[0])
		var a afterCommit
		// A job of a serial cron or with a limit key has no ready_seq yet: the cron or package limit gives it one.
		a.add(recordChange(activated))
		s.notify(ctx, a)
		s.followRecords(ctx, []*job.Record{activated})
		return activated, nil
	}
	// No row: the job is unknown or in another state. This read is a later snapshot, so the state that it shows may be newer than
	// the one that refused the call.
	stored, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return nil, spec.Conflict(spec.FormatID(id), ojs.JobState(stored.State), ojs.StatePending)
}
