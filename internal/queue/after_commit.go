package queue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// afterCommit collects what must happen after the commit of changed jobs.
// A statement fills it from its rows, and notify uses it once. It never decides anything: what is lost with a node that stops
// between the commit and notify is found again by the relay, rescans and sweeps.
type afterCommit struct {
	places []Place
	crons  []string // crons of which a job has moved
	// The time until the first due_at, by the clock of the database. The timer counts it with the monotonic clock of this
	// machine.
	earliest time.Duration
	timed    bool // earliest is set
}

// add records a job. An available job without ready_seq waits for another job of its cron or for a limit, so no fetch can find it.
func (a *afterCommit) add(queue, lane string, priority int16, seq pgtype.Int8, cron pgtype.Text) {
	if seq.Valid {
		a.places = append(a.places, Place{queue, lane, priority, seq.Int64})
	}
	if cron.Valid && !slices.Contains(a.crons, cron.String) {
		a.crons = append(a.crons, cron.String)
	}
}

// due records when a job is due.
// Both times are of the database, so the clock of this machine has no part in it.
func (a *afterCommit) due(at, now pgtype.Timestamptz) {
	if !at.Valid {
		return
	}
	if in := max(0, at.Time.Sub(now.Time)); !a.timed || in < a.earliest {
		a.earliest, a.timed = in, true
	}
}

// notify wakes fetches, schedules the timer and lets crons release the jobs that waited for the changed ones.
// Fetches come first: they are what somebody waits for.
func (s *Store) notify(ctx context.Context, a afterCommit) {
	s.NotifyAvailable(a.places)
	s.releaseCrons(ctx, a.crons)
	if a.timed {
		s.timer.Schedule(a.earliest)
	}
}

// namesOf collects the crons, or the limit keys, of changed jobs.
func namesOf[Row any](rows []Row, of func(*Row) pgtype.Text) []string {
	return valuesOf(rows, func(r *Row) (string, bool) { name := of(r); return name.String, name.Valid })
}

// workflowsOf collects the roots of the workflows of changed jobs.
func workflowsOf[Row any](rows []Row, root func(*Row) pgtype.UUID) [][16]byte {
	return valuesOf(rows, func(r *Row) ([16]byte, bool) { id := root(r); return id.Bytes, id.Valid })
}

