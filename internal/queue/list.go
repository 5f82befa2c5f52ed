package queue

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// List is a filter of jobs, newest id first (docs/reference/http.md, List jobs). Empty fields match all.
type List struct {
	// "": the jobs of all tenants, and those without one.
	Tenant                string
	States, Queues, Types []string
	Before                *[16]byte // cursor: ids below it
	// The API has cut them to its bounds. Limit is above 0.
	Offset, Limit int
}

// CountLimit bounds the number of matches that a list counts.
// Clients see it (docs/reference/http.md, Pagination). Each match above it would have to be read to be counted.
const CountLimit = 10_000

// JobPage is a page of jobs. It may be shorter than the limit although there are more: its jobs are large, or few of those that
// were looked at match.
type JobPage struct {
	Jobs  []*job.Record
	Next  *[16]byte // the cursor of the next page; nil: there is none
	Total int64     // matches up to CountLimit, among the newest jobs that were looked at
}

// List returns a page.
// It takes a place among the slow reads of the node. The page is exact in one snapshot, but jobs move between two pages: one that
// ends is not shown twice, because ids do not change.
func (s *Store) List(ctx context.Context, l List) (page JobPage, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	states, queues, types, before, skip := pg.Strings(l.States), pg.Strings(l.Queues), pg.Strings(l.Types), before(l.Before), int64(l.Offset)
	looked, counted := s.maxLooked, s.maxLooked
	// A tenant is no filter in this sense: the statements have an index for it. So each job that is looked at counts.
	if len(states)+len(queues)+len(types) == 0 { // every job matches
		looked, counted = skip+int64(l.Limit)+1, CountLimit
	}
	// The jobs that one statement looks at must be those of the other.
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		rows, err := q.JobListPage(ctx, dbsqlc.JobListPageParams{
			States: states, Queues: queues, Types: types, Before: before,
			Tenant: l.Tenant, MaxLooked: looked, SkipRows: skip, PageRows: int64(l.Limit) + 1, MaxBytes: job.MaxBytes,
		})
		if err != nil {
			return err
		}
		var more bool
		// more is false also if the statement has looked at as many jobs as it may, and few of them match. Then the next page
		// begins behind the last one that was looked at.
		if page.Jobs, more = job.CutPage(rows, l.Limit, func(r *dbsqlc.Job) *job.Record { return (*job.Record)(r) }); more {
			page.Next = &page.Jobs[len(page.Jobs)-1].ID
		} else if looked == s.maxLooked {
			floor, err := q.JobListFloor(ctx, dbsqlc.JobListFloorParams{Tenant: l.Tenant, Before: before, MaxLooked: looked})
			if err != nil {
				return err
			}
			if len(floor) > 0 {
				page.Next = &floor[0]
			}
		}
		page.Total, err = q.JobCountPage(ctx, dbsqlc.JobCountPageParams{
			Tenant: l.Tenant, States: states, Queues: queues, Types: types, MaxLooked: counted, MaxRows: CountLimit,
		})
		return err
	})
	page.Total = min(page.Total, CountLimit)
	return page, pg.ClientError(err)
}

// NULL has the statements begin at the end of the list.
func before(id *[16]byte) pgtype.UUID {
	if id == nil {
		return pgtype.UUID{}
	}
	return pgtype.UUID{Bytes: *id, Valid: true}
}

// Candidates returns the ids of up to limit jobs that satisfy the filter, oldest id first, and whether there are more.
//
// The ids are those of a moment: the change that follows checks the states again. Each page is a snapshot of its own.
func (s *Store) Candidates(ctx context.Context, f job.BulkFilter, limit int) (ids [][16]byte, more bool, err error) {
	if err := job.ResolveAges(ctx, s.db.Now, &f.Since, &f.Until, &f.OlderThan); err != nil {
		return nil, false, pg.ClientError(err)
	}
	p := dbsqlc.JobListForBulkParams{
		Tenant: f.Tenant,
		States: texts(f.States), MaxLooked: s.maxLooked, MaxRows: int64(limit) + 1, TypePrefix: f.TypePrefix,
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
			if !r.Matches || !f.MatchesMeta(r.Meta) { // compared in Go, because -> on json fails for a row with \u0000
				continue
			}
			if len(ids) == limit {
				return ids, true, nil
			}
			ids = append(ids, r.ID)
		}
		// Fewer rows than asked for, and the last one was not the last that may be looked at: the table has ended.
		if int64(len(rows)) < p.MaxRows && (len(rows) == 0 || rows[len(rows)-1].Looked < p.MaxLooked) {
			return ids, false, nil
		}
		p.After = before(&rows[len(rows)-1].ID)
	}
}

// candidatePage takes its place among the reads for one page only: a filter that matches little reads many pages, and other calls
// must come between them.
func (s *Store) candidatePage(ctx context.Context, p dbsqlc.JobListForBulkParams) ([]dbsqlc.JobListForBulkRow, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	defer done()
	rows, err := s.db.Q.JobListForBulk(ctx, p)
	return rows, pg.ClientError(err)
}
