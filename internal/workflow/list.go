package workflow

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// Filter selects roots. State takes the stored states; the transports translate aliases such as active. Name is compared
// exactly. Of Offset and Cursor at most one counts.
type Filter struct {
	Tenant string    // "": all
	State  string    // "": all
	Type   string    // "": all
	Name   string    // "": all
	Limit  int       // at least 1
	Offset int       // ignored with Cursor
	Cursor *[16]byte // list those behind this one, which are older
}

// Page is a part of the list of roots, newest first. It may be shorter than the limit although there are more, when few of the
// roots that were looked at match.
type Page struct {
	Workflows  []*Workflow // without steps
	StepCounts []int
	Total      int       // matches up to 10 000, among the newest roots that were looked at
	Next       *[16]byte // cursor of the next page; nil: there is none
}

// maxTotal bounds Page.Total.
const maxTotal = 10_000

// List lists roots. One statement looks at pg.MaxLooked of them; the next page begins behind the last one that was looked at.
func (s *Store) List(ctx context.Context, f Filter) (page Page, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	// The roots that one statement looks at must be those of the other.
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
		page, err = s.list(ctx, dbsqlc.New(tx), f)
		return err
	})
	return page, pg.ClientError(err)
}

func (s *Store) list(ctx context.Context, q *dbsqlc.Queries, f Filter) (page Page, err error) {
	p := dbsqlc.WorkflowListPageParams{
		Before: last, MaxLooked: s.maxLooked, Type: f.Type, Name: f.Name, SkipRows: int64(f.Offset), PageRows: int64(f.Limit) + 1,
	}
	if f.Cursor != nil {
		p.Before, p.SkipRows = *f.Cursor, 0
	}
	// The statements have an index for the tenant and one for the state, but none for both. Otherwise each root that is looked at counts.
	every := f.Type == "" && f.Name == "" && (f.Tenant == "" || f.State == "")
	if every {
		p.MaxLooked = p.SkipRows + p.PageRows
	}
	ids, err := listIDs(ctx, q, f, p)
	if err != nil {
		return page, err
	}
	// One id more than asked for shows that there are more. If there is none, the statement may have looked at as many roots as it may.
	if len(ids) > f.Limit {
		ids = ids[:f.Limit]
		page.Next = &ids[f.Limit-1]
	} else if !every {
		floor, err := q.WorkflowListFloor(ctx, dbsqlc.WorkflowListFloorParams{Tenant: f.Tenant, State: f.State, Before: p.Before, MaxLooked: p.MaxLooked})
		if err != nil {
			return page, err
		}
		if len(floor) > 0 {
			page.Next = &floor[0]
		}
	}
	if page.Workflows, err = roots(ctx, q, ids); err != nil {
		return page, err
	}
	for _, w := range page.Workflows {
		page.StepCounts = append(page.StepCounts, w.Total)
	}
	total, err := s.count(ctx, q, f)
	page.Total = int(total)
	return page, err
}

// Three statements instead of one with optional conditions: each has one index that gives its order, and a generic plan
// that takes it.
func listIDs(ctx context.Context, q *dbsqlc.Queries, f Filter, p dbsqlc.WorkflowListPageParams) ([][16]byte, error) {
	if f.Tenant != "" {
		return q.WorkflowListPageByTenant(ctx, dbsqlc.WorkflowListPageByTenantParams{
			Tenant: f.Tenant, State: f.State, Before: p.Before, MaxLooked: p.MaxLooked, Type: p.Type, Name: p.Name, SkipRows: p.SkipRows, PageRows: p.PageRows,
		})
	}
	if f.State == "" {
		return q.WorkflowListPage(ctx, p)
	}
	return q.WorkflowListPageByState(ctx, dbsqlc.WorkflowListPageByStateParams{
		State: f.State, Before: p.Before, MaxLooked: p.MaxLooked, Type: p.Type, Name: p.Name, SkipRows: p.SkipRows, PageRows: p.PageRows,
	})
}

// Rows come newest first, like the ids.
func roots(ctx context.Context, q *dbsqlc.Queries, ids [][16]byte) ([]*Workflow, error) {
	rows, err := q.WorkflowListRoots(ctx, ids)
	if err != nil {
		return nil, err
	}
	starts, err := q.WorkflowListStarts(ctx, ids)
	startedAt := make(map[[16]byte]*time.Time, len(starts))
	for _, st := range starts {
		startedAt[st.RootID] = timestamp(st.StartedAt)
	}
	list := make([]*Workflow, len(rows))
	for i := range rows {
		list[i] = shownWorkflow(&rows[i].Workflow)
		list[i].StartedAt = startedAt[list[i].ID]
	}
	return list, err
}

// It uses the same index as the page, by the same rule. Without a filter it ends at the 10 000th root.
func (s *Store) count(ctx context.Context, q *dbsqlc.Queries, f Filter) (int64, error) {
	if f.Tenant != "" {
		return q.WorkflowCountByTenant(ctx, dbsqlc.WorkflowCountByTenantParams{
			Tenant: f.Tenant, State: f.State, MaxLooked: s.maxLooked, Type: f.Type, Name: f.Name, MaxRows: maxTotal,
		})
	}
	if f.State == "" {
		return q.WorkflowCount(ctx, dbsqlc.WorkflowCountParams{MaxLooked: s.maxLooked, Type: f.Type, Name: f.Name, MaxRows: maxTotal})
	}
	return q.WorkflowCountByState(ctx, dbsqlc.WorkflowCountByStateParams{
		State: f.State, MaxLooked: s.maxLooked, Type: f.Type, Name: f.Name, MaxRows: maxTotal,
	})
}

// last is an id behind all others.
var last = [16]byte{0: 0xff, 1: 0xff, 2: 0xff, 3: 0xff, 4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
