package cron

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Trigger enqueues a job of the cron now, even if the cron is paused or has unfinished jobs (docs/reference/scheduling.md, Cron
// endpoints). With policy enqueue, other jobs of the cron wait for it. The unique policy of the job holds: it may be refused, or
// be answered with an equivalent one. It is not idempotent: each call that succeeds makes a job. It waits while a tick or a
// change has the row of the cron. After an error nothing is stored; if the outcome of the commit is unknown, the history of
// the cron shows it.
func (s *Store) Trigger(ctx context.Context, ref Ref) (*job.Record, error) {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // fetches are woken even if the client hangs up
	defer cancel()
	var res queue.Inserted
	var span tracing.Enqueue
	err := pg.Retry(func() error {
		return s.db.InPartitionedTx(bounded, func(tx pgx.Tx) (err error) {
			res, err = s.trigger(bounded, tx, ref, &span)
			return err
		})
	})
	// The transaction was rolled back, so the run is not in the history.
	if errors.Is(err, errDuplicates) {
		return res.Existing(0), nil
	}
	if err != nil {
		s.jobs.CountRefused(ctx, err)
		return nil, pg.ClientError(err)
	}
	// The record is there: a refused or an existing job has returned before.
	span.Accepted(res.Record(0).ID, res.Record(0).State)
	res.AfterCommit(ctx)
	return res.Record(0), nil
}

// The row of the cron is locked first, as in a tick, so triggers and ticks of a cron take turns.
func (s *Store) trigger(ctx context.Context, tx pgx.Tx, ref Ref, span *tracing.Enqueue) (queue.Inserted, error) {
	q := dbsqlc.New(tx)
	row, err := q.CronLock(ctx, ref.Name, ref.Tenant)
	if err != nil {
		return queue.Inserted{}, cronMissing(err, ref.Name)
	}
	// Under the lock, so runs of a cron have times in their order.
	now, err := q.SystemPing(ctx)
	if err != nil {
		return queue.Inserted{}, err
	}
	j, wire := s.cronJob((*Record)(&row), now.Time)
	if wire != nil {
		return queue.Inserted{}, wire
	}
	// The caller gets the refusal; a tick would be skipped for it.
	if _, err := s.schemas.Check(ctx, q, j); err != nil {
		return queue.Inserted{}, err
	}
	draining, err := q.QueueListDraining(ctx, []string{j.Queue})
	if err != nil {
		return queue.Inserted{}, err
	}
	// A manual run is refused like an enqueue.
	if len(draining) > 0 {
		return queue.Inserted{}, spec.With(spec.QueuePaused(j.Queue), "status", "draining")
	}
	if _, err := q.CronTrigger(ctx, dbsqlc.CronTriggerParams{ID: row.ID, Now: now, JobID: pgtype.UUID{Bytes: j.ID, Valid: true}}); err != nil {
		return queue.Inserted{}, err
	}
	*span = s.tracer.Enqueue(ctx, j)
	serial := row.OverlapPolicy == OverlapEnqueue
	// Queued is false: a manual run goes first.
	mark := dbsqlc.JobUpdateCronParams{Ids: [][16]byte{j.ID}, Names: []string{ref.Name}, Serial: []bool{serial}, Queued: []bool{false}}
	if err := limitUniqueWait(ctx, tx, []*job.Job{j}); err != nil {
		return queue.Inserted{}, err
	}
	res, err := s.insertMarked(ctx, tx, []*job.Job{j}, mark)
	switch {
	case err != nil:
		return res, err
	case res.Refused(0) != nil:
		return res, res.Refused(0)
	// An error, so that the run is rolled back from the log.
	case res.Existing(0) != nil:
		return res, errDuplicates
	case !serial:
		return res, nil
	}
	// The job is inserted as one that can be fetched; the others that can be fetched are queued behind it, under the lock
	// that releases take.
	if err := q.CronLockSerial(ctx, []string{ref.Name}); err != nil {
		return queue.Inserted{}, err
	}
	return res, q.CronQueueJobs(ctx, ref.Name, j.ID)
}

// cronJob is the job of a tick or of a manual run. An unreadable template is a refusal, not an error of the server. What
// the queue gives is taken from the cache of the node.
func (s *Store) cronJob(row *Record, at time.Time) (*job.Job, *ojs.Error) {
	c := DefinitionOf(row)
	j, err := c.Job(at, s.config.Limits)
	if err != nil {
		return nil, err
	}
	// The order is: the template, the queue, the default of crons.
	if s.jobs.Inherit(j); j.VisibilityMS == 0 {
		j.VisibilityMS = visibility.Milliseconds()
	}
	j.ID = job.NewID()
	return j, nil
}

// insertMarked inserts jobs of crons and sets the columns of their rows that only such jobs have. The marks need a second
// statement, because JobInsert leaves out columns that few jobs have. Both are in the transaction of the caller, so no
// fetch sees a job of a serial cron that is not queued.
func (s *Store) insertMarked(ctx context.Context, tx pgx.Tx, jobs []*job.Job, mark dbsqlc.JobUpdateCronParams) (queue.Inserted, error) {
	if len(jobs) == 0 {
		return queue.Inserted{}, nil
	}
	inserted, err := s.jobs.InsertTx(ctx, tx, jobs)
	if err != nil {
		return inserted, err
	}
	rows, err := dbsqlc.New(tx).JobUpdateCron(ctx, mark)
	for _, r := range rows {
		inserted.SetReady(r.ID, r.ReadySeq, r.DueAt)
	}
	return inserted, err
}
