package queue

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/unique"
	"github.com/ojsd/ojsd/ojs"
)

// The state changes that another domain makes in a transaction of its own. The caller must call AfterCommit after its
// commit: only then are events emitted and fetches, timer and relay notified.

// Inserted are the jobs that a transaction has stored.
type Inserted struct {
	store *Store
	jobs  []*job.Job
	rows  []enqueued
}

// InsertTx stores jobs in the caller's transaction. It leaves out a job whose id is taken or whose unique policy does not permit it;
// see Refused and Existing. It may wait for the locks of unique keys as long as the transaction permits.
func (s *Store) InsertTx(ctx context.Context, tx pgx.Tx, jobs []*job.Job) (Inserted, error) {
	for _, j := range jobs {
		if j.ID == [16]byte{} {
			assignID(j)
		}
	}
	unique.Assign(jobs...)
	in := newInsertion(jobs, false)
	in.lockTimeout = ""
	rows, err := s.insert(ctx, tx, in)
	return Inserted{s, jobs, rows}, err
}

// Record is the job at an index of InsertTx; nil if it was not stored.
func (in Inserted) Record(i int) *job.Record { return in.rows[i].job }

// Existing is the equivalent job because of which the job at an index was not stored, if its policy is to ignore it then.
func (in Inserted) Existing(i int) *job.Record { return in.rows[i].existing }

// Refused is why the job at an index was not stored: ojs.ErrDuplicateID or ojs.ErrDuplicate. nil if it was stored or ignored.
func (in Inserted) Refused(i int) *ojs.Error {
	switch r := in.rows[i]; {
	case r.refused != nil:
		return r.refused
	case r.taken:
		return ojs.ErrDuplicateID(ojs.FormatID(in.jobs[i].ID))
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
func (in Inserted) SetReady(id [16]byte, readySeq pgtype.Int8, dueAt pgtype.Timestamptz) {
	i := slices.IndexFunc(in.rows, func(r enqueued) bool { return r.job != nil && r.job.ID == id })
	if i >= 0 {
		in.rows[i].job.ReadySeq, in.rows[i].job.DueAt = readySeq, dueAt
	}
}

// AfterCommit emits the events and notifies fetches, timer and relay.
func (in Inserted) AfterCommit(ctx context.Context) {
	if in.store != nil {
		in.store.afterEnqueue(ctx, in.rows, nil)
	}
}

// Cancelled are the jobs that a transaction has cancelled.
type Cancelled struct {
	store *Store
	rows  []dbsqlc.JobCancelRow
}

// CancelTx cancels the jobs that have not ended, in the caller's transaction. cancels has one element for each id.
func (s *Store) CancelTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, cancels []Cancel) (Cancelled, error) {
	if len(ids) == 0 {
		return Cancelled{s, nil}, nil
	}
	p := dbsqlc.JobCancelParams{Ids: ids, States: texts(LiveStates), Source: source, Node: s.commits.Node, EventType: ojs.EventJobCancelled, MaxSize: job.SizeOfEach(len(ids))}
	for _, c := range cancels {
		p.EventData = append(p.EventData, c.eventData())
	}
	rows, err := dbsqlc.New(tx).JobCancel(ctx, p)
	return Cancelled{s, rows}, err
}

// Append adds the jobs of another call in the same transaction.
func (c *Cancelled) Append(more Cancelled) {
	c.store, c.rows = more.store, append(c.rows, more.rows...)
}

// AfterCommit emits the events. It returns the crons of which jobs were cancelled.
func (c Cancelled) AfterCommit(ctx context.Context) (crons []string) {
	if len(c.rows) == 0 {
		return nil
	}
	eventlog.Emit(ctx, c.store.commits, c.rows, cancelChange)
	for i := range c.rows {
		c.store.awaiting.ended(c.rows[i].ID)
	}
	c.store.commits.Committed()
	return cronsOf(c.rows, cancelledCron)
}
