package queue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// maxOverview bounds the queues and the workers of an overview.
const maxOverview = 1000

// Overview is what a live view of the whole system shows (docs/reference/events.md, Statistics stream). It is read from the kept counts, so it costs
// the same whatever the backlog is.
type Overview struct {
	Queues  []dbsqlc.QueueCountListRow
	Latest  dbsqlc.StatsMinuteGetLatestRow // sums over the last 60 s
	Workers []dbsqlc.WorkerListLatestRow
}

// Overview reads it.
func (s *Store) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, s.db.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		q := s.db.Q.WithTx(tx)
		if o.Queues, err = q.QueueCountList(ctx, maxOverview); err != nil {
			return err
		}
		if o.Latest, err = q.StatsMinuteGetLatest(ctx); err != nil {
			return err
		}
		o.Workers, err = q.WorkerListLatest(ctx, maxOverview)
		return err
	})
	return o, pg.ClientError(err)
}

// QueueExists reports whether a queue has ever had a job or a setting.
func (s *Store) QueueExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	found, err := s.db.Q.QueueExists(ctx, name)
	return found, pg.ClientError(err)
}
