package workflow

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// The rules of docs/reference/workflows.md: what follows from the end of a step. A workflow that has ended, or has fired its
// callbacks, only counts what its members do later.

// cause is why a step has moved.
type cause struct {
	row   *dbsqlc.WorkflowPendingListRow // the change of the job; nil: a nested workflow, or the job was not inserted
	trace string                         // traceparent of the run that ended the job; "": not recorded
}

// moved applies the transition of a step, whose row has been changed, to the workflows above it.
func (p *pass) moved(ctx context.Context, st *step, to string, c cause) error {
	from := st.state
	if from == to {
		return nil
	}
	f, err := p.flow(ctx, st.flow)
	if err != nil || f == nil {
		return err
	}
	st.state = to
	p.count(f, st, from, -1)
	p.count(f, st, to, +1)
	switch {
	case !f.running() || st.kind != kindCallback && f.MembersFailed.Valid:
		return nil
	case to == pending:
		return nil
	case st.kind == kindCallback:
		if f.CallbacksOpen == 0 {
			return p.end(ctx, f, st, c)
		}
		return nil
	}
	if to == completed && st.kind == kindJob {
		p.stepCompleted(f, st, c)
	}
	return p.memberEnded(ctx, f, st, c)
}

// count adds n to the counts of steps in the state: those of the workflow for its members and callbacks, and of the tree for jobs.
func (p *pass) count(f *flow, st *step, state string, n int32) {
	f.changed = true
	open := state == pending || state == waiting
	if st.kind == kindCallback {
		switch {
		case open:
			f.CallbacksOpen += n
		case state != completed:
			f.CallbacksFailed += n
		}
		return
	}
	switch {
	case open:
		f.Open += n
	case state == completed:
		f.Completed += n
	default:
		f.Failed += n
	}
	if st.kind != kindJob || open {
		return
	}
	for _, number := range append(slices.Clone(f.Ancestors), f.Flow) {
		above := p.flows[number]
		above.changed = true
		if state == completed {
			above.CompletedCount += n
		} else {
			above.FailedCount += n
		}
	}
}

// memberEnded decides what follows in a running workflow.
func (p *pass) memberEnded(ctx context.Context, f *flow, st *step, c cause) error {
	well := st.state == completed
	switch Type(f.Type) {
	case Chain:
		if well && st.index+1 < f.Total {
			p.start(f, st.index+1, c)
			return nil
		}
		return p.end(ctx, f, st, c)
	case DAG:
		var err error
		if well {
			err = p.release(ctx, f, st, c)
		} else {
			err = p.cancelDependents(ctx, f, st)
		}
		if err != nil {
			return err
		}
	}
	if f.Open > 0 {
		return nil
	}
	f.MembersFailed, f.changed = pgtype.Bool{Bool: f.Completed < f.Total, Valid: true}, true // cancelDependents may have stored it
	for i, name := range f.Callbacks {
		if name == "on_complete" || name == "on_failure" && f.MembersFailed.Bool || name == "on_success" && !f.MembersFailed.Bool {
			f.CallbacksOpen++
			p.start(f, f.Total+int32(i), c)
		}
	}
	if f.CallbacksOpen > 0 {
		return nil
	}
	return p.end(ctx, f, st, c)
}

// outcome is the state in which a workflow ends, if last was its last step to end.
func (f *flow) outcome(last *step) string {
	switch {
	case Type(f.Type) == Chain && last.state == completed,
		f.CallbacksFailed == 0 && f.MembersFailed.Valid && (!f.MembersFailed.Bool || slices.Contains(f.Callbacks, "on_failure")):
		return completed
	}
	return failed
}

// end ends a workflow and, if it is nested, its step.
func (p *pass) end(ctx context.Context, f *flow, last *step, c cause) error {
	f.State, f.EndedAt, f.changed = f.outcome(last), p.now, true
	if Type(f.Type) == Chain && f.State == failed || len(f.Callbacks) > 0 {
		if err := p.cancelWaiting(ctx, f); err != nil {
			return err
		}
	}
	if f.Flow == 0 {
		return p.rootEnded(ctx, f)
	}
	v, err := p.valueOf(ctx, f, last)
	if err != nil {
		return err
	}
	above := &step{flow: f.Ancestors[len(f.Ancestors)-1], index: f.ParentIndex.Int32, kind: kindWorkflow, state: pending}
	e := dbsqlc.WorkflowStepEndParams{
		State: f.State, EndedAt: p.now, Result: v.value, ResultMap: v.named, RootID: p.root.ID, Flow: above.flow, Index: above.index,
	}
	if f.State == failed {
		e.Error = errorObject("workflow_failed", "The nested workflow failed.")
	}
	if err := p.q.WorkflowStepEnd(ctx, e); err != nil {
		return err
	}
	return p.moved(ctx, above, f.State, c)
}

