package cron

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/queue"
)

// Jobs of a cron with policy enqueue run one after the other (docs/reference/scheduling.md, Overlap). At most one of them can
// be fetched; the others are queued: their state is available, but they have no ready_seq. Every statement that makes such a
// job available leaves it queued. Only CronReleaseQueued releases one, after each commit that ends a job of the cron. The
// node of that commit may stop before the release, so the first queued job is due every two seconds.

const (
	// releaseLock is below releaseTimeout, so a lock that somebody keeps is an error that can be told from a slow database.
	// The statements that queue a job set its due time by the same number; both must be changed together.
	queuedRetry    = 2 * time.Second // as in the statements
	releaseLock    = "1s"
	releaseTimeout = 5 * time.Second
	// Two may wait for a moment in normal operation, when a run takes a little longer than the interval.
	maxQueued = 2 // more are logged
)

// release releases the next queued job of each cron that has no other job active or ready to fetch. It is the hook of
// queue.Store.OnCronJobs, after the commit that ended a job, and returns no error for that reason. Repetitions and calls on
// several nodes are harmless. It goes on if ctx ends.
func (s *Store) release(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	places, limits, err := s.releaseQueued(ctx, names)
	if err != nil {
		s.logger.WarnContext(ctx, "queued jobs of crons were not released; trying again", slog.Any("error", err), slog.Duration("retry_in", queuedRetry))
		s.timer.Schedule(queuedRetry)
		return
	}
	// After the commit of the release.
	s.jobs.NotifyAvailable(places)
	s.jobs.FollowLimits(ctx, limits)
}

// releaseQueued looks first without a lock, because nearly always nothing is queued. Two commits that end jobs of a cron at the same
// moment must not both release one: hence CronLockSerial. A job that is queued after the look has its own timer, so it is
// not lost.
func (s *Store) releaseQueued(ctx context.Context, names []string) (places []queue.Place, limits []string, err error) {
	queued, err := s.db.Q.CronListQueued(ctx, names)
	if err != nil || len(queued) == 0 {
		return nil, nil, err
	}
	// A new array: the old one may be used by the caller.
	names = names[:0:0]
	for _, c := range queued {
		names = append(names, c.Cron)
	}
	// Before the transaction, so that it holds if that fails.
	s.timer.Schedule(queuedRetry)
	err = s.db.InTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		// A transaction of an application that keeps such a job locked must not keep acks waiting.
		if err := q.SystemLockTimeout(ctx, releaseLock); err != nil {
			return err
		}
		// It is an advisory lock by name, because a cron may be deleted while its jobs are still queued.
		if err := q.CronLockSerial(ctx, names); err != nil {
			return err
		}
		// The statement looks again under the lock; what the look before has shown may be over.
		rows, err := q.CronReleaseQueued(ctx, names)
		for _, r := range rows {
			// A job with a limit is not ready yet: package limit gives it its place.
			if r.LimitKey.Valid {
				limits = append(limits, r.LimitKey.String)
			}
			if r.ReadySeq.Valid {
				places = append(places, queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.ReadySeq.Int64})
			}
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return places, limits, nil
}

// warnQueued logs crons whose jobs take longer than their interval. It counts without a lock; the line is a hint. Only
// crons that have just fired are looked at, so a cron is logged once per tick.
func (s *Store) warnQueued(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	queued, err := s.db.Q.CronListQueued(ctx, names)
	if err != nil {
		s.logger.WarnContext(ctx, "queued jobs of crons were not counted", slog.Any("error", err))
		return
	}
	for _, c := range queued {
		if c.Queued > maxQueued {
			s.logger.WarnContext(ctx, "jobs of a cron with overlap_policy enqueue pile up; lengthen its interval or change the policy",
				slog.String("cron", c.Cron), slog.Int64("queued", c.Queued))
		}
	}
}
