package queue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
)

// What other domains do to jobs inside a transaction of theirs. Nothing is told to anybody before AfterCommit.

// Inserted are jobs that a transaction has stored.
type Inserted struct {
	store *Store
	rows  []enqueued
}

// InsertTx stores jobs in a transaction of the caller's. A job whose id is in use is left out.
func (s *Store) InsertTx(ctx context.Context, tx pgx.Tx, jobs []*job.Job) (Inserted, error) {
	for _, j := range jobs {
		if j.ID == [16]byte{} {
			assignID(j)
		}
	}
	rows, err := s.insert(ctx, tx, jobs, false)
	return Inserted{s, rows}, err
}

// Record is the job at an index of InsertTx; nil if its id was in use.
func (in Inserted) Record(i int) *job.Record { return in.rows[i].job }

// Records are the jobs that were stored.
func (in Inserted) Records() (stored []*job.Record) {
	for _, r := range in.rows {
		if r.job != nil {
			stored = append(stored, r.job)
		}
	}
	return stored
}

// Append adds the jobs of another insert of the same transaction.
func (in *Inserted) Append(more Inserted) {
	in.store, in.rows = more.store, append(in.rows, more.rows...)
}

// AfterCommit emits the events and wakes fetchers, timers and the relay.
func (in Inserted) AfterCommit(ctx context.Context) {
	if in.store != nil {
		in.store.afterEnqueue(ctx, in.rows)
	}
}

// Cancelled are jobs that a transaction has cancelled.
type Cancelled struct {
	store *Store
	rows  []dbsqlc.JobCancelRow
}

// CancelTx cancels the jobs that have not ended, in a transaction of the caller's. Each has its own Cancel.
func (s *Store) CancelTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, cancels []Cancel) (Cancelled, error) {
	if len(ids) == 0 {
		return Cancelled{s, nil}, nil
	}
	p := dbsqlc.JobCancelParams{Ids: ids, States: texts(LiveStates), Source: source, Node: s.commits.Node}
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

// AfterCommit emits the events; it returns the crons whose jobs were cancelled.
func (c Cancelled) AfterCommit(ctx context.Context) (crons []string) {
	if len(c.rows) == 0 {
		return nil
	}
	eventlog.Emit(ctx, c.store.commits, c.rows, cancelChange)
	for i := range c.rows {
		c.store.endings.ended(c.rows[i].ID)
	}
	c.store.commits.Committed()
	return cronsOf(c.rows, cancelledCron)
}

// Lost is a reservation that somebody other than its worker ends.
type Lost struct {
	JobID     [16]byte
	WorkerID  string
	Attempt   int32
	StartedAt pgtype.Timestamptz // of the run that is meant: a job that was handed back has the same attempt again
	Reason    string             // of the job's change of state
	Error     job.WorkerError
}

// FailLost fails jobs whose reservations are lost, by the path of any other failure; what was acked or fetched again
// meanwhile is left alone and gives nil.
func (s *Store) FailLost(ctx context.Context, lost []Lost) ([]*job.Record, error) {
	nacks := make([]nack, len(lost))
	for i, l := range lost {
		nacks[i] = nack{
			Nack:      job.Nack{JobID: l.JobID, WorkerID: l.WorkerID, Attempt: l.Attempt, Error: l.Error},
			startedAt: l.StartedAt, reason: l.Reason, source: "scheduler",
		}
	}
	return s.flushFail(ctx, nacks)
}

// SetReady notes what another domain has changed of a job that this transaction stored.
func (in Inserted) SetReady(id [16]byte, readySeq pgtype.Int8, dueAt pgtype.Timestamptz) {
	i := slices.IndexFunc(in.rows, func(r enqueued) bool { return r.job != nil && r.job.ID == id })
	if i >= 0 {
		in.rows[i].job.ReadySeq, in.rows[i].job.DueAt = readySeq, dueAt
	}
}

// LongestVisibility is the longest reservation that there can be.
func (s *Store) LongestVisibility() time.Duration {
	return max(longestLease, s.config.DefaultVisibility)
}

// longestLease is the longest reservation that may be asked for: 7 days.
const longestLease = 7 * 24 * time.Hour
