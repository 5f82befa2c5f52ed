package workflow

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

// Get reads a workflow, root or nested, with all that is nested in it, in one snapshot. One snapshot, because the tree is
// read in portions: an advance between two of them could show a step as waiting in a workflow that is shown as completed.
// It counts as a read of a list (DB.Reading), as a large tree takes many statements.
func (s *Store) Get(ctx context.Context, id [16]byte) (w *Workflow, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	defer done()
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
		w, err = s.read(ctx, dbsqlc.New(tx), id)
		return err
	})
	return w, pg.ClientError(err)
}

// read is Get in a transaction: portions of the tree's workflows, and of its steps. CreateOnce calls it in its own
// transaction, which is not a snapshot but sees nothing else of the tree than its own rows.
func (s *Store) read(ctx context.Context, q *dbsqlc.Queries, id [16]byte) (*Workflow, error) {
	rows, err := q.WorkflowGet(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, spec.NotFound("workflow", spec.FormatID(id))
	}
	top := &rows[0].Workflow
	v := &view{q: q, top: top, flows: map[int32]*Workflow{}}
	for _, read := range []func(context.Context) error{v.readFlows, v.readSteps, v.readStart} {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	return v.flows[top.Flow], nil
}

// view collects what an answer shows of a tree. bytes is compared with maxResults over all portions, so later portions have
// less room. Within a portion the largest results are left out, over several it is the last ones.
type view struct {
	q     *dbsqlc.Queries
	top   *dbsqlc.Workflow
	order []int32 // numbers of the workflows, depth first
	flows map[int32]*Workflow
	bytes int64 // of results so far
}

// readFlows reads for a nested workflow the id of the one above it for parent_id, which is the only row outside of its range of numbers.
func (v *view) readFlows(ctx context.Context) error {
	ids := map[int32][16]byte{}
	add := func(w *dbsqlc.Workflow) {
		shown := shownWorkflow(w)
		if parent, ok := ids[lastOf(w.Ancestors)]; ok && len(w.Ancestors) > 0 {
			shown.ParentID = &parent
		}
		ids[w.Flow] = w.ID
		v.flows[w.Flow] = shown
		v.order = append(v.order, w.Flow)
	}
	if len(v.top.Ancestors) > 0 {
		rows, err := v.q.WorkflowListFlows(ctx, v.top.RootID, []int32{lastOf(v.top.Ancestors)})
		if err != nil {
			return err
		}
		for _, r := range rows {
			ids[r.Workflow.Flow] = r.Workflow.ID
		}
	}
	add(v.top)
	// A tree has at most as many workflows as leaves allow, so the loop is bounded by the limits of a definition.
	a := dbsqlc.WorkflowListTreeParams{RootID: v.top.RootID, AfterFlow: v.top.Flow, LastFlow: v.top.LastFlow, MaxRows: portion}
	for a.AfterFlow < a.LastFlow {
		rows, err := v.q.WorkflowListTree(ctx, a)
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			add(&rows[i].Workflow)
		}
		a.AfterFlow = rows[len(rows)-1].Workflow.Flow
	}
	return nil
}

func lastOf(list []int32) int32 {
	if len(list) == 0 {
		return -1
	}
	return list[len(list)-1]
}

// shownWorkflow leaves ParentID, StartedAt and the steps to the caller.
func shownWorkflow(w *dbsqlc.Workflow) *Workflow {
	return &Workflow{
		ID: w.ID, RootID: w.RootID, Type: Type(w.Type), Name: w.Name, State: w.State, Meta: w.Meta, StepsForm: w.StepsForm,
		Total: int(w.Total), Completed: int(w.Completed), Failed: int(w.Failed),
		JobCount: int(w.JobCount), CompletedCount: int(w.CompletedCount), FailedCount: int(w.FailedCount),
		CreatedAt: w.CreatedAt.Time.UTC(), EndedAt: timestamp(w.EndedAt),
	}
}