// valuesOf collects what rows have, each once; nil for most statements. A linear search is enough: a statement has at most 1 000 rows,
// and nearly none has a value.
func valuesOf[Row any, Value comparable](rows []Row, of func(*Row) (Value, bool)) (values []Value) {
	for i := range rows {
		if v, there := of(&rows[i]); there && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// releaseCrons tells package cron, which is above this one, that jobs of these crons have moved: one that waits behind them may be
// fetched now.
func (s *Store) releaseCrons(ctx context.Context, crons []string) {
	if len(crons) > 0 {
		s.hooks.CronJobs(ctx, crons)
	}
}

// The type of an event is decided in one place: in Go, if the caller knows the outcome of the transition, and the statement
// stores it; in SQL, if the statement decides the outcome (insert, promotion, retry), and it returns the type. The functions
// of this file only convert rows to changes.

// Reasons of internal events.
// They are in the data of the event too, for the relay and for the history of a job.
const (
	reasonRequeue = "requeue"
	reasonDeleted = "deleted"
	reasonMoved   = "moved"
	reasonRetry   = "retry"

	reasonRateLimit = "rate_limit"
)

// outcomeEvent is the event of a failure or requeue after which the job is in the state.
// A job that goes back to available has an internal event, or the public job.enqueued if the operator wants the extension
// (RequeueEvent). Scheduled is reached only by a requeue with a delay.
func (s *Store) outcomeEvent(state ojs.JobState) string {
	switch state {
	case ojs.StateRetryable:
		return ojs.EventJobRetrying
	case ojs.StateDiscarded:
		return ojs.EventJobDiscarded
	case ojs.StateScheduled:
		return eventlog.StateChanged
	}
	return s.commits.RequeueEvent
}

// changeOf is a change of a job of which the statement returned all columns.
// It points to the record, which subscribers read at once and must not keep.
func changeOf(eventType string, j *job.Record, at pgtype.Timestamptz) eventlog.Change {
	return eventlog.Change{
		Type: eventType, JobID: j.ID, JobType: j.Type, Queue: j.Queue, Attempt: j.Attempt, WorkerID: j.WorkerID.String,
		To: j.State, At: at.Time, Job: j,
	}
}

// since sets the duration of a change that began at start.
// A job that was never started, or never available, has no duration.
func since(c eventlog.Change, start pgtype.Timestamptz) eventlog.Change {
	if start.Valid {
		c.Took, c.Timed = c.At.Sub(start.Time), true
	}
	return c
}

// insertChange leaves out a job whose id was taken: nothing was written for it.
//
// The order is that of the events in the transaction: what was replaced ends before the new job exists, and what was dropped is
// listed behind it.
func insertChange(changes []eventlog.Change, e *enqueued) []eventlog.Change {
	for _, old := range e.replaced {
		changes = cancelChange(changes, (*dbsqlc.JobCancelRow)(old))
	}
	if e.job != nil {
		changes = append(changes, changeOf(e.eventType, e.job, e.job.CreatedAt))
	}
	for i := range e.dropped {
		changes = discardChange(changes, &e.dropped[i])
	}
	return changes
}

// discardChange is the end of a job that the server has discarded while it waited.
func discardChange(changes []eventlog.Change, r *dbsqlc.JobDiscardWaitingRow) []eventlog.Change {
	return append(changes, eventlog.Change{
		Type: ojs.EventJobDiscarded, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: string(ojs.StateDiscarded),
		At: r.Now.Time, Reason: job.Overflow,
	})
}

// fetchChange has the time in the queue as its duration.
func fetchChange(changes []eventlog.Change, r *job.Record) []eventlog.Change {
	c := since(changeOf(ojs.EventJobStarted, r, r.StartedAt), r.EnqueuedAt)
	c.From = string(ojs.StateAvailable)
	return append(changes, c)
}

// progressChange is the event of a report that had none until the run ended; see JobComplete.
func progressChange(changes []eventlog.Change, ended eventlog.Change) []eventlog.Change {
	if !ended.Job.ProgressUnsent() {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: ojs.EventJobProgress, JobID: ended.JobID, JobType: ended.JobType, Queue: ended.Queue, Attempt: ended.Attempt,
		WorkerID: ended.WorkerID, At: ended.At,
	})
}

// completeChange has the event of an unsent report before that of the end, as the statement writes them.
func completeChange(changes []eventlog.Change, r *job.Record) []eventlog.Change {
	c := since(changeOf(ojs.EventJobCompleted, r, r.FinishedAt), r.StartedAt)
	c.From = string(ojs.StateActive)
	return append(progressChange(changes, c), c)
}

// Only a job that ran can have an unsent report.
func cancelChange(changes []eventlog.Change, r *dbsqlc.JobCancelRow) []eventlog.Change {
	c := changeOf(ojs.EventJobCancelled, (*job.Record)(r), r.FinishedAt)
	c.From = r.PreviousState.String
	if c.From == string(ojs.StateActive) {
		changes = progressChange(changes, c)
	}
	return append(changes, c)
}

// A pending job has had no public event before, so its activation is job.enqueued.
func activateChange(changes []eventlog.Change, r *dbsqlc.JobActivateRow) []eventlog.Change {
	c := changeOf(ojs.EventJobEnqueued, (*job.Record)(r), r.EnqueuedAt)
	c.From = string(ojs.StatePending)
	return append(changes, c)
}

// failure is a failed attempt, or a job that was handed back, with the values that the new row has lost.
type failure struct {
	job       *job.Record
	nack      *nack
	eventType string // of the change of state; a failed attempt also emits job.failed
	started   pgtype.Timestamptz
	worker    string
}

// failChange has the changes in the order of the events that JobFail writes: the last report of progress, the failed attempt, the
// change of state. A job that was handed back has no failed attempt.
func failChange(changes []eventlog.Change, f *failure) []eventlog.Change {
	c := changeOf(f.eventType, f.job, failedAt(f.job))
	c.WorkerID, c.From = f.worker, string(ojs.StateActive)
	changes = progressChange(changes, c)
	if !f.nack.Requeue {
		c.Error = &f.nack.Error
		failed := since(c, f.started)
		failed.Type, failed.From, failed.To, failed.Reason = ojs.EventJobFailed, "", "", f.nack.Error.ServerMade
		changes = append(changes, failed)
	}
	if f.nack.Requeue || f.job.State == string(ojs.StateAvailable) {
		c.Reason, c.Started = f.nack.reason, f.started.Time
	} else {
		c.Reason = f.nack.Error.ServerMade
	}
	return append(changes, c)
}

// promoteChange leaves out a job that still waits for another job of its cron: no event was written for it.
func promoteChange(changes []eventlog.Change, r *dbsqlc.JobPromoteDueRow) []eventlog.Change {
	if r.Queued.Bool {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: r.EventType, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: r.State,
		At: r.Now.Time, Reason: r.Reason,
	})
}

