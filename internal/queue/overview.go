package queue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// maxOverview bounds the queues, and the workers, of an overview.
// The stream shows no more; figures of the others are in the lists.
const maxOverview = 1000

// Overview holds the figures of the live view (docs/reference/events.md, Statistics stream). They come from stored counts,
// so the cost does not depend on the number of jobs.
// It lags behind commits by the pass of the relay, unlike QueueStats, which adds unpublished events.
type Overview struct {
	Queues  []dbsqlc.QueueCountListRow
	Latest  dbsqlc.StatsMinuteGetLatestRow // sums over the last 60 s
	Workers []dbsqlc.WorkerListLatestRow
}

// Overview reads the figures.
func (s *Store) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err := pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
		q := s.db.Q.WithTx(tx)
		if o.Queues, err = q.QueueCountList(ctx, maxOverview); err != nil {
			return err
		}
		if o.Latest, err = q.StatsMinuteGetLatest(ctx, ""); err != nil {
			return err
		}
		o.Workers, err = q.WorkerListLatest(ctx, maxOverview)
		return err
	})
	return o, pg.ClientError(err)
}
