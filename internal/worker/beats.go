package worker

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/pg"
)

// beatInterval is how often collected beats are written: well within the silence after which a worker is dead.
func (s *Store) beatInterval() time.Duration { return min(5*time.Second, s.config.DeadAfter/4) }

// writeBeats writes the collected calls of workers. Without any it sends no statement.
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
	return pg.WriteError(err)
}

// readQuiet reads which workers are quiet.
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
