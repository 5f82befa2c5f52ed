package store

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/ojs"
)

// Change is one event row that this node has committed, for those who count, trace or log. Rows written from SQL
// (ojs.enqueue, ojs.cancel) are not this node's.
type Change struct {
	Type string // of the event: job.completed, worker.started, …; job.state_changed for a gap row

	Subject  string   // worker id or cron name; "": the subject is the job
	JobID    [16]byte // zero for events of workers and crons
	JobType  string
	Queue    string
	Attempt  int32
	WorkerID string // who holds or held the job

	From, To string    // states; "": the row has none
	At       time.Time // by the database's clock; zero for crons

	// Took is how long the attempt ran (job.completed, job.failed) or the job waited (job.started); see Milliseconds.
	Took  time.Duration
	Timed bool // Took is known

	// Started is when the attempt began that ended without a fault (requeue), which has no Took.
	Started time.Time

	// Reason says why, where it was not the wish of a worker or caller: visibility_timeout, worker_death, timeout, stalled,
	// total_timeout, expired, enqueue_ttl_expired; and it is the reason of gap rows: requeue, retry, moved, deleted, purged,
	// retention, too.
	Reason string

	// Error is of job.failed and what follows from it. It must not be modified.
	Error *envelope.WorkerError

	// Job is the whole job as it is after the change, or nil where the statement does not return it (heartbeat, progress,
	// promotion, bulk retry, removal). It must not be modified.
	Job *dbsqlc.Job
}

// stateChanged is the type of gap rows.
const stateChanged = "job.state_changed"

// Milliseconds is Took as the event row has it, to the last bit: its arithmetic is that of
// (date_part('epoch', b - a) * 1000)::bigint.
func (c Change) Milliseconds() int64 {
	const day = 24 * time.Hour
	days := c.Took / day
	seconds := float64((c.Took-days*day).Microseconds())/1e6 + float64(days)*86400
	return int64(math.RoundToEven(seconds * 1000))
}

// telling reports whether anybody wants to know of changes.
func (s *Store) telling() bool {
	return s.config.OnChanges != nil || s.config.Tracer.Executing() || s.config.Logger.Enabled(context.Background(), slog.LevelError)
}

// tell logs and passes on the changes that of appends for each row. If nobody wants to know, none are made.
func tell[Row any](ctx context.Context, s *Store, rows []Row, of func(changes []Change, r *Row) []Change) {
	if len(rows) == 0 || !s.telling() {
		return
	}
	changes := make([]Change, 0, len(rows))
	for i := range rows {
		changes = of(changes, &rows[i])
	}
	s.logChanges(changes)
	s.traceChanges(changes)
	if len(changes) > 0 && s.config.OnChanges != nil {
		s.announceRequeued(changes)
		s.config.OnChanges(ctx, changes)
	}
}

// announceRequeued gives jobs that became available again the event that was written for them, if that is the public one.
func (s *Store) announceRequeued(changes []Change) {
	if !s.config.EnqueuedOnRequeue {
		return
	}
	for i, c := range changes {
		if c.Type == stateChanged && c.From != "" && c.To == string(ojs.StateAvailable) {
			changes[i].Type = "job.enqueued"
		}
	}
}

// changeOf begins a change of a job that a statement returned whole.
func changeOf(kind string, job *dbsqlc.Job, at pgtype.Timestamptz) Change {
	return Change{
		Type: kind, JobID: job.ID, JobType: job.Type, Queue: job.Queue, Attempt: job.Attempt, WorkerID: job.WorkerID.String,
		To: job.State, At: at.Time, Job: job,
	}
}

func (c Change) since(start pgtype.Timestamptz) Change {
	if start.Valid {
		c.Took, c.Timed = c.At.Sub(start.Time), true
	}
	return c
}

func insertChange(changes []Change, e *enqueued) []Change {
	if e.job == nil {
		return changes
	}
	kind := stateChanged
	switch ojs.JobState(e.job.State) {
	case ojs.StateAvailable:
		kind = "job.enqueued"
	case ojs.StateScheduled:
		kind = "job.scheduled"
	}
	return append(changes, changeOf(kind, e.job, e.job.CreatedAt))
}

func fetchChange(changes []Change, r *dbsqlc.JobFetchRow) []Change {
	c := changeOf("job.started", (*dbsqlc.Job)(r), r.StartedAt).since(r.EnqueuedAt)
	c.From = string(ojs.StateAvailable)
	return append(changes, c)
}

func completeChange(changes []Change, r *dbsqlc.JobCompleteRow) []Change {
	c := changeOf("job.completed", (*dbsqlc.Job)(r), r.FinishedAt).since(r.StartedAt)
	c.From = string(ojs.StateActive)
	return append(changes, c)
}

