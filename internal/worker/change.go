package worker

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// The types come from the statement, which has compared the old row with the new one under its lock.
func beatChange(changes []eventlog.Change, r *dbsqlc.WorkerHeartbeatRow) []eventlog.Change {
	for _, eventType := range r.EventTypes {
		changes = append(changes, eventlog.Change{Type: eventType, Subject: r.ID, WorkerID: r.ID, At: r.LastBeatAt.Time})
	}
	return changes
}

// expireChange leaves out a worker that had stopped before: no event was written for it.
func expireChange(changes []eventlog.Change, r *dbsqlc.WorkerExpireRow) []eventlog.Change {
	if r.Stopped {
		return changes
	}
	return append(changes, eventlog.Change{Type: ojs.EventWorkerStopped, Subject: r.ID, WorkerID: r.ID, At: r.DeadAt.Time, Reason: job.WorkerDeath})
}

// Its event was written by the statement that deleted the row.
func deregisterChange(changes []eventlog.Change, r *dbsqlc.WorkerDeregisterRow) []eventlog.Change {
	return append(changes, eventlog.Change{Type: ojs.EventWorkerStopped, Subject: r.ID, WorkerID: r.ID, At: r.Now.Time})
}

// The statement writes at most one event per JobHeartbeatInterval and run.
func heartbeatChange(changes []eventlog.Change, r *dbsqlc.JobHeartbeatRow) []eventlog.Change {
	if !r.Emitted {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: ojs.EventJobHeartbeat, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID, At: r.Now.Time,
	})
}