// readSteps reads in the order of workflows and indexes, so Workflow.Steps[i] is the step with index i: callbacks stand behind
// the members and go to their own list.
func (v *view) readSteps(ctx context.Context) error {
	a := dbsqlc.WorkflowStepListTreeParams{
		RootID: v.top.RootID, AfterFlow: v.top.Flow, AfterIndex: -1, LastFlow: v.top.LastFlow, MaxRows: portion, MaxBytes: maxResults,
	}
	for {
		rows, err := v.q.WorkflowStepListTree(ctx, a)
		if err != nil {
			return err
		}
		for i := range rows {
			r := &rows[i]
			w := v.flows[r.Flow]
			if w == nil {
				continue
			}
			st := v.step(w, r)
			if r.Kind == kindCallback {
				w.Callbacks = append(w.Callbacks, st)
			} else {
				w.Steps = append(w.Steps, st)
			}
			v.bytes += int64(len(r.Result))
		}
		if len(rows) < portion {
			break
		}
		last := rows[len(rows)-1]
		a.AfterFlow, a.AfterIndex, a.MaxBytes = last.Flow, last.Index, max(0, maxResults-v.bytes)
	}
	// Now what depends on other steps: the names of steps that others depend on, and states of nested workflows. Inner workflows come
	// first, because the start of a nested workflow is needed for the step above it.
	for _, number := range slices.Backward(v.order) {
		w := v.flows[number]
		for i := range w.Steps {
			st := &w.Steps[i]
			if w.Type == DAG {
				for n, d := range st.DependsOn {
					index, _ := strconv.Atoi(d)
					st.DependsOn[n] = w.Steps[index].ID
				}
			}
			if st.Workflow == nil {
				continue
			}
			// The step of a nested workflow is active once one of its jobs has started: docs/reference/workflows.md, States.
			st.StartedAt = earliest(st.Workflow.Steps)
			if st.State == pending && st.StartedAt != nil {
				st.State = active
			}
		}
		if w.ID != w.RootID {
			w.StartedAt = earliest(w.Steps)
		}
	}
	return nil
}

// step shows a step with what its job tells. Dependencies of a dag are decimal indexes, until all steps have been read: they may name
// steps of a later portion.
func (v *view) step(w *Workflow, r *dbsqlc.WorkflowStepListTreeRow) Step {
	st := Step{
		Index: int(r.Index), ID: r.StepID, Type: r.Type, State: r.State, JobState: r.JobState, Callback: r.Callback, Queue: r.Queue,
		StartedAt: timestamp(r.StartedAt), CompletedAt: timestamp(r.EndedAt), Result: r.Result, Error: r.Error, Attempt: int(r.Attempt),
		Deduplicated: r.Deduplicated,
	}
	if r.JobID.Valid {
		id := r.JobID.Bytes
		st.JobID = &id
	}
	if r.Omitted && r.Size > 0 {
		st.Result = omitted(r.Size, r.JobID.Bytes, r.JobID.Valid)
	}
	switch {
	case w.Type == Chain && r.Index > 0 && r.Kind != kindCallback:
		st.DependsOn = []string{w.Steps[r.Index-1].ID}
	default:
		for _, d := range r.DependsOn { // they may have higher indexes
			st.DependsOn = append(st.DependsOn, strconv.Itoa(int(d)))
		}
	}
	switch {
	case r.Kind == kindWorkflow:
		st.Workflow = v.flows[r.ChildFlow]
	case r.State == pending:
		st.Attempt, st.StartedAt = int(r.JobAttempt), timestamp(r.JobStartedAt)
		switch r.JobState {
		case active:
			st.State, st.Progress = active, r.Progress
		case completed, cancelled, "discarded": // the workflow has not followed yet
			st.State = stepState(r.JobState)
		default:
			st.StartedAt = nil
		}
	// The job of a step that has ended may be deleted.
	case st.JobID == nil || r.Deduplicated:
	case r.State == completed || r.State == cancelled:
		st.JobState = r.State
	case r.State == failed:
		st.JobState = "discarded"
	}
	return st
}

// earliest returns nil if none has started.
func earliest(steps []Step) (first *time.Time) {
	for i := range steps {
		if at := steps[i].StartedAt; at != nil && (first == nil || at.Before(*first)) {
			first = at
		}
	}
	return first
}

