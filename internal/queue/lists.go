package queue

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
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
	states, queues, types, before, skip := pg.Strings(l.States), pg.Strings(l.Queues), pg.Strings(l.Types), before(l.Before),
		int64(l.Offset)
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

// before is where a list goes on; NULL has the statements begin at its end.
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
		// A place among the reads for one page only: a filter that matches little reads many pages, and other calls must come between them.
		reading, done, err := s.db.Reading(ctx)
		if err != nil {
			return nil, false, pg.ClientError(err)
		}
		rows, err := s.db.Q.JobListForBulk(reading, p)
		done()
		if err != nil {
			return nil, false, pg.ClientError(err)
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

// Orders of a search. SortCreated is the order of ids.
const (
	SortCreated   = "created_at"
	SortScheduled = "scheduled_at"
	SortPriority  = "priority"
	SortStarted   = "started_at" // ascending and active: the longest running jobs
)

// maxSearched is how many jobs a page of a search by text looks at; docs/reference/admin.md, Jobs. 10 000 of 10 KiB take 0.3 s.
const maxSearched = 10_000

// Search is what an administrator looks for (docs/reference/admin.md, Jobs). Empty fields match all.
type Search struct {
	Tenant              string
	States, Queues      []string
	Types, TypePrefixes []string // either matches
	// Ages are resolved by the clock of the database when the search begins.
	Since, Until  job.When // of created_at
	Contains      string   // in args or meta, as they are stored
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
		rows, err := q.JobListByID(ctx, job.MaxWholeSize(len(found.Ids)), found.Ids)
		if err != nil {
			return err
		}
		page.Jobs = InOrder(len(found.Ids), func(i int) [16]byte { return found.Ids[i] }, rows,
			func(r *dbsqlc.JobListByIDRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
		return nil
	})
	return page, pg.ClientError(err)
}

// search turns the bounds of created_at into bounds of ids as well, because only ids have an index; the statement compares created_at
// again.
func search(ctx context.Context, q *dbsqlc.Queries, f Search, maxLooked int64) (dbsqlc.JobSearchNewestRow, error) {
	p := dbsqlc.JobSearchNewestParams{
		Tenant: f.Tenant, States: pg.Strings(f.States), Queues: pg.Strings(f.Queues), Types: pg.Strings(f.Types),
		TypePrefixes: pg.Strings(f.TypePrefixes), Contains: f.Contains, Since: pg.Beginning, Until: pg.End, After: firstID, Before: lastID,
		MaxLooked: maxLooked, MaxRows: CountLimit + 1, SkipRows: int64(f.Offset), PageRows: int64(f.Limit), Ascending: f.Ascending,
	}
	if f.Sort != SortCreated {
		p.SortBy = f.Sort
	}
	if f.Contains != "" { // each text that is looked at is read whole
		p.MaxLooked = min(p.MaxLooked, maxSearched)
	}
	if f.Since.Set {
		p.Since, p.After = pg.Timestamp(f.Since.At), idAt(f.Since.At.Add(-idSlack))
	}
	if f.Until.Set {
		p.Until, p.Before = pg.Timestamp(f.Until.At), idAt(f.Until.At.Add(idSlack))
	}
	// Other orders sort the newest jobs that match, and have no cursor.
	if f.Sort != SortCreated || !f.Ascending {
		if f.Cursor != nil && bytes.Compare(f.Cursor[:], p.Before[:]) < 0 { // ids compare as bytes, as uuid does in PostgreSQL
			p.Before = *f.Cursor
		}
		return q.JobSearchNewest(ctx, p)
	}
	if f.Cursor != nil && bytes.Compare(f.Cursor[:], p.After[:]) > 0 {
		p.After = *f.Cursor
	}
	row, err := q.JobSearchOldest(ctx, dbsqlc.JobSearchOldestParams{
		Tenant: p.Tenant, States: p.States, Queues: p.Queues, Types: p.Types, TypePrefixes: p.TypePrefixes, Contains: p.Contains,
		Since: p.Since, Until: p.Until, After: p.After, Before: p.Before,
		MaxLooked: p.MaxLooked, MaxRows: p.MaxRows, SkipRows: p.SkipRows, PageRows: p.PageRows,
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

// Get reads a live or finished job. The error of an unknown id is spec.NotFound.
// It looks into both tables by their primary keys, and takes no place among the slow reads: acks and cancels that were refused
// wait for it.
func (s *Store) Get(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByID(ctx, job.MaxWholeSize(1), [][16]byte{id})
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, spec.NotFound("job", spec.FormatID(id))
	}
	return (*job.Record)(&rows[0]), nil
}

// getEach reads many jobs, of which large ones are cut. Unknown ids are missing from the map.
// How large depends on their number: together they stay within job.MaxBytes.
func (s *Store) getEach(ctx context.Context, ids [][16]byte) (map[[16]byte]*job.Record, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByID(ctx, job.MaxWholeSize(len(ids)), ids)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	jobs := make(map[[16]byte]*job.Record, len(rows))
	for i := range rows {
		jobs[rows[i].ID] = (*job.Record)(&rows[i])
	}
	return jobs, nil
}

func texts(states []ojs.JobState) []string {
	res := make([]string, len(states))
	for i, state := range states {
		res[i] = string(state)
	}
	return res
}

// UniqueList is a page of the jobs that hold unique keys, newest id first (docs/reference/unique.md, List).
type UniqueList struct {
	Tenant        string    // "": the jobs of all
	Before        *[16]byte // cursor: ids below it
	Offset, Limit int
}

// UniqueJob is a job that holds a unique key and has not ended.
type UniqueJob struct {
	ID    [16]byte
	Key   string
	Type  string
	Queue string
	State string
	// It is what the policy says, not when another enqueue will succeed: the period of the new job's policy counts.
	LockedUntil time.Time // end of the period of its own policy; zero: that has none
}

// UniquePage is a page of them.
type UniquePage struct {
	Jobs  []UniqueJob
	More  bool
	Total int64 // up to CountLimit
}

// ListUnique returns a page. It looks at the newest jobs that have a key, up to pg.MaxLooked.
// Both statements share a snapshot. Reads of large jobs follow outside of it, so such a job may have gone: then it has no period.
func (s *Store) ListUnique(ctx context.Context, l UniqueList) (page UniquePage, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	var rows []dbsqlc.UniqueListPageRow
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		rows, err = q.UniqueListPage(ctx, dbsqlc.UniqueListPageParams{
			Tenant:       l.Tenant,
			MaxWholeSize: job.MaxWholeSize(l.Limit + 1), Before: before(l.Before), MaxLooked: s.maxLooked,
			SkipRows: int64(l.Offset), PageRows: int64(l.Limit) + 1,
		})
		if err != nil {
			return err
		}
		page.Total, err = q.UniqueCount(ctx, dbsqlc.UniqueCountParams{Tenant: l.Tenant, MaxLooked: s.maxLooked, MaxRows: CountLimit})
		return err
	})
	if err != nil {
		return page, pg.ClientError(err)
	}
	if page.More = len(rows) > l.Limit; page.More {
		rows = rows[:l.Limit]
	}
	for _, r := range rows {
		if r.Cut { // large ones are read one by one, for their policies
			if whole, err := s.Get(ctx, r.ID); err == nil {
				r.Extra = whole.Extra
			}
		}
		u := UniqueJob{ID: r.ID, Key: r.UniqueKey, Type: r.Type, Queue: r.Queue, State: r.State}
		if period := uniquePeriod(r.Extra); period > 0 {
			u.LockedUntil = r.CreatedAt.Time.Add(period)
		}
		page.Jobs = append(page.Jobs, u)
	}
	return page, nil
}

// uniquePeriod is that of the policy among the attributes that a client has sent; 0: none.
// The policy is stored only as the client has sent it, among extra. One that is not understood any more counts as none.
func uniquePeriod(extra jsontext.Value) time.Duration {
	if extra == nil {
		return 0
	}
	for literal, value := range jsonread.Members(extra) {
		if string(jsonread.Name(literal)) == "unique" {
			if u := job.ParseUnique(value, nil); u != nil {
				return u.Period
			}
		}
	}
	return 0
}

// maxOverview bounds the queues, and the workers, of an overview.
// The stream shows no more; figures of the others are in the lists.
const maxOverview = 1000

// Overview holds the figures of the live view (docs/reference/events.md, Statistics stream). They come from stored counts,
// so the cost does not depend on the number of jobs.
// It lags behind commits by the pass of the relay, unlike QueueStats, which adds unpublished events.
type Overview struct {
	Queues  []dbsqlc.QueueCountListRow
	Latest  dbsqlc.StatsMinuteGetLatestRow // sums over the last 60 s
	Workers []dbsqlc.WorkerListLatestRow
}

// Overview reads the figures.
func (s *Store) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err := pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
		q := s.db.Q.WithTx(tx)
		if o.Queues, err = q.QueueCountList(ctx, maxOverview); err != nil {
			return err
		}
		if o.Latest, err = q.StatsMinuteGetLatest(ctx, ""); err != nil {
			return err
		}
		o.Workers, err = q.WorkerListLatest(ctx, maxOverview)
		return err
	})
	return o, pg.ClientError(err)
}

// Explain is why a job is not running, as the JSON object of docs/reference/jobs.md, Explain. SQL makes it, because applications ask
// in SQL, too.
// It takes a place among the slow reads (pg.DB.Reading), because it looks at the queue, its limits and the jobs ahead.
func (s *Store) Explain(ctx context.Context, id [16]byte) ([]byte, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	defer done()
	explanation, err := s.db.Q.JobExplain(ctx, id)
	if err == nil && explanation == nil {
		err = spec.NotFound("job", spec.FormatID(id))
	}
	return explanation, pg.ClientError(err)
}
