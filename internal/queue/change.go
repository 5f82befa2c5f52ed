package queue

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// StateChanged is the type of gap rows.

// changeOf begins a change of a job that a statement returned whole.
func changeOf(kind string, job *job.Record, at pgtype.Timestamptz) eventlog.Change {
	return eventlog.Change{
		Type: kind, JobID: job.ID, JobType: job.Type, Queue: job.Queue, Attempt: job.Attempt, WorkerID: job.WorkerID.String,
		To: job.State, At: at.Time, Job: job,
	}
}

// since adds how long it took.
func since(c eventlog.Change, start pgtype.Timestamptz) eventlog.Change {
	if start.Valid {
		c.Took, c.Timed = c.At.Sub(start.Time), true
	}
	return c
}

func insertChange(changes []eventlog.Change, e *enqueued) []eventlog.Change {
	if e.job == nil {
		return changes
	}
	kind := eventlog.StateChanged
	switch ojs.JobState(e.job.State) {
	case ojs.StateAvailable:
		kind = "job.enqueued"
	case ojs.StateScheduled:
		kind = "job.scheduled"
	}
	return append(changes, changeOf(kind, e.job, e.job.CreatedAt))
}

func fetchChange(changes []eventlog.Change, r *dbsqlc.JobFetchRow) []eventlog.Change {
	c := since(changeOf("job.started", (*job.Record)(r), r.StartedAt), r.EnqueuedAt)
	c.From = string(ojs.StateAvailable)
	return append(changes, c)
}

func completeChange(changes []eventlog.Change, r *dbsqlc.JobCompleteRow) []eventlog.Change {
	c := since(changeOf("job.completed", (*job.Record)(r), r.FinishedAt), r.StartedAt)
	c.From = string(ojs.StateActive)
	return append(changes, c)
}

func cancelChange(changes []eventlog.Change, r *dbsqlc.JobCancelRow) []eventlog.Change {
	c := changeOf("job.cancelled", (*job.Record)(r), r.FinishedAt)
	c.From = r.PreviousState.String
	return append(changes, c)
}

func activateChange(changes []eventlog.Change, r *dbsqlc.JobActivateRow) []eventlog.Change {
	c := changeOf("job.enqueued", (*job.Record)(r), r.EnqueuedAt)
	c.From = string(ojs.StatePending)
	return append(changes, c)
}

// failure is a failed attempt, or a job that was handed back, with what its row does not hold any more.
type failure struct {
	job     *job.Record
	nack    *nack
	started pgtype.Timestamptz
	worker  string
}

func failChange(changes []eventlog.Change, f *failure) []eventlog.Change {
	c := changeOf(eventlog.StateChanged, f.job, failedAt(f.job))
	c.WorkerID, c.From = f.worker, string(ojs.StateActive)
	if !f.nack.Requeue {
		c.Error = &f.nack.Error
		failed := since(c, f.started)
		failed.Type, failed.From, failed.To, failed.Reason = "job.failed", "", "", f.nack.Error.ServerMade
		changes = append(changes, failed)
	}
	switch ojs.JobState(f.job.State) {
	case ojs.StateRetryable:
		c.Type, c.Reason = "job.retrying", f.nack.Error.ServerMade
	case ojs.StateDiscarded:
		c.Type, c.Reason = "job.discarded", f.nack.Error.ServerMade
	default:
		c.Reason, c.Started = f.nack.reason, f.started.Time
	}
	return append(changes, c)
}

func promoteChange(changes []eventlog.Change, r *dbsqlc.JobPromoteDueRow) []eventlog.Change {
	if r.Queued.Bool {
		return changes
	}
	c := eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: r.State,
		At: r.Now.Time, Reason: r.Deadline,
	}
	switch {
	case r.Deadline == job.TotalTimeout:
		c.Type = "job.discarded"
	case r.Deadline != "":
		c.Type = "job.expired"
	case r.Was == string(ojs.StateScheduled):
		c.Type = "job.enqueued"
	default:
		c.Reason = "retry"
	}
	return append(changes, c)
}

func retryChange(changes []eventlog.Change, r *dbsqlc.JobRetryRow) []eventlog.Change {
	c := eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: string(ojs.StateAvailable),
		At: r.EnqueuedAt.Time, Reason: "retry",
	}
	if r.OldQueue != r.Queue {
		left, came := c, c
		left.Queue, left.To, left.Reason = r.OldQueue, "", "moved"
		came.From, came.To, came.Reason = "", r.Was, "moved"
		changes = append(changes, left, came)
	}
	if r.Was == string(ojs.StateDiscarded) {
		c.Type, c.Reason = "job.enqueued", ""
	}
	return append(changes, c)
}

func deleteChange(changes []eventlog.Change, r *dbsqlc.JobDeleteRow) []eventlog.Change {
	return append(changes, eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: "deleted",
	})
}