// cancelWaiting cancels what has not begun of a workflow and of those nested in it. The latter are not loaded: they have not begun.
func (p *pass) cancelWaiting(ctx context.Context, f *flow) error {
	if _, err := p.cancelBelow(ctx, f.Flow, f.LastFlow); err != nil || f.LastFlow == f.Flow || Type(f.Type) != Chain {
		return err // in all other types every member has ended
	}
	return p.endBelow(ctx, f.Flow+1, f.LastFlow)
}

func (p *pass) endBelow(ctx context.Context, first, last int32) error {
	// Those that have ended in this transaction must not be ended again.
	if err := p.store(ctx); err != nil {
		return err
	}
	return p.q.WorkflowEndBelow(ctx, dbsqlc.WorkflowEndBelowParams{RootID: p.root.ID, FirstFlow: first, LastFlow: last, EndedAt: p.now})
}

// cancelBelow cancels the steps without a job of workflows with numbers in a range. It returns how many of them are of jobs.
func (p *pass) cancelBelow(ctx context.Context, first, last int32) (jobs int, err error) {
	a := dbsqlc.WorkflowStepCancelBelowParams{RootID: p.root.ID, AfterFlow: first, AfterIndex: -1, LastFlow: last, EndedAt: p.now, MaxRows: portion}
	for {
		rows, err := p.q.WorkflowStepCancelBelow(ctx, a)
		if err != nil {
			return jobs, err
		}
		for _, r := range rows {
			if r.Kind == kindJob {
				jobs++
			}
		}
		if len(rows) < portion {
			return jobs, nil
		}
		a.AfterFlow, a.AfterIndex = rows[len(rows)-1].Flow, rows[len(rows)-1].Index
	}
}

// release begins the steps of a dag that waited for this one only.
func (p *pass) release(ctx context.Context, f *flow, st *step, c cause) error {
	rows, err := p.q.WorkflowStepReadyAfter(ctx, dbsqlc.WorkflowStepReadyAfterParams{RootID: p.root.ID, Flow: f.Flow, Index: st.index})
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b dbsqlc.WorkflowStepReadyAfterRow) int { return int(a.Index - b.Index) })
	for _, r := range rows {
		if r.WaitsOn == 0 {
			p.start(f, r.Index, c)
		}
	}
	return nil
}

// cancelDependents cancels the steps of a dag that depend on a failed one.
func (p *pass) cancelDependents(ctx context.Context, f *flow, st *step) error {
	rows, err := p.q.WorkflowStepListDependents(ctx, dbsqlc.WorkflowStepListDependentsParams{RootID: p.root.ID, Flow: f.Flow, Index: st.index})
	if err != nil {
		return err
	}
	f.Open -= int32(len(rows))
	for part := range slices.Chunk(rows, portion) {
		a := dbsqlc.WorkflowStepCancelParams{RootID: p.root.ID, Flow: f.Flow, EndedAt: p.now}
		for _, r := range part {
			a.Indexes = append(a.Indexes, r.Index)
		}
		if err := p.q.WorkflowStepCancel(ctx, a); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if r.ChildFlow == 0 {
			continue
		}
		child, err := p.flow(ctx, r.ChildFlow)
		if err != nil || child == nil {
			return err
		}
		if _, err := p.cancelBelow(ctx, child.Flow, child.LastFlow); err != nil {
			return err
		}
		if err := p.endBelow(ctx, child.Flow, child.LastFlow); err != nil {
			return err
		}
		child.State = cancelled
	}
	return nil
}

// errConflict says that the state of a workflow does not allow the request.
func errConflict(id [16]byte, state, why string) *ojs.Error {
	text := ojs.FormatID(id)
	return ojs.NewError(ojs.KindInvalidStateTransition, "Workflow "+text+" "+why+".",
		map[string]any{"workflow_id": text, "current_state": state})
}
