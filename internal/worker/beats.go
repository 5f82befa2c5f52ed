package worker

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/pg"
)

// beatInterval is how often collected beats are written: well within the silence after which a worker is dead. A worker
// that only fetches therefore looks silent for up to this much longer than it is.
func (s *Store) beatInterval() time.Duration { return min(5*time.Second, s.config.DeadAfter/4) }

// writeBeats writes the collected calls of workers. Without any it sends no statement. Ages are sent instead of times,
// because the clock of the node may be wrong; the statement subtracts them from the clock of the database and never moves
// last_seen_at back, so nodes may write in any order. Beats that are not written when the node stops are lost; the worker
// has by then called another node, or will.
func (s *Store) writeBeats(ctx context.Context) error {
	// From here on the beats are only in this variable, until they are written or returned.
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
	// If the write has committed in spite of the error, writing it again changes nothing.
	if err != nil {
		s.workers.ReturnBeats(beats)
	}
	return pg.WriteError(err)
}

// readQuiet reads which workers are quiet. BeginRead comes before the statement, so that a change by this node during the
// read wins over what was read.
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
