package queue

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/rawjson"
)

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
			Tenant:  l.Tenant,
			MaxSize: job.SizeOfEach(l.Limit + 1), Before: before(l.Before), MaxLooked: s.maxLooked, SkipRows: int64(l.Offset), PageRows: int64(l.Limit) + 1,
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
	for literal, value := range rawjson.Members(extra) {
		if string(rawjson.Name(literal)) == "unique" {
			if u := job.ParseUnique(value, nil); u != nil {
				return u.Period
			}
		}
	}
	return 0
}
