package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// Leave is a worker's farewell.
type Leave struct {
	WorkerID      string
	Reason        string // shutdown, signal or error
	JobsCompleted int64  // negative: not said
}

// Deregister removes a worker. What it holds runs out, unless it had been declared dead: then it is recovered.
func (s *Store) Deregister(ctx context.Context, l Leave) error {
	worker, err := s.Worker(ctx, l.WorkerID)
	if err != nil {
		return err
	}
	if worker.StaleAt.Valid {
		if _, err := s.exhume(ctx, l.WorkerID); err != nil && !errors.Is(err, errAlive) {
			return err
		}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	gone, err := s.q.WorkerDeregister(ctx, dbsqlc.WorkerDeregisterParams{
		ID: l.WorkerID, Source: WorkerSource(l.WorkerID), Node: s.node, Reason: l.Reason,
		JobsCompleted: pgtype.Int8{Int64: l.JobsCompleted, Valid: l.JobsCompleted >= 0},
	})
	if err != nil {
		return WireError(err)
	}
	if len(gone) == 0 {
		return ojs.ErrNotFound("worker", l.WorkerID)
	}
	tell(ctx, s, gone, deregisterChange)
	s.crew.set(l.WorkerID, false)
	s.committedEvents()
	return nil
}

// Direct stores an operator's directive: running, quiet or terminate.
func (s *Store) Direct(ctx context.Context, id, directive string) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.WorkerDirect(ctx, directive, id)
	if err != nil {
		return WireError(err)
	}
	if len(rows) == 0 {
		return ojs.ErrNotFound("worker", id)
	}
	s.crew.set(id, quieted(directive) || quieted(rows[0].State))
	return nil
}

// DirectAll is Direct for all workers that live, and returns their number.
func (s *Store) DirectAll(ctx context.Context, directive string) (int, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.WorkerDirectAll(ctx, directive)
	for _, r := range rows {
		s.crew.set(r.ID, quieted(directive) || quieted(r.State))
	}
	return len(rows), WireError(err)
}

// Worker reads one; unknown gives ojs.ErrNotFound.
func (s *Store) Worker(ctx context.Context, id string) (dbsqlc.Worker, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	w, err := s.q.WorkerGet(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, ojs.ErrNotFound("worker", id)
	}
	return w, WireError(err)
}

// JobsHeldBy are those of the jobs that are reserved for the worker.
func (s *Store) JobsHeldBy(ctx context.Context, worker string, ids [][16]byte) ([]dbsqlc.JobListHeldByRow, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobListHeldBy(ctx, ids, worker)
	return rows, WireError(err)
}

// WorkerList chooses workers, by id. Empty filters match all.
type WorkerList struct {
	States, Queues []string
	Offset, Limit  int
}

// Workers returns a page, the number of matches, and how many workers there are in all by state.
func (s *Store) Workers(ctx context.Context, l WorkerList) (workers []dbsqlc.Worker, total int64, sums dbsqlc.WorkerTotalsRow, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	states, queues := orEmpty(l.States), orEmpty(l.Queues)
	workers, err = s.q.WorkerListPage(ctx, dbsqlc.WorkerListPageParams{
		States: states, Queues: queues, SkipRows: int64(l.Offset), PageRows: int64(l.Limit),
	})
	if err != nil {
		return nil, 0, sums, WireError(err)
	}
	if total, err = s.q.WorkerCount(ctx, states, queues); err != nil {
		return nil, 0, sums, WireError(err)
	}
	sums, err = s.q.WorkerTotals(ctx)
	return workers, total, sums, WireError(err)
}

// WorkerTotals counts workers by state.
func (s *Store) WorkerTotals(ctx context.Context) (dbsqlc.WorkerTotalsRow, error) {
	return s.q.WorkerTotals(ctx)
}

// WorkerDeadAfter is the silence that means death.
func (s *Store) WorkerDeadAfter() time.Duration { return s.config.WorkerDeadAfter }

// DefaultVisibility is the reservation of a job when nobody asks for another.
func (s *Store) DefaultVisibility() time.Duration { return s.config.DefaultVisibility }
