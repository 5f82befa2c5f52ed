package queue

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// Orders of a search. SortCreated is the order of ids.
const (
	SortCreated   = "created_at"
	SortScheduled = "scheduled_at"
	SortPriority  = "priority"
)

// Search is what an administrator looks for (docs/reference/admin.md, Jobs). Empty fields match all.
type Search struct {
	Tenant              string
	States, Queues      []string
	Types, TypePrefixes []string // either matches
	// Ages are resolved by the clock of the database when the search begins.
	Since, Until  job.When // of created_at
	Sort          string
	Ascending     bool
	Cursor        *[16]byte // only with SortCreated: the jobs behind it
	Offset, Limit int
}

// SearchPage is a page of jobs. Those of 8 KiB and more may be without what their client sent.
type SearchPage struct {
	Jobs  []*job.Record
	Total int64     // matches up to CountLimit
	More  bool      // there are more behind the page
	Next  *[16]byte // the cursor of the next page; nil: there is none, or the order is not that of ids
}

// idSlack is how far the time in an id may be from created_at. The server makes both at the same moment, by its estimate of the
// database's clock; clients may choose ids.
// A job whose id was chosen for another time is not found by a search with a bound, unless that is wide enough.
const idSlack = time.Hour

var (
	firstID [16]byte
	lastID  = [16]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// Search finds jobs.
func (s *Store) Search(ctx context.Context, f Search) (page SearchPage, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	if err := job.ResolveAges(ctx, s.db.Now, &f.Since, &f.Until); err != nil {
		return page, pg.ClientError(err)
	}
	// The jobs that are shown must be those that were found.
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		found, err := search(ctx, q, f, s.maxLooked)
		if err != nil {
			return err
		}
		page = f.page(found)
		rows, err := q.JobListByID(ctx, job.SizeOfEach(len(found.Ids)), found.Ids)
		if err != nil {
			return err
		}
		page.Jobs = InOrder(len(found.Ids), func(i int) [16]byte { return found.Ids[i] }, rows,
			func(r *dbsqlc.JobListByIDRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
		return nil
	})
	return page, pg.ClientError(err)
}

// The bounds of created_at are bounds of ids as well, because only ids have an index; the statement compares created_at again.
func search(ctx context.Context, q *dbsqlc.Queries, f Search, maxLooked int64) (dbsqlc.JobSearchNewestRow, error) {
	p := dbsqlc.JobSearchNewestParams{
		Tenant: f.Tenant, States: pg.Strings(f.States), Queues: pg.Strings(f.Queues), Types: pg.Strings(f.Types), TypePrefixes: pg.Strings(f.TypePrefixes),
		Since: pg.Beginning, Until: pg.End, After: firstID, Before: lastID,
		MaxLooked: maxLooked, MaxRows: CountLimit + 1, SkipRows: int64(f.Offset), PageRows: int64(f.Limit), Ascending: f.Ascending,
	}
	if f.Sort != SortCreated {
		p.SortBy = f.Sort
	}
	if f.Since.Set {
		p.Since, p.After = pg.Timestamp(f.Since.At), idAt(f.Since.At.Add(-idSlack))
	}
	if f.Until.Set {
		p.Until, p.Before = pg.Timestamp(f.Until.At), idAt(f.Until.At.Add(idSlack))
	}
	// Other orders sort the newest jobs that match, and have no cursor.
	if f.Sort != SortCreated || !f.Ascending {
		if f.Cursor != nil {
			p.Before = earlier(p.Before, *f.Cursor)
		}
		return q.JobSearchNewest(ctx, p)
	}
	if f.Cursor != nil {
		p.After = later(p.After, *f.Cursor)
	}
	row, err := q.JobSearchOldest(ctx, dbsqlc.JobSearchOldestParams{
		Tenant: p.Tenant, States: p.States, Queues: p.Queues, Types: p.Types, TypePrefixes: p.TypePrefixes, Since: p.Since, Until: p.Until,
		After: p.After, Before: p.Before, MaxLooked: p.MaxLooked, MaxRows: p.MaxRows, SkipRows: p.SkipRows, PageRows: p.PageRows,
	})
	return dbsqlc.JobSearchNewestRow(row), err
}

// page is what comes behind the jobs that were found.
func (f Search) page(found dbsqlc.JobSearchNewestRow) SearchPage {
	page := SearchPage{Total: min(found.Matches, CountLimit)}
	shown := int64(f.Offset + len(found.Ids))
	page.More = shown < page.Total
	if f.Sort != SortCreated {
		return page
	}
	switch {
	case len(found.Ids) > 0 && shown < found.Matches:
		page.Next = &found.Ids[len(found.Ids)-1]
	// All matches that were looked at are shown, but the statement has stopped before the end of the table.
	case found.LastLooked != firstID && shown >= found.Matches:
		page.Next = &found.LastLooked
	}
	page.More = page.Next != nil
	return page
}

// idAt is the lowest id of the time, by its first 48 bits.
// Ids are UUIDv7, whose first 48 bits are milliseconds since 1970.
func idAt(t time.Time) (id [16]byte) {
	ms := min(max(t.UnixMilli(), 0), 1<<48-1)
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16)
	return id
}

// Ids compare as bytes, as uuid does in PostgreSQL.
func earlier(a, b [16]byte) [16]byte {
	if string(b[:]) < string(a[:]) {
		return b
	}
	return a
}

func later(a, b [16]byte) [16]byte {
	if string(b[:]) > string(a[:]) {
		return b
	}
	return a
}
