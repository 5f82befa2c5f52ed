package worker

import (
	"context"
	"errors"

	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Deregister removes a worker. What it holds runs out, unless it had been declared dead: then it is recovered.
func (s *Store) Deregister(ctx context.Context, l Leave) error {
	worker, err := s.Get(ctx, l.WorkerID)
	if err != nil {
		return err
	}
	if worker.StaleAt.Valid {
		if _, err := s.exhume(ctx, l.WorkerID); err != nil && !errors.Is(err, errAlive) {
			return err
		}
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	gone, err := s.db.Q.WorkerDeregister(ctx, dbsqlc.WorkerDeregisterParams{
		ID: l.WorkerID, Source: eventlog.WorkerSource(l.WorkerID), Node: s.commits.Node, Reason: l.Reason, EventType: ojs.EventWorkerStopped,
		JobsCompleted: pgtype.Int8{Int64: l.JobsCompleted, Valid: l.JobsCompleted >= 0},
	})
	if err != nil {
		return pg.ClientError(err)
	}
	if len(gone) == 0 {
		return ojs.ErrNotFound("worker", l.WorkerID)
	}
	eventlog.Emit(ctx, s.commits, gone, deregisterChange)
	s.workers.SetQuiet(l.WorkerID, false)
	s.commits.Committed()
	return nil
}

// Direct stores an operator's directive: running, quiet or terminate.
func (s *Store) Direct(ctx context.Context, id, directive string) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirective(ctx, directive, id)
	if err != nil {
		return pg.ClientError(err)
	}
	if len(rows) == 0 {
		return ojs.ErrNotFound("worker", id)
	}
	s.workers.SetQuiet(id, quieted(directive) || quieted(rows[0].State))
	return nil
}

// DirectAll is Direct for all workers that live, and returns their number.
func (s *Store) DirectAll(ctx context.Context, directive string) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirectiveAll(ctx, directive)
	for _, r := range rows {
		s.workers.SetQuiet(r.ID, quieted(directive) || quieted(r.State))
	}
	return len(rows), pg.ClientError(err)
}

// Get reads one; unknown gives ojs.ErrNotFound.
func (s *Store) Get(ctx context.Context, id string) (Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	w, err := s.db.Q.WorkerGet(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, ojs.ErrNotFound("worker", id)
	}
	return Record(w), pg.ClientError(err)
}

// Reserved are those of the jobs that are reserved for the worker.
func (s *Store) Reserved(ctx context.Context, worker string, ids [][16]byte) ([]ReservedJob, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByWorker(ctx, ids, worker)
	return sliceutil.Map(rows, func(r dbsqlc.JobListByWorkerRow) ReservedJob { return ReservedJob(r) }), pg.ClientError(err)
}

// Filter chooses workers, by id. Empty filters match all.
type Filter struct {
	States, Queues []string
	Offset, Limit  int
}

// Page is a part of the list of workers.
type Page struct {
	Workers []Record
	Matches int64  // of the filter, on all pages
	Totals  Totals // of all workers
}

// List returns a page of workers.
func (s *Store) List(ctx context.Context, l Filter) (Page, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	states, queues := pg.Strings(l.States), pg.Strings(l.Queues)
	rows, err := s.db.Q.WorkerListPage(ctx, dbsqlc.WorkerListPageParams{
		States: states, Queues: queues, SkipRows: int64(l.Offset), PageRows: int64(l.Limit),
	})
	if err != nil {
		return Page{}, pg.ClientError(err)
	}
	page := Page{Workers: sliceutil.Map(rows, func(w dbsqlc.Worker) Record { return Record(w) })}
	if page.Matches, err = s.db.Q.WorkerCount(ctx, states, queues); err != nil {
		return Page{}, pg.ClientError(err)
	}
	page.Totals, err = s.Totals(ctx)
	return page, pg.ClientError(err)
}

// Totals counts workers by state.
func (s *Store) Totals(ctx context.Context) (Totals, error) {
	row, err := s.db.Q.WorkerGetTotals(ctx)
	return Totals(row), err
}
