package workflow

import (
	"context"
	"time"

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

// Page is a part of the list of roots, newest first. The entries are not of one snapshot: the ids, the rows and the starts
// are read one after the other, so a root that was deleted in between is missing. With Type or Name, and for every total,
// only the newest 100 000 roots are looked at (pg.MaxLooked).
type Page struct {
	Workflows  []*Workflow // without steps
	StepCounts []int
	Total      int // of all that match; exact up to 10 000
	HasMore    bool
	Next       *[16]byte // cursor of the next page; nil: there is none
}

// maxTotal bounds Page.Total.
const maxTotal = 10_000

// List lists roots. HasMore is found by one id more than asked for.
func (s *Store) List(ctx context.Context, f Filter) (page Page, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	ids, err := s.listIDs(ctx, f)
	if err != nil {
		return page, pg.ClientError(err)
	}
	if page.HasMore = len(ids) > f.Limit; page.HasMore {
		ids = ids[:f.Limit]
		page.Next = &ids[f.Limit-1]
	}
	if page.Workflows, err = s.roots(ctx, ids); err != nil {
		return page, pg.ClientError(err)
	}
	for _, w := range page.Workflows {
		page.StepCounts = append(page.StepCounts, w.Total)
	}
	total, err := s.count(ctx, f)
	page.Total = int(total)
	return page, pg.ClientError(err)
}

// Three statements instead of one with optional conditions: each has one index that gives its order, and a generic plan
// that takes it.
func (s *Store) listIDs(ctx context.Context, f Filter) ([][16]byte, error) {
	a := dbsqlc.WorkflowListPageParams{
		Before: last, MaxLooked: pg.MaxLooked, Type: f.Type, Name: f.Name, SkipRows: int64(f.Offset), PageRows: int64(f.Limit) + 1,
	}
	if f.Cursor != nil {
		a.Before, a.SkipRows = *f.Cursor, 0
	}
	if f.Tenant != "" {
		return s.db.Q.WorkflowListPageByTenant(ctx, dbsqlc.WorkflowListPageByTenantParams{
			Tenant: f.Tenant, State: f.State, Before: a.Before, MaxLooked: a.MaxLooked, Type: a.Type, Name: a.Name, SkipRows: a.SkipRows, PageRows: a.PageRows,
		})
	}
	if f.State == "" {
		return s.db.Q.WorkflowListPage(ctx, a)
	}
	return s.db.Q.WorkflowListPageByState(ctx, dbsqlc.WorkflowListPageByStateParams{
		State: f.State, Before: a.Before, MaxLooked: a.MaxLooked, Type: a.Type, Name: a.Name, SkipRows: a.SkipRows, PageRows: a.PageRows,
	})
}

// Rows come newest first, like the ids.
func (s *Store) roots(ctx context.Context, ids [][16]byte) ([]*Workflow, error) {
	rows, err := s.db.Q.WorkflowListRoots(ctx, ids)
	if err != nil {
		return nil, err
	}
	starts, err := s.db.Q.WorkflowListStarts(ctx, ids)
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

// It uses the same index as the page, by the same rule.
func (s *Store) count(ctx context.Context, f Filter) (int64, error) {
	if f.Tenant != "" {
		return s.db.Q.WorkflowCountByTenant(ctx, dbsqlc.WorkflowCountByTenantParams{
			Tenant: f.Tenant, State: f.State, MaxLooked: pg.MaxLooked, Type: f.Type, Name: f.Name, MaxRows: maxTotal,
		})
	}
	if f.State == "" {
		return s.db.Q.WorkflowCount(ctx, dbsqlc.WorkflowCountParams{MaxLooked: pg.MaxLooked, Type: f.Type, Name: f.Name, MaxRows: maxTotal})
	}
	return s.db.Q.WorkflowCountByState(ctx, dbsqlc.WorkflowCountByStateParams{
		State: f.State, MaxLooked: pg.MaxLooked, Type: f.Type, Name: f.Name, MaxRows: maxTotal,
	})
}

// last is an id behind all others.
var last = [16]byte{0: 0xff, 1: 0xff, 2: 0xff, 3: 0xff, 4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