// JobRetry writes the same rows in the same order. A move must not look like an end to subscribers, hence the empty To and From.
func retryChange(changes []eventlog.Change, r *dbsqlc.JobRetryRow) []eventlog.Change {
	c := eventlog.Change{
		Type: r.EventType, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: string(ojs.StateAvailable),
		At: r.EnqueuedAt.Time,
	}
	if r.Was == string(ojs.StateRetryable) {
		c.Reason = reasonRetry
	}
	if r.OldQueue != r.Queue { // two more changes move the job from the counts of one queue to those of the other
		left, entered := c, c
		left.Type, left.Queue, left.To, left.Reason = eventlog.StateChanged, r.OldQueue, "", reasonMoved
		entered.Type, entered.From, entered.To, entered.Reason = eventlog.StateChanged, "", r.Was, reasonMoved
		changes = append(changes, left, entered)
	}
	return append(changes, c)
}

// priorityChange leaves out a job whose priority stays the same: no event was written for it.
func priorityChange(changes []eventlog.Change, r *dbsqlc.JobSetPriorityRow) []eventlog.Change {
	if r.Previous == r.Priority {
		return changes
	}
	return append(changes, eventlog.Change{Type: eventlog.PriorityChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, At: r.Now.Time})
}

// deleteChange takes the job out of the counts of its queue. There is no public event for it.
func deleteChange(changes []eventlog.Change, r *dbsqlc.JobDeleteRow) []eventlog.Change {
	return append(changes, eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: reasonDeleted,
	})
}

// A statement that ends or revives a job of a workflow records the change in ojs.workflow_pending. After its commit the workflow
// follows, before the caller is answered, but never inside of a flush that callers share: the others would wait for it.

// advance lets the workflows of ended jobs follow.
// It returns when the next steps are inserted: the client of an ack can fetch them with its next call.
func (s *Store) advance(ctx context.Context, roots [][16]byte) {
	if len(roots) > 0 {
		s.hooks.WorkflowJobs(ctx, roots)
	}
}

// endedWorkflows are the roots of those of the jobs that have ended.
// A job that is retried does not move its workflow.
func endedWorkflows(jobs []*job.Record) [][16]byte {
	return workflowsOf(jobs, func(j **job.Record) (root pgtype.UUID) {
		if *j != nil && ojs.JobState((*j).State).Terminal() {
			root = (*j).WorkflowID
		}
		return root
	})
}
