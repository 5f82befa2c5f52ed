package queue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Stats are the figures of one queue.
type Stats struct {
	Name   string
	Status string // active, paused, draining
	Counts map[ojs.JobState]int64
	// Only the bound by depth; a bound in bytes has no figure here.
	MaxDepth   int64                   // the bound of the queue; 0: none
	Rates      dbsqlc.QueueGetRatesRow // of the last 60 minutes
	ComputedAt time.Time
}

// QueueStats reads the figures in one snapshot, so the counts are exact. An unknown queue has zeros and is not created.
// All statements share a snapshot, or a job that moves between two of them would be counted twice or not at all. It is cheap for
// any number of jobs: kept counts plus the events that the relay has not published.
func (s *Store) QueueStats(ctx context.Context, name string) (Stats, error) {
	stats := Stats{Name: name, Status: "active", Counts: map[ojs.JobState]int64{}}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// The bound comes from the cache, at most a second old; everything else is of the snapshot.
	configured, err := s.configured.Get(ctx, name)
	if err != nil {
		return stats, err
	}
	if q := configured[name]; q != nil && q.Config.Backpressure != nil {
		stats.MaxDepth = q.Config.Backpressure.MaxDepth
	}
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := s.db.Q.WithTx(tx)
		now, err := q.SystemPing(ctx)
		if err != nil {
			return err
		}
		stats.ComputedAt = now.Time
		queue, err := q.QueueGet(ctx, name)
		if err == nil {
			stats.Status = queue.Status
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		counts, err := q.QueueCountListByQueue(ctx, name)
		if err != nil {
			return err
		}
		for _, c := range counts {
			stats.Counts[ojs.JobState(c.State)] = c.Count
		}
		stats.Rates, err = q.QueueGetRates(ctx, name)
		return err
	})
	return stats, pg.ClientError(err)
}

// QueuesAfter returns the queues whose names follow name, in order, and whether there are more.
// One row more than the page is read, to know whether there are more.
func (s *Store) QueuesAfter(ctx context.Context, name string, limit int) (rows []dbsqlc.QueueListAfterRow, more bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err = s.db.Q.QueueListAfter(ctx, name, int32(limit)+1)
	if err != nil {
		return nil, false, pg.ClientError(err)
	}
	if more = len(rows) > limit; more {
		rows = rows[:limit]
	}
	return rows, more, nil
}

// QueueChanged is called when the status or the configuration of a queue has changed on any node, or the queue was deleted; "": of any
// queue. Fetches look again, because a resumed queue has jobs that their cursors have passed. The next enqueue makes sure that the
// queue has a row.
// It must not block: it runs on the goroutine of the listener, or of a look of queueconfig.Cache.
func (s *Store) QueueChanged(name string) {
	if name == "" {
		s.queues.clear()
		s.NotifyAll()
		return
	}
	// Order: cursors are surveyed again before fetches are woken, or these would find nothing.
	s.queues.remove(name)
	s.cursors.surveyAgain(name)
	s.cursors.wakeQueue(name, maxWoken)
}

// QueueExists reports whether a queue has ever had a job or a setting.
func (s *Store) QueueExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	found, err := s.db.Q.QueueExists(ctx, name)
	return found, pg.ClientError(err)
}

// QueueGetTotals counts queues by status.
func (s *Store) QueueGetTotals(ctx context.Context) (dbsqlc.QueueGetTotalsRow, error) {
	return s.db.Q.QueueGetTotals(ctx)
}
