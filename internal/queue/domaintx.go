package queue

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/unique"
	"github.com/ojsd/ojsd/ojs"
)

// The state changes that another domain makes in a transaction of its own. The caller must call AfterCommit after its
// commit: only then are events emitted and fetches, timer and relay notified.

// Inserted are the jobs that a transaction has stored.
// The zero value stands for no insert: Append and AfterCommit accept it, and the methods with an index must not be called.
type Inserted struct {
	store *Store
	jobs  []*job.Job
	// In the order of jobs.
	rows []enqueued
}

// CreateQueues creates the queues of jobs that a transaction is going to insert, before it begins: other producers of a new queue
// would wait for its end.
// The rows of the queues commit at once, so they stay even if the transaction rolls back. Such a queue is deleted after 30 days
// (ojs.queues_prune). InsertTx finds them known and does not lock them again.
func (s *Store) CreateQueues(ctx context.Context, jobs []*job.Job) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.createQueues(ctx, s.db.Pool, jobs)
}

// InsertTx stores jobs in the caller's transaction. It leaves out a job whose id is taken or whose unique policy does not permit it;
// see Refused and Existing. It may wait for the locks of unique keys as long as the transaction permits.
//
// Crons and workflows call it. It decides about ids, keys and room in savepoints; after any other error the transaction cannot go
// on. Nothing may be shown to anybody before the caller has committed; then it calls AfterCommit, and CountRefused for what
// Refused has told.
func (s *Store) InsertTx(ctx context.Context, tx pgx.Tx, jobs []*job.Job) (Inserted, error) {
	for _, j := range jobs {
		if j.ID == [16]byte{} {
			assignID(j)
		}
	}
	unique.Assign(jobs...)
	in := newInsertion(jobs, false)
	// The caller has chosen how long its transaction waits.
	in.lockTimeout = ""
	rows, err := s.insert(ctx, tx, in)
	return Inserted{s, jobs, rows}, err
}

// Record is the job at an index of InsertTx; nil if it was not stored.
func (in Inserted) Record(i int) *job.Record { return in.rows[i].job }

// Existing is the equivalent job because of which the job at an index was not stored, if its policy is to ignore it then.
func (in Inserted) Existing(i int) *job.Record { return in.rows[i].existing }

// Refused is why the job at an index was not stored: spec.DuplicateID, spec.Duplicate or spec.QueueFull. nil if it was stored or ignored.
// The order is that of enqueued.outcome: a row has one of them at most.
func (in Inserted) Refused(i int) *ojs.Error {
	switch r := in.rows[i]; {
	case r.refused != nil:
		return r.refused
	case r.full != nil:
		return r.full
	case r.taken:
		return spec.DuplicateID(spec.FormatID(in.jobs[i].ID))
	}
	return nil
}

// Records are the jobs that were stored.
func (in Inserted) Records() (stored []*job.Record) {
	for _, r := range in.rows {
		if r.job != nil {
			stored = append(stored, r.job)
		}
	}
	return stored
}

// Append adds the jobs of another insert in the same transaction.
func (in *Inserted) Append(more Inserted) {
	in.store, in.jobs, in.rows = more.store, append(in.jobs, more.jobs...), append(in.rows, more.rows...)
}

// SetReady records that the caller has changed ready_seq and due_at of a job after its insert.
// Cron does so for jobs of serial crons, which wait for each other. Without it AfterCommit would wake fetches for a place that
// the job has lost.
func (in Inserted) SetReady(id [16]byte, readySeq pgtype.Int8, dueAt pgtype.Timestamptz) {
	i := slices.IndexFunc(in.rows, func(r enqueued) bool { return r.job != nil && r.job.ID == id })
	if i >= 0 {
		in.rows[i].job.ReadySeq, in.rows[i].job.DueAt = readySeq, dueAt
	}
}

// AfterCommit emits the events and notifies fetches, timer and relay.
// A node that stops before it leaves the jobs to the relay, to surveys and to the followers of workflows and limits.
func (in Inserted) AfterCommit(ctx context.Context) {
	if in.store != nil {
		in.store.afterEnqueue(ctx, in.rows, nil)
		in.store.followEnqueued(ctx, in.jobs...)
	}
}

// Cancelled are the jobs that a transaction has cancelled.
type Cancelled struct {
	store *Store
	rows  []dbsqlc.JobCancelRow
}

// CancelTx cancels the jobs that have not ended, in the caller's transaction. cancels has one element for each id.
// It waits for rows that other transactions have locked, as long as the caller's transaction permits. Jobs that have ended are
// left out.
func (s *Store) CancelTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, cancels []Cancel) (Cancelled, error) {
	return s.cancelTx(ctx, tx, source, ids, LiveStates, cancels)
}

// CancelUnlockedTx cancels, in the caller's transaction, those of the jobs that no other transaction has locked; without active,
// those of them that no worker runs. It returns how many were not looked at, because they are locked or do not exist.
//
// Locks are taken by JobLockUnlocked and kept to the end of the transaction, so that JobCancel does not wait. A finished job
// counts as skipped, too: its row is in jobs_done.
func (s *Store) CancelUnlockedTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, active bool, c Cancel) (done Cancelled, skipped int, err error) {
	unlocked, err := dbsqlc.New(tx).JobLockUnlocked(ctx, ids)
	if err != nil {
		return Cancelled{}, 0, err
	}
	states := idleStates
	if active {
		states = LiveStates
	}
	done, err = s.cancelTx(ctx, tx, source, unlocked, states, slices.Repeat([]Cancel{c}, len(unlocked)))
	return done, len(ids) - len(unlocked), err
}

func (s *Store) cancelTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, states []ojs.JobState, cancels []Cancel) (Cancelled, error) {
	if len(ids) == 0 {
		return Cancelled{s, nil}, nil
	}
	cs := make([]cancellation, len(ids))
	for i, c := range cancels {
		cs[i] = cancellation{ids[i], c.eventData()}
	}
	rows, err := dbsqlc.New(tx).JobCancel(ctx, s.cancelParams(cs, states, source))
	return Cancelled{s, rows}, err
}

// IDs are the jobs that were cancelled.
func (c Cancelled) IDs() [][16]byte {
	ids := make([][16]byte, len(c.rows))
	for i := range c.rows {
		ids[i] = c.rows[i].ID
	}
	return ids
}

// Append adds the jobs of another call in the same transaction.
func (c *Cancelled) Append(more Cancelled) {
	c.store, c.rows = more.store, append(c.rows, more.rows...)
}

// AfterCommit emits the events. It returns the crons of which jobs were cancelled.
// The caller releases these crons itself: package cron calls this in the middle of a firing, after which it releases all crons of
// it at once.
func (c Cancelled) AfterCommit(ctx context.Context) (crons []string) {
	if len(c.rows) == 0 {
		return nil
	}
	eventlog.Emit(ctx, c.store.commits, c.rows, cancelChange)
	for i := range c.rows {
		c.store.awaiting.ended(c.rows[i].ID)
	}
	c.store.commits.Committed()
	c.store.FollowLimits(ctx, namesOf(c.rows, cancelledLimit))
	c.store.advance(ctx, workflowsOf(c.rows, cancelledWorkflow))
	return namesOf(c.rows, cancelledCron)
}
