package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// List is a filter of jobs, newest id first (docs/reference/http.md, Pagination). Empty fields match all.
type List struct {
	States, Queues, Types []string
	Before                *[16]byte // cursor: ids below it
	Offset, Limit         int
}

// CountLimit bounds the number of matches that a list counts.
const CountLimit = 10_000

// List returns a page, whether there are more pages, and the number of matches up to CountLimit.
func (s *Store) List(ctx context.Context, l List) (jobs []*job.Record, more bool, total int64, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	before, skip := before(l.Before), int64(l.Offset)
	rows, err := s.db.Q.JobListPage(ctx, dbsqlc.JobListPageParams{
		States: pg.Strings(l.States), Queues: pg.Strings(l.Queues), Types: pg.Strings(l.Types), Before: before,
		MaxRows: skip + int64(l.Limit) + 1, SkipRows: skip, PageRows: int64(l.Limit) + 1,
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
	if more = len(rows) > l.Limit; more {
		rows = rows[:l.Limit]
	}
	for i := range rows {
		jobs = append(jobs, (*job.Record)(&rows[i]))
	}
	return jobs, more, min(total, CountLimit), nil
}

func before(id *[16]byte) pgtype.UUID {
	if id == nil {
		return pgtype.UUID{}
	}
	return pgtype.UUID{Bytes: *id, Valid: true}
}

// Candidates is a filter of jobs for a bulk operation, oldest id first. nil fields match all.
type Candidates struct {
	States     []ojs.JobState
	Type       *string
	TypePrefix bool // Type is a prefix
	Queue      *string
	Priority   *int16
	Before     time.Time              // enqueued before this, or created if never enqueued; zero: any
	After      time.Time              // enqueued after this, or created; zero: any
	Meta       func(meta []byte) bool // called in Go, because -> on json fails for a row with \u0000
	Max        int
}

// Candidates returns up to Max matching ids, and whether there are more.
func (s *Store) Candidates(ctx context.Context, c Candidates) (ids [][16]byte, more bool, err error) {
	p := dbsqlc.JobListForBulkParams{States: texts(c.States), MaxRows: int64(c.Max) + 1, TypePrefix: c.TypePrefix}
	if c.Type != nil {
		p.Type = pgtype.Text{String: *c.Type, Valid: true}
	}
	if c.Queue != nil {
		p.Queue = pgtype.Text{String: *c.Queue, Valid: true}
	}
	if c.Priority != nil {
		p.Priority = pgtype.Int2{Int16: *c.Priority, Valid: true}
	}
	p.EnqueuedBefore = pg.Timestamp(c.Before)
	p.EnqueuedAfter = pg.Timestamp(c.After)
	for {
		rows, err := s.candidatePage(ctx, p)
		if err != nil {
			return nil, false, err
		}
		for _, r := range rows {
			if c.Meta != nil && !c.Meta(r.Meta) {
				continue
			}
			if len(ids) == c.Max {
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
