package deadletter

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// Prune deletes dead letters older than maxAge, then the oldest beyond maxCount. Zero: no limit.
func (s *Store) Prune(ctx context.Context, maxAge time.Duration, maxCount int64) (deleted int64, err error) {
	if maxAge > 0 {
		now, err := s.db.Now(ctx)
		if err != nil {
			return 0, err
		}
		if deleted, err = s.deleteDeadLetters(ctx, everything(pg.Timestamp(now.Add(-maxAge))), Key{}, "scheduler", "retention"); err != nil {
			return deleted, err
		}
	}
	if maxCount == 0 {
		return deleted, nil
	}
	beyond, err := s.beyond(ctx, maxCount)
	if err != nil || len(beyond) == 0 {
		return deleted, err
	}
	n, err := s.deleteDeadLetters(ctx, everything(forever), Key{At: beyond[0].DeadLetteredAt.Time, ID: beyond[0].ID}, "scheduler", "retention")
	return deleted + n, err
}

func (s *Store) beyond(ctx context.Context, maxCount int64) ([]dbsqlc.DeadLetterCutoffRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.db.Q.DeadLetterCutoff(ctx, maxCount)
}
