package eventlog

import (
	"math"
	"time"

	"github.com/ojsd/ojsd/internal/job"
)

// Change is one event row that this node has committed, for metrics, traces and logs. Rows written from SQL (ojs.enqueue,
// ojs.cancel) are never among them. A change is emitted at most once, after its commit. If the node stops between the two, its
// log line, span and count are missing; the event row itself is not lost.
type Change struct {
	Type string // of the event: ojs.EventJobCompleted, …; StateChanged for a gap row

	Subject  string   // worker id or cron name; "": the subject is the job
	JobID    [16]byte // zero for events of workers and crons
	JobType  string
	Queue    string
	Attempt  int32
	WorkerID string // the worker that runs or ran the job

	// A transition with two public events (job.failed and job.retrying, say) carries its states on one of them only
	// (docs/reference/events.md, Transitions).
	From, To string    // states; "": the row has none
	At       time.Time // by the database's clock; zero for crons

	// Took is how long the attempt ran (job.completed, job.failed) or the job waited (job.started); see Milliseconds.
	Took  time.Duration
	Timed bool // Took is known

	// Started is when an attempt began that ended without success or failure (requeue). Such an attempt has no Took.
	Started time.Time

	// Reason says why the server made the change by itself: visibility_timeout, worker_death, timeout, stalled, total_timeout,
	// expired, enqueue_ttl_expired. Gap rows always have a reason; theirs may also be requeue, retry, moved, deleted, purged
	// or retention.
	Reason string

	// Error is the worker's error, for job.failed and the events that follow from it. It must not be modified.
	Error *job.WorkerError

	// Job is the whole job as it is after the change, or nil where the statement does not return it (heartbeat, progress,
	// promotion, bulk retry, removal). It must not be modified.
	Job *job.Record
}

// StateChanged is the type of gap rows: changes of a job's state that have no public event.
const StateChanged = "job.state_changed"

// PriorityChanged is the type of internal rows about a job that has got another priority. Its state stays the same.
// They carry ready_seq, so that the relay tells other nodes to look for the job again.
const PriorityChanged = "priority.changed"

// Milliseconds is Took as the event row has it, to the last bit: it computes as PostgreSQL does for
// (date_part('epoch', b - a) * 1000)::bigint.
func (c Change) Milliseconds() int64 {
	const day = 24 * time.Hour
	days := c.Took / day
	seconds := float64((c.Took-days*day).Microseconds())/1e6 + float64(days)*86400
	return int64(math.RoundToEven(seconds * 1000))
}