// readStart finds no such row for a nested workflow; readSteps takes the earliest start of its steps.
func (v *view) readStart(ctx context.Context) error {
	if v.top.Flow != 0 {
		return nil
	}
	starts, err := v.q.WorkflowGetStart(ctx, v.top.ID)
	if err != nil {
		return err
	}
	for _, at := range starts {
		v.flows[0].StartedAt = timestamp(at)
	}
	return nil
}

// Progress is the part of a workflow that is done, 0 to 1 (docs/reference/workflows.md, Progress). Callbacks do not count.
func (w *Workflow) Progress() float64 {
	if w.Total == 0 {
		return 0
	}
	sum := 0.0
	for i := range w.Steps {
		if st := &w.Steps[i]; w.Type != Batch || st.State == completed {
			sum += st.Done()
		}
	}
	return sum / float64(w.Total)
}

// Done is the part of a step that is done, 0 to 1.
func (st *Step) Done() float64 {
	switch {
	case st.State == completed:
		return 1
	case st.Workflow != nil:
		return st.Workflow.Progress()
	}
	return st.Progress
}

// logChange writes a line about a root. Meta and args are not logged: they belong to clients.
func (s *Store) logChange(ctx context.Context, message string, w *Workflow, more ...any) {
	s.logger.InfoContext(ctx, message, slog.String("category", "lifecycle"), slog.Group("ojs", "workflow_id", spec.FormatID(w.ID), "state",
		w.State),
		slog.Group("attributes", append([]any{"workflow_type", string(w.Type), "workflow_name", w.Name, "jobs", w.JobCount}, more...)...))
}

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
		floor, err := q.WorkflowListFloor(ctx, dbsqlc.WorkflowListFloorParams{Tenant: f.Tenant, State: f.State, Before: p.Before,
			MaxLooked: p.MaxLooked})
		if err != nil {
			return page, err
		}
		if len(floor) > 0 {
			page.Next = &floor[0]
		}
	}
	starts, err := q.WorkflowListStarts(ctx, ids)
	if err != nil {
		return page, err
	}
	startedAt := make(map[[16]byte]*time.Time, len(starts))
	for _, st := range starts {
		startedAt[st.RootID] = timestamp(st.StartedAt)
	}
	rows, err := q.WorkflowListRoots(ctx, ids) // newest first, like the ids
	if err != nil {
		return page, err
	}
	page.Workflows = make([]*Workflow, len(rows))
	for i := range rows {
		w := shownWorkflow(&rows[i].Workflow)
		w.StartedAt = startedAt[w.ID]
		page.Workflows[i] = w
		page.StepCounts = append(page.StepCounts, w.Total)
	}
	total, err := s.count(ctx, q, f)
	page.Total = int(total)
	return page, err
}

// listIDs has three statements instead of one with optional conditions: each has one index that gives its order, and a generic plan
// that takes it.
func listIDs(ctx context.Context, q *dbsqlc.Queries, f Filter, p dbsqlc.WorkflowListPageParams) ([][16]byte, error) {
	if f.Tenant != "" {
		return q.WorkflowListPageByTenant(ctx, dbsqlc.WorkflowListPageByTenantParams{
			Tenant: f.Tenant, State: f.State, Before: p.Before, MaxLooked: p.MaxLooked, Type: p.Type, Name: p.Name,
			SkipRows: p.SkipRows, PageRows: p.PageRows,
		})
	}
	if f.State == "" {
		return q.WorkflowListPage(ctx, p)
	}
	return q.WorkflowListPageByState(ctx, dbsqlc.WorkflowListPageByStateParams{
		State: f.State, Before: p.Before, MaxLooked: p.MaxLooked, Type: p.Type, Name: p.Name, SkipRows: p.SkipRows, PageRows: p.PageRows,
	})
}

// count uses the same index as the page, by the same rule. Without a filter it ends at the 10 000th root.
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
var last = [16]byte{0: 0xff, 1: 0xff, 2: 0xff, 3: 0xff, 4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff,
	13: 0xff, 14: 0xff, 15: 0xff}
