package cron

import (
	"context"
	"log/slog"
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

// Jobs of a cron with policy enqueue run one after the other (docs/reference/scheduling.md, Overlap). All but one at most are held: available
// to look at, but without ready_seq, so that no fetch meets them. Every statement that makes such a job available leaves
// it held; only CronSettle releases, one at a time, after each commit that may let one go. Who should have done it may be
// gone, so the first of those held is due every two seconds.

const (
	heldAgain    = 2 * time.Second // as in the statements
	settleLock   = "1s"
	tooManyHeld  = 2
	settleWithin = 5 * time.Second
)

// release releases held jobs of the crons if nothing of theirs runs or is about to.
func (s *Store) release(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	places, err := s.releaseHeld(ctx, names)
	if err != nil {
		s.logger.WarnContext(ctx, "held jobs of crons have to wait", slog.Any("error", err))
		s.timer.Schedule(heldAgain)
		return
	}
	s.jobs.BecameAvailable(places)
}

func (s *Store) releaseHeld(ctx context.Context, names []string) (places []queue.Place, err error) {
	held, err := s.db.Q.CronListHeld(ctx, names)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	names = names[:0:0]
	for _, h := range held {
		names = append(names, h.Cron)
	}
	s.timer.Schedule(heldAgain)
	err = pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.SystemLockTimeout(ctx, settleLock); err != nil {
			return err
		}
		if err := q.CronQueueUp(ctx, names); err != nil {
			return err
		}
		rows, err := q.CronSettle(ctx, names)
		for _, r := range rows {
			if r.ReadySeq.Valid {
				places = append(places, queue.Place{r.Queue, r.Priority, r.ReadySeq.Int64})
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return places, nil
}

// warnOfWaiting tells the operator of crons that take longer than their interval.
func (s *Store) warnOfWaiting(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	held, err := s.db.Q.CronListHeld(ctx, names)
	if err != nil {
		return // it will be counted at the next tick
	}
	for _, h := range held {
		if h.Held > tooManyHeld {
			s.logger.WarnContext(ctx, "jobs of a cron wait for each other", slog.String("cron", h.Cron), slog.Int64("waiting", h.Held))
		}
	}
}

// Trigger makes a job of the cron now, paused or not, whatever of its jobs runs (docs/reference/scheduling.md, Cron endpoints). Those that could
// be fetched wait for it.
func (s *Store) Trigger(ctx context.Context, name string) (*job.Record, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	var res queue.Inserted
	var span tracing.Enqueue
	err := s.db.InPartitionedTx(bounded, func(tx pgx.Tx) (err error) {
		res, err = s.trigger(bounded, tx, name, &span)
		return err
	})
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
	draining, err := q.CronListDraining(ctx, []string{j.Queue})
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
	mark := dbsqlc.CronMarkParams{Ids: [][16]byte{j.ID}, Names: []string{name}, Serial: []bool{serial}, Held: []bool{false}}
	res, err := s.insertMarked(ctx, tx, []*job.Job{j}, mark)
	if err != nil || !serial {
		return res, err
	}
	if err := q.CronQueueUp(ctx, []string{name}); err != nil {
		return queue.Inserted{}, err
	}
	return res, q.CronHold(ctx, name, j.ID)
}
