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
	"github.com/ojsd/ojsd/ojs"
)

// Trigger enqueues a job of the cron now, even if the cron is paused or has unfinished jobs (docs/reference/scheduling.md, Cron
// endpoints). With policy enqueue, other jobs of the cron wait for it. The unique policy of the job holds: it may be refused, or
// be answered with an equivalent one.
func (s *Store) Trigger(ctx context.Context, name string) (*job.Record, error) {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // fetches are woken even if the client hangs up
	defer cancel()
	var res queue.Inserted
	var span tracing.Enqueue
	err := pg.Retry(func() error {
		return s.db.InPartitionedTx(bounded, func(tx pgx.Tx) (err error) {
			res, err = s.trigger(bounded, tx, name, &span)
			return err
		})
	})
	if errors.Is(err, errDuplicates) {
		return res.Existing(0), nil
	}
	if err != nil {
		return nil, pg.ClientError(err)
	}
	span.Accepted(res.Record(0).ID, res.Record(0).State)
	res.AfterCommit(ctx)
	return res.Record(0), nil
}

func (s *Store) trigger(ctx context.Context, tx pgx.Tx, name string, span *tracing.Enqueue) (queue.Inserted, error) {
	q := dbsqlc.New(tx)
	row, err := q.CronLock(ctx, name)
	if err != nil {
		return queue.Inserted{}, cronMissing(err, name)
	}
	now, err := q.SystemPing(ctx)
	if err != nil {
		return queue.Inserted{}, err
	}
	j, wire := s.cronJob((*Record)(&row), now.Time)
	if wire != nil {
		return queue.Inserted{}, wire
	}
	if _, err := s.schemas.Check(ctx, q, j); err != nil {
		return queue.Inserted{}, err
	}
	draining, err := q.QueueListDraining(ctx, []string{j.Queue})
	if err != nil {
		return queue.Inserted{}, err
	}
	if len(draining) > 0 {
		return queue.Inserted{}, ojs.ErrQueuePaused(j.Queue).With("status", "draining")
	}
	if _, err := q.CronTrigger(ctx, dbsqlc.CronTriggerParams{ID: row.ID, Now: now, JobID: pgtype.UUID{Bytes: j.ID, Valid: true}}); err != nil {
		return queue.Inserted{}, err
	}
	*span = s.tracer.Enqueue(ctx, j)
	serial := row.OverlapPolicy == OverlapEnqueue
	mark := dbsqlc.JobUpdateCronParams{Ids: [][16]byte{j.ID}, Names: []string{name}, Serial: []bool{serial}, Queued: []bool{false}}
	if err := limitUniqueWait(ctx, tx, []*job.Job{j}); err != nil {
		return queue.Inserted{}, err
	}
	res, err := s.insertMarked(ctx, tx, []*job.Job{j}, mark)
	switch {
	case err != nil:
		return res, err
	case res.Refused(0) != nil:
		return res, res.Refused(0)
	case res.Existing(0) != nil:
		return res, errDuplicates
	case !serial:
		return res, nil
	}
	if err := q.CronLockSerial(ctx, []string{name}); err != nil {
		return queue.Inserted{}, err
	}
	return res, q.CronQueueJobs(ctx, name, j.ID)
}

// cronJob is the job of a tick or of a manual run.
func (s *Store) cronJob(row *Record, at time.Time) (*job.Job, *ojs.Error) {
	c := DefinitionOf(row)
	j, err := c.Job(at, s.config.Limits)
	if err != nil {
		return nil, err
	}
	if s.jobs.Inherit(j); j.VisibilityMS == 0 {
		j.VisibilityMS = visibility.Milliseconds()
	}
	j.ID = job.NewID()
	return j, nil
}

// insertMarked inserts jobs of crons and sets the columns of their rows that only such jobs have.
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
