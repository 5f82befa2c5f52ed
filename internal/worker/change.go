package worker

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
)

func (s *Store) beatChange(beats []Beat, at map[string]int) func([]eventlog.Change, *dbsqlc.WorkerHeartbeatRow) []eventlog.Change {
	return func(changes []eventlog.Change, r *dbsqlc.WorkerHeartbeatRow) []eventlog.Change {
		for _, e := range []struct {
			kind     string
			happened bool
		}{
			{"worker.started", r.Starts},
			{"worker.heartbeat", s.config.HeartbeatEvents && !beats[at[r.ID]].Register},
			{"worker.quiet", r.Quiets},
			{"worker.stopped", r.Stops},
		} {
			if e.happened {
				changes = append(changes, eventlog.Change{Type: e.kind, Subject: r.ID, WorkerID: r.ID, At: r.LastBeatAt.Time})
			}
		}
		return changes
	}
}

func dieChange(changes []eventlog.Change, r *dbsqlc.WorkerExpireRow) []eventlog.Change {
	if r.Stopped {
		return changes // it has been told
	}
	return append(changes, eventlog.Change{Type: "worker.stopped", Subject: r.ID, WorkerID: r.ID, At: r.DeadAt.Time, Reason: job.WorkerDeath})
}

func deregisterChange(changes []eventlog.Change, r *dbsqlc.WorkerDeregisterRow) []eventlog.Change {
	return append(changes, eventlog.Change{Type: "worker.stopped", Subject: r.ID, WorkerID: r.ID, At: r.Now.Time})
}

func heartbeatChange(changes []eventlog.Change, r *dbsqlc.JobHeartbeatRow) []eventlog.Change {
	if !r.Emitted {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: "job.heartbeat", JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID, At: r.Now.Time,
	})
}
