package queue

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

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