func cancelChange(changes []Change, r *dbsqlc.JobCancelRow) []Change {
	c := changeOf("job.cancelled", (*dbsqlc.Job)(r), r.FinishedAt)
	c.From = r.PreviousState.String
	return append(changes, c)
}

func activateChange(changes []Change, r *dbsqlc.JobActivateRow) []Change {
	c := changeOf("job.enqueued", (*dbsqlc.Job)(r), r.EnqueuedAt)
	c.From = string(ojs.StatePending)
	return append(changes, c)
}

// failure is a failed attempt, or a job that was handed back, with what its row does not hold any more.
type failure struct {
	job     *dbsqlc.Job
	nack    *nack
	started pgtype.Timestamptz
	worker  string
}

func failChange(changes []Change, f *failure) []Change {
	c := changeOf(stateChanged, f.job, failedAt(f.job))
	c.WorkerID, c.From = f.worker, string(ojs.StateActive)
	if !f.nack.Requeue {
		c.Error = &f.nack.Error
		failed := c.since(f.started)
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

func promoteChange(changes []Change, r *dbsqlc.JobPromoteDueRow) []Change {
	if r.Held.Bool {
		return changes
	}
	c := Change{
		Type: stateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: r.State,
		At: r.Now.Time, Reason: r.Dead,
	}
	switch {
	case r.Dead == envelope.TotalTimeout:
		c.Type = "job.discarded"
	case r.Dead != "":
		c.Type = "job.expired"
	case r.Was == string(ojs.StateScheduled):
		c.Type = "job.enqueued"
	default:
		c.Reason = "retry"
	}
	return append(changes, c)
}

func retryChange(changes []Change, r *dbsqlc.JobRetryRow) []Change {
	c := Change{
		Type: stateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was, To: string(ojs.StateAvailable),
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

func deleteChange(changes []Change, r *dbsqlc.JobDeleteRow) []Change {
	return append(changes, Change{
		Type: stateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: "deleted",
	})
}

func deadLetterDeleteChange(reason string) func([]Change, *dbsqlc.DeadLetterDeleteRow) []Change {
	return func(changes []Change, r *dbsqlc.DeadLetterDeleteRow) []Change {
		return append(changes, Change{
			Type: stateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: reason,
		})
	}
}

func discardedPruneChange(changes []Change, r *dbsqlc.JobDiscardedPruneRow) []Change {
	return append(changes, Change{
		Type: stateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: "retention",
	})
}

func heartbeatChange(changes []Change, r *dbsqlc.JobHeartbeatRow) []Change {
	if !r.Told {
		return changes
	}
	return append(changes, Change{
		Type: "job.heartbeat", JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID, At: r.Now.Time,
	})
}

func progressChange(changes []Change, r *dbsqlc.JobProgressRow) []Change {
	if !r.Tell {
		return changes
	}
	return append(changes, Change{
		Type: "job.progress", JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID.String, At: r.Now.Time,
	})
}

func (s *Store) beatChange(beats []Beat, at map[string]int) func([]Change, *dbsqlc.WorkerBeatRow) []Change {
	return func(changes []Change, r *dbsqlc.WorkerBeatRow) []Change {
		for _, e := range []struct {
			kind     string
			happened bool
		}{
			{"worker.started", r.Starts},
			{"worker.heartbeat", s.config.WorkerHeartbeatEvents && !beats[at[r.ID]].Register},
			{"worker.quiet", r.Quiets},
			{"worker.stopped", r.Stops},
		} {
			if e.happened {
				changes = append(changes, Change{Type: e.kind, Subject: r.ID, WorkerID: r.ID, At: r.LastBeatAt.Time})
			}
		}
		return changes
	}
}

func dieChange(changes []Change, r *dbsqlc.WorkerDieRow) []Change {
	if r.Stopped {
		return changes // it has been told
	}
	return append(changes, Change{Type: "worker.stopped", Subject: r.ID, WorkerID: r.ID, At: r.DiedAt.Time, Reason: envelope.WorkerDeath})
}

func deregisterChange(changes []Change, r *dbsqlc.WorkerDeregisterRow) []Change {
	return append(changes, Change{Type: "worker.stopped", Subject: r.ID, WorkerID: r.ID, At: r.Now.Time})
}

func cronChangeOf(row *dbsqlc.Cron, reason string) Change {
	c := Change{Type: "cron.triggered", Subject: row.Name, JobType: row.Type, Queue: row.Queue, Reason: reason}
	if reason != "" {
		c.Type = "cron.skipped"
	}
	return c
}

func gapChanges(rows []dbsqlc.CronGapRow) []Change {
	changes := make([]Change, len(rows))
	for i, r := range rows {
		changes[i] = Change{Type: "cron.skipped", Subject: r.Name, JobType: r.JobType, Queue: r.Queue, Reason: skippedGap}
	}
	return changes
}

func sameChange(changes []Change, c *Change) []Change { return append(changes, *c) }
