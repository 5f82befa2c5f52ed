package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// List is a filter of jobs, newest id first (docs/reference/http.md, List jobs). Empty fields match all.
type List struct {
	States, Queues, Types []string
	Before                *[16]byte // cursor: ids below it
	Offset, Limit         int
}

// CountLimit bounds the number of matches that a list counts.
const CountLimit = 10_000

// List returns a page, which may be shorter than the limit if its jobs are large, whether there are more pages, and the number of matches up to CountLimit.
func (s *Store) List(ctx context.Context, l List) (jobs []*job.Record, more bool, total int64, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	before, skip := before(l.Before), int64(l.Offset)
	rows, err := s.db.Q.JobListPage(ctx, dbsqlc.JobListPageParams{
		States: pg.Strings(l.States), Queues: pg.Strings(l.Queues), Types: pg.Strings(l.Types), Before: before,
		MaxRows: skip + int64(l.Limit) + 1, SkipRows: skip, PageRows: int64(l.Limit) + 1, MaxBytes: job.MaxBytes,
	})
	if err != nil {
		return nil, false, 0, pg.ClientError(err)
	}
	total, err = s.db.Q.JobCountPage(ctx, dbsqlc.JobCountPageParams{
		States: pg.Strings(l.States), Queues: pg.Strings(l.Queues), Types: pg.Strings(l.Types), MaxRows: CountLimit,
	})
	if err != nil {
		return nil, false, 0, pg.ClientError(err)
	}
	jobs, more = job.CutPage(rows, l.Limit, func(r *dbsqlc.Job) *job.Record { return (*job.Record)(r) })
	return jobs, more, min(total, CountLimit), nil
}

func before(id *[16]byte) pgtype.UUID {
	if id == nil {
		return pgtype.UUID{}
	}
	return pgtype.UUID{Bytes: *id, Valid: true}
}

// Candidates returns the ids of up to limit jobs that satisfy the filter, oldest id first, and whether there are more.
func (s *Store) Candidates(ctx context.Context, f job.BulkFilter, limit int) (ids [][16]byte, more bool, err error) {
	if err := job.ResolveAges(ctx, s.db.Now, &f.Since, &f.Until, &f.OlderThan); err != nil {
		return nil, false, pg.ClientError(err)
	}
	p := dbsqlc.JobListForBulkParams{
		States: texts(f.States), MaxRows: int64(limit) + 1, TypePrefix: f.TypePrefix,
		Type: pgtype.Text{String: f.Type, Valid: f.Type != "" || f.TypePrefix}, Queue: pg.Text(f.Queue),
		EnqueuedAfter:  pg.Timestamp(job.Latest(f.EnqueuedAfter, f.Since.At)),
		EnqueuedBefore: pg.Timestamp(job.Earliest(f.EnqueuedBefore, f.Until.At, f.OlderThan.At)),
	}
	if f.Priority != nil {
		p.Priority = pgtype.Int2{Int16: *f.Priority, Valid: true}
	}
	for {
		rows, err := s.candidatePage(ctx, p)
		if err != nil {
			return nil, false, err
		}
		for _, r := range rows {
			if !f.MatchesMeta(r.Meta) { // compared in Go, because -> on json fails for a row with \u0000
				continue
			}
			if len(ids) == limit {
				return ids, true, nil
			}
			ids = append(ids, r.ID)
		}
		if int64(len(rows)) < p.MaxRows {
			return ids, false, nil
		}
		p.After = before(&rows[len(rows)-1].ID)
	}
}

func (s *Store) candidatePage(ctx context.Context, p dbsqlc.JobListForBulkParams) ([]dbsqlc.JobListForBulkRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListForBulk(ctx, p)
	return rows, pg.ClientError(err)
}
