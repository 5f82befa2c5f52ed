package eventlog

import (
	"math"
	"time"

	"github.com/ojsd/ojsd/internal/job"
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
	Error *job.WorkerError

	// Job is the whole job as it is after the change, or nil where the statement does not return it (heartbeat, progress,
	// promotion, bulk retry, removal). It must not be modified.
	Job *job.Record
}

// StateChanged is the type of rows that the catalogue has no public event for: a gap between two states of a job's history.
const StateChanged = "job.state_changed"

// Milliseconds is Took as the event row has it, to the last bit: its arithmetic is that of
// (date_part('epoch', b - a) * 1000)::bigint.
func (c Change) Milliseconds() int64 {
	const day = 24 * time.Hour
	days := c.Took / day
	seconds := float64((c.Took-days*day).Microseconds())/1e6 + float64(days)*86400
	return int64(math.RoundToEven(seconds * 1000))
}
