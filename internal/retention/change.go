package retention

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
)

// pruneChange is the change of one deleted job, for logs and metrics: like the internal event, it has a state before and none
// after.
func pruneChange(changes []eventlog.Change, r *dbsqlc.JobDiscardedPruneRow) []eventlog.Change {
	return append(changes, eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: reasonRetention,
	})
}
