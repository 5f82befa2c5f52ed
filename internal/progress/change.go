package progress

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

// The statement writes at most one event per job and second, and emits only those (docs/reference/jobs.md, Progress).
func progressChange(changes []eventlog.Change, r *dbsqlc.JobProgressRow) []eventlog.Change {
	if !r.Emitted {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: ojs.EventJobProgress, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID.String, At: r.Now.Time,
	})
}
