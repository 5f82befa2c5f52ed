// Package stats owns the figures that administrators look at: of queues, of the whole deployment, and their history. They come from what
// the relay keeps (counts per queue and state, events and run times per minute), so a read takes the same time with any backlog. The
// package must never count jobs, and never change anything.
package stats

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Store reads the figures. Use New. It only reads, in short transactions of its own, and may be used by any number of
// goroutines.
type Store struct{ db *pg.DB }

// New returns a store on the database.
func New(db *pg.DB) *Store { return &Store{db} }

// Counts are jobs per state. A state without jobs may be missing, which reads as 0.
type Counts map[ojs.JobState]int64

// Rates are what happened in 60 s.
type Rates struct {
	Enqueued, Completed, Failed float64       // jobs, and failed attempts
	Ran                         time.Duration // the sum of the run times of completed jobs
}

// Deployment are the figures of all queues, or of one.
type Deployment struct {
	Jobs    Counts
	Rates   Rates // of the last 60 s
	Queues  Totals
	Workers WorkerTotals
}

// Totals are queues per status.
type Totals struct{ Total, Active, Paused int64 }

// WorkerTotals are workers per state.
type WorkerTotals struct{ Total, Running, Quiet, Terminate, Stale int64 }

// Deployment reads the figures in one snapshot, so that the counts are exact. With a queue, jobs and rates are those of the queue; an
// unknown one has none.
func (s *Store) Deployment(ctx context.Context, queue string) (Deployment, error) {
	d := Deployment{Jobs: Counts{}}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err := pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := s.db.Q.WithTx(tx)
		if err := d.readJobs(ctx, q, queue); err != nil {
			return err
		}
		latest, err := q.StatsMinuteGetLatest(ctx, queue)
		if err != nil {
			return err
		}
		d.Rates = Rates{latest.Enqueued, latest.Completed, latest.Failed, time.Duration(latest.DurationMs * float64(time.Millisecond))}
		queues, err := q.QueueGetTotals(ctx)
		if err != nil {
			return err
		}
		d.Queues = Totals(queues)
		workers, err := q.WorkerGetTotals(ctx, "")
		d.Workers = WorkerTotals(workers)
		return err
	})
	return d, pg.ClientError(err)
}

func (d *Deployment) readJobs(ctx context.Context, q *dbsqlc.Queries, queue string) error {
	if queue == "" {
		rows, err := q.StatsCountByState(ctx)
		for _, r := range rows {
			d.Jobs[ojs.JobState(r.State)] = r.Count
		}
		return err
	}
	rows, err := q.QueueCountListByQueue(ctx, queue)
	for _, r := range rows {
		d.Jobs[ojs.JobState(r.State)] = r.Count
	}
	return err
}
