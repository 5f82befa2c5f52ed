package store

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// Ping asks the database for its time.
func (s *Store) Ping(ctx context.Context) (time.Time, error) {
	now, err := s.q.SystemPing(ctx)
	return now.Time, err
}

// Prepare makes sure that there are partitions to write to, and learns which workers get no jobs.
func (s *Store) Prepare(ctx context.Context) error {
	if _, err := s.q.SystemPartitionsEnsure(ctx); err != nil {
		return err
	}
	s.hearAgain()
	return s.LearnQuiet(ctx)
}

// QueueTotals counts queues by status.
func (s *Store) QueueTotals(ctx context.Context) (dbsqlc.QueueTotalsRow, error) {
	return s.q.QueueTotals(ctx)
}

// Reset empties everything, what this node remembers included. For tests only.
func (s *Store) Reset(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.q.SystemReset(ctx)
	for tries := 0; retryable(err) && tries < 10; tries++ { // TRUNCATE against anything that reads several tables
		err = s.q.SystemReset(ctx)
	}
	if err != nil {
		return WireError(err)
	}
	s.Forget()
	return nil
}

// Forget drops what this node remembers of queues, jobs and workers; what it needs it reads again.
func (s *Store) Forget() {
	s.queues.Clear()
	s.crew.forget()
	s.ready.forget()
}
