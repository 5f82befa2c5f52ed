package store

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

// Jobs of a cron with policy enqueue run one after the other (contract 20 §11.8). All but one at most are held: available
// to look at, but without ready_seq, so that no fetch meets them. Every statement that makes such a job available leaves
// it held; only CronSettle releases, one at a time, after each commit that may let one go. Who should have done it may be
// gone, so the first of those held is due every two seconds.

const (
	heldAgain    = 2 * time.Second // as in the statements
	settleLock   = "1s"
	tooManyHeld  = 2
	settleWithin = 5 * time.Second
)

// cronsOf collects the crons of changed jobs; nil for nearly all.
func cronsOf[Row any](rows []Row, cron func(*Row) pgtype.Text) (names []string) {
	for i := range rows {
		if name := cron(&rows[i]); name.Valid && !slices.Contains(names, name.String) {
			names = append(names, name.String)
		}
	}
	return names
}

// settleCrons releases held jobs of the crons if nothing of theirs runs or is about to.
func (s *Store) settleCrons(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	places, err := s.releaseHeld(ctx, names)
	if err != nil {
		s.config.Logger.WarnContext(ctx, "held jobs of crons have to wait", slog.Any("error", err))
		s.armed(heldAgain)
		return
	}
	s.becameAvailable(places)
}

func (s *Store) releaseHeld(ctx context.Context, names []string) (places []place, err error) {
	held, err := s.q.CronListHeld(ctx, names)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	names = names[:0:0]
	for _, h := range held {
		names = append(names, h.Cron)
	}
	s.armed(heldAgain)
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
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
				places = append(places, place{r.Queue, r.Priority, r.ReadySeq.Int64})
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
	held, err := s.q.CronListHeld(ctx, names)
	if err != nil {
		return // it will be counted at the next tick
	}
	for _, h := range held {
		if h.Held > tooManyHeld {
			s.config.Logger.WarnContext(ctx, "jobs of a cron wait for each other", slog.String("cron", h.Cron), slog.Int64("waiting", h.Held))
		}
	}
}

// TriggerCron makes a job of the cron now, paused or not, whatever of its jobs runs (contract 20 §11.3). Those that could
// be fetched wait for it.
func (s *Store) TriggerCron(ctx context.Context, name string) (*dbsqlc.Job, error) {
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	var res []enqueued
	var span tracing.Enqueue
	err := s.inPartitionedTx(bounded, func(tx pgx.Tx) (err error) {
		res, err = s.trigger(bounded, tx, name, &span)
		return err
	})
	if err != nil {
		return nil, WireError(err)
	}
	span.Accepted(res[0].job.ID, res[0].job.State)
	s.afterEnqueue(ctx, res)
	return res[0].job, nil
}

func (s *Store) trigger(ctx context.Context, tx pgx.Tx, name string, span *tracing.Enqueue) ([]enqueued, error) {
	q := dbsqlc.New(tx)
	row, err := q.CronLock(ctx, name)
	if err != nil {
		return nil, cronMissing(err, name)
	}
	now, err := q.SystemPing(ctx)
	if err != nil {
		return nil, err
	}
	j, wire := s.cronJob(&row, now.Time)
	if wire != nil {
		return nil, wire
	}
	draining, err := q.CronListDraining(ctx, []string{j.Queue})
	if err != nil {
		return nil, err
	}
	if len(draining) > 0 {
		return nil, ojs.ErrQueuePaused(j.Queue).With("status", "draining")
	}
	if _, err := q.CronTrigger(ctx, dbsqlc.CronTriggerParams{ID: row.ID, Now: now, JobID: pgtype.UUID{Bytes: j.ID, Valid: true}}); err != nil {
		return nil, err
	}
	*span = s.config.Tracer.Enqueue(ctx, j)
	serial := row.OverlapPolicy == job.OverlapEnqueue
	mark := dbsqlc.CronMarkParams{Ids: [][16]byte{j.ID}, Names: []string{name}, Serial: []bool{serial}, Held: []bool{false}}
	res, err := s.insertMarked(ctx, tx, []*job.Job{j}, mark)
	if err != nil || !serial {
		return res, err
	}
	if err := q.CronQueueUp(ctx, []string{name}); err != nil {
		return nil, err
	}
	return res, q.CronHold(ctx, name, j.ID)
}

// aftermath collects what changed jobs mean to others.
type aftermath struct {
	places []place
	crons  []string // a job of theirs has moved
}

// add notes a job. One that is available and has no ready_seq waits for another of its cron.
func (m *aftermath) add(queue string, priority int16, seq pgtype.Int8, cron pgtype.Text) {
	if seq.Valid {
		m.places = append(m.places, place{queue, priority, seq.Int64})
	}
	if cron.Valid && !slices.Contains(m.crons, cron.String) {
		m.crons = append(m.crons, cron.String)
	}
}

// announce tells fetchers, and those who were waiting for their like.
func (s *Store) announce(ctx context.Context, m aftermath) {
	s.becameAvailable(m.places)
	s.settleCrons(ctx, m.crons)
}
