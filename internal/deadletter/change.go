package deadletter

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
)

// The change has no To: the job leaves the counts of discarded ones, and subscribers see no public event.
func deleteChange(reason string) func([]eventlog.Change, *dbsqlc.DeadLetterDeleteRow) []eventlog.Change {
	return func(changes []eventlog.Change, r *dbsqlc.DeadLetterDeleteRow) []eventlog.Change {
		return append(changes, eventlog.Change{
			Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: reason,
		})
	}
}
