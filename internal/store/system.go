package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

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

// withPartitions makes tomorrow's partitions if nobody has and do finds none, and tries again.
func (s *Store) withPartitions(ctx context.Context, do func() error) error {
	err := do()
	if !noPartition(err) {
		return err
	}
	if _, err := s.q.SystemPartitionsEnsure(ctx); err != nil {
		return err
	}
	return do()
}

// inPartitionedTx is withPartitions for a whole transaction: inside of one nothing can follow an error.
func (s *Store) inPartitionedTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return s.withPartitions(ctx, func() error { return pgx.BeginFunc(ctx, s.pool, do) })
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
