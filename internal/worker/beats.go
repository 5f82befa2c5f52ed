package worker

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/pg"
)

// beatInterval is how often beats are written while there are any: 5 s, and never near the silence that means death.
func (s *Store) beatInterval() time.Duration { return min(5*time.Second, s.config.DeadAfter/4) }

// writeBeats writes the calls of workers that this node has collected; without any it issues no statement.
func (s *Store) writeBeats(ctx context.Context) error {
	beats := s.workers.TakeBeats()
	if len(beats) == 0 {
		return nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids, ages := make([]string, 0, len(beats)), make([]int64, 0, len(beats))
	for id, at := range beats {
		ids, ages = append(ids, id), append(ages, time.Since(at).Milliseconds())
	}
	err := s.db.Q.WorkerUpdateSeen(ctx, ids, ages)
	if err != nil {
		s.workers.ReturnBeats(beats)
	}
	return pg.ClientError(err)
}

// readQuiet reads which workers get no jobs.
func (s *Store) readQuiet(ctx context.Context) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	s.workers.BeginRead()
	ids, err := s.db.Q.WorkerListQuiet(ctx)
	if err != nil {
		return err
	}
	s.workers.EndRead(ids)
	return nil
}
