package queue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// jobChange is a job as a statement has left it.
type jobChange struct {
	id       [16]byte
	queue    string
	lane     string
	priority int16
	state    ojs.JobState
	readySeq pgtype.Int8 // of an available job; not valid: it waits for another job of its cron or for a limit, so no fetch can find it
	dueAt    pgtype.Timestamptz
	now      pgtype.Timestamptz // the clock of the database when dueAt was set
	ran      bool               // it was active, so the limit of its queue may allow another one

	cron       pgtype.Text
	limitKey   pgtype.Text
	workflowID pgtype.UUID
}

// recordChange is a job that an ack, a nack, a cancel or an activation has changed. It has neither limit nor workflow: flushes do not
// follow them, and their callers use followRecords.
func recordChange(j *job.Record) jobChange {
	return jobChange{
		id: j.ID, queue: j.Queue, lane: j.Lane, priority: j.Priority, state: ojs.JobState(j.State), readySeq: j.ReadySeq, dueAt: j.DueAt,
		now: failedAt(j), ran: j.PreviousState.String == string(ojs.StateActive), cron: j.Cron,
	}
}

// afterCommit collects what follows the commit of changed jobs. notify does what no caller waits for, follow what the caller of the change
// waits for.
//
// It never decides anything: what is lost with a node that stops between the commit and notify is found again by the relay, rescans and
// sweeps.
type afterCommit struct {
	some   bool       // some job was changed
	places []Place    // of available jobs
	ended  [][16]byte // jobs for whose results calls may wait
	left   []string   // queues in which jobs are no longer active
	crons  []string   // crons of which a job has moved
	// The time until the first due_at, by the clock of the database. The timer counts it with the monotonic clock of this machine.
	earliest time.Duration
	timed    bool // earliest is set

	limits    []string   // limit keys of jobs that are not active
	workflows [][16]byte // roots of the workflows of jobs that have ended
}

// add records a job that has left active, or was not active.
func (a *afterCommit) add(c jobChange) {
	a.some = true
	switch {
	case c.state.Terminal():
		a.ended = append(a.ended, c.id)
		addValid(&a.workflows, c.workflowID.Bytes, c.workflowID.Valid)
	case c.state == ojs.StateAvailable && c.readySeq.Valid:
		a.places = append(a.places, Place{c.queue, c.lane, c.priority, c.readySeq.Int64})
	}
	if c.dueAt.Valid && !c.state.Terminal() {
		// Both times are of the database, so the clock of this machine has no part in it.
		if in := max(0, c.dueAt.Time.Sub(c.now.Time)); !a.timed || in < a.earliest {
			a.earliest, a.timed = in, true
		}
	}
	addValid(&a.left, c.queue, c.ran)
	addValid(&a.crons, c.cron.String, c.cron.Valid)
	addValid(&a.limits, c.limitKey.String, c.limitKey.Valid)
}

// addValid adds a value once. A linear search is enough: a statement has at most 1 000 rows, and most have the same values or none.
func addValid[Value comparable](values *[]Value, v Value, valid bool) {
	if valid && !slices.Contains(*values, v) {
		*values = append(*values, v)
	}
}

// notify wakes the calls of this node that wait for the jobs, the relay and the timer, and lets crons release the jobs that waited for the
// changed ones. Calls of other nodes are woken when the relay has published the events. Fetches come early: they are what somebody waits
// for.
func (s *Store) notify(ctx context.Context, a afterCommit) {
	if !a.some {
		return
	}
	for _, id := range a.ended {
		s.resultWaiters.ended(id)
	}
	s.NotifyAvailable(a.places)
	if len(a.left) > 0 {
		s.wakeLimited(a.left...)
	}
	s.commits.Committed()
	if a.timed {
		s.timer.Schedule(a.earliest)
	}
	if len(a.crons) > 0 {
		s.hooks.CronJobs(ctx, a.crons)
	}
}

// follow lets limits start other jobs, and workflows go on. It runs transactions, so it must not be called inside of a flush that callers
// share: the others would wait for it. It returns when the next steps are inserted: the client of an ack can fetch them with its next call.
func (s *Store) follow(ctx context.Context, a afterCommit) {
	s.FollowLimits(ctx, a.limits)
	s.followWorkflows(ctx, a.workflows)
}

// followRecords is follow for jobs of recordChange. jobs may have nil elements: requests that have changed nothing.
func (s *Store) followRecords(ctx context.Context, jobs []*job.Record) {
	var a afterCommit
	for _, j := range jobs {
		if j != nil && j.State != string(ojs.StateActive) {
			addValid(&a.limits, j.LimitKey.String, j.LimitKey.Valid)
			addValid(&a.workflows, j.WorkflowID.Bytes, j.WorkflowID.Valid && ojs.JobState(j.State).Terminal())
		}
	}
	s.follow(ctx, a)
}

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
	for _, r := range e.dropped {
		changes = append(changes, eventlog.Change{
			Type: ojs.EventJobDiscarded, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: r.Was,
			To: string(ojs.StateDiscarded), At: r.Now.Time, Reason: job.Overflow,
		})
	}
	return changes
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

// cancelChange looks for an unsent report of a job that ran; no other can have one.
func cancelChange(changes []eventlog.Change, r *dbsqlc.JobCancelRow) []eventlog.Change {
	c := changeOf(ojs.EventJobCancelled, (*job.Record)(r), r.FinishedAt)
	c.From = r.PreviousState.String
	if c.From == string(ojs.StateActive) {
		changes = progressChange(changes, c)
	}
	return append(changes, c)
}

// activateChange is job.enqueued: a pending job has had no public event before.
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

// retryChange has the rows of JobRetry in their order. A move must not look like an end to subscribers, hence the empty To and From.
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

// A statement that ends or revives a job of a workflow records the change in ojs.workflow_pending. After its commit the workflow
// follows, before the caller is answered, but never inside of a flush that callers share: the others would wait for it.

// followWorkflows lets the workflows of ended jobs follow.
// It returns when the next steps are inserted: the client of an ack can fetch them with its next call.
func (s *Store) followWorkflows(ctx context.Context, roots [][16]byte) {
	if len(roots) > 0 {
		s.hooks.WorkflowJobs(ctx, roots)
	}
}

// A job with a limit key waits without ready_seq, so no claim finds it, until package limit gives it its place. Statements that may
// let such jobs start record it in ojs.limit_pending. After their commit package limit looks, before the caller is answered, but
// never inside of a flush that callers share: jobs without a key would wait for it.

// FollowLimits lets those jobs of the keys be fetched that may start now, after a commit of another domain that moved jobs of them.
// Callers hold no lock and no transaction. It may run twice for a key at once: admissions lock the partition.
func (s *Store) FollowLimits(ctx context.Context, keys []string) {
	if len(keys) > 0 {
		s.hooks.LimitedJobs(ctx, keys)
	}
}

// followEnqueued does what follows from new jobs, and from those that were cancelled or discarded for them.
// It is called after the commit, by the caller of the insert and not by its flush.
func (s *Store) followEnqueued(ctx context.Context, jobs ...*job.Job) {
	s.follow(ctx, s.movedByEnqueue(jobs))
}

// movedByEnqueue has the limits and workflows that an insert of the jobs has moved.
func (s *Store) movedByEnqueue(jobs []*job.Job) (a afterCommit) {
	for _, j := range jobs {
		for _, key := range j.Outcome.DroppedLimits {
			addValid(&a.limits, key, true)
		}
		for _, root := range j.Outcome.Dropped {
			addValid(&a.workflows, root, true)
		}
		for _, old := range j.Outcome.Replaced {
			addValid(&a.limits, old.LimitKey.String, old.LimitKey.Valid)
			addValid(&a.workflows, old.WorkflowID.Bytes, old.WorkflowID.Valid)
		}
		if j.LimitKey != "" {
			addValid(&a.limits, j.LimitKey, true)
			// A job with a key may wait for it in this queue from now on, so fetches of the queue handle it.
			s.limitBlocked.add(j.Queue)
		}
	}
	return a
}
