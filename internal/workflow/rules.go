package workflow

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// The rules of docs/reference/workflows.md: what follows from the end of a step. A workflow that has ended, or has fired its
// callbacks, only counts what its members do later.

// cause is why a step has moved. It is handed upwards: the steps that begin because nested workflows ended follow the run
// of the job that ended them.
type cause struct {
	row   *dbsqlc.WorkflowPendingListRow // the change of the job; nil: a nested workflow, or the job was not inserted
	trace string                         // traceparent of the run that ended the job; "": not recorded
}

// moved applies the transition of a step, whose row has been changed, to the workflows above it. It is the only place that
// counts a transition, so every path that changes the state of a step ends here, apart from cancels, which have their own
// counts. It is called after the statement that stores the row of the step, and may start steps, end f and, through end, be called for
// the step of f in the workflow above.
//
// The order of the cases is the rule. Counts change in any case, so that the answer for an ended workflow tells what
// became of its jobs. Then nothing follows in a workflow that has ended, and nothing follows for a member after callbacks
// were fired, or they would fire twice.
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

// count adds n to the counts of steps in the state: those of the workflow for its members and callbacks, and of the tree
// for jobs. The counts of jobs reach from the workflow to the root, those of steps are its own. The callers have loaded f
// and with it all that are above it.
func (p *pass) count(f *flow, st *step, state string, n int32) {
	f.changed = true
	// Waiting is open too: a group of which one member has not begun has not ended.
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
	// Callbacks and nested workflows are no leaves; a nested workflow is counted by its own jobs.
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

// memberEnded decides what follows in a running workflow. It is called once for each end of a member. After a manual retry
// the same member may end again; MembersFailed and the state of f keep callbacks and ends from happening twice.
func (p *pass) memberEnded(ctx context.Context, f *flow, st *step, c cause) error {
	// The chain does not wait for Open to reach 0: a failed step ends it while later steps are still waiting.
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
	// From here on every member has ended. MembersFailed stores that this was noticed: its NULL is the guard that callbacks
	// fire once.
	if f.Open > 0 {
		return nil
	}
	f.MembersFailed, f.changed = pgtype.Bool{Bool: f.Completed < f.Total, Valid: true}, true // cancelDependents may have stored it
	// A count for all that fire is made before any of them begins, because a callback that is refused at once ends the
	// workflow if it is the last one.
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

// outcome is the state in which a workflow ends, if last was its last step to end. docs/reference/workflows.md, States has
// the table. A failed member does not fail a workflow with on_failure: that callback is taken as the treatment of the
// failure.
func (f *flow) outcome(last *step) string {
	switch {
	case Type(f.Type) == Chain && last.state == completed,
		f.CallbacksFailed == 0 && f.MembersFailed.Valid && (!f.MembersFailed.Bool || slices.Contains(f.Callbacks, "on_failure")):
		return completed
	}
	return failed
}

// end ends a workflow and, if it is nested, its step. f is final in memory before its value is read and the workflow above
// moves; store writes it at the end of the transaction or earlier. The recursion is as deep as workflows are nested.
func (p *pass) end(ctx context.Context, f *flow, last *step, c cause) error {
	f.State, f.EndedAt, f.changed = f.outcome(last), p.now, true
	// Only these can have steps left that never begin: the rest of a chain, and callbacks that did not fire.
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
	// It is made, not read: a nested workflow ends once, and its step is pending from its begin to that end.
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

// cancelWaiting cancels what has not begun of a workflow and of those nested in it. The latter are not loaded: they have
// not begun. Their rows get their end from endBelow.
func (p *pass) cancelWaiting(ctx context.Context, f *flow) error {
	if _, err := p.cancelBelow(ctx, f.Flow, f.LastFlow); err != nil || f.LastFlow == f.Flow || Type(f.Type) != Chain {
		return err // in all other types every member has ended
	}
	return p.endBelow(ctx, f.Flow+1, f.LastFlow)
}

// The statement reads the stored state. It does not touch workflows in memory, so a caller that has one of them loaded must
// set its state.
func (p *pass) endBelow(ctx context.Context, first, last int32) error {
	// Those that have ended in this transaction must not be ended again.
	if err := p.store(ctx); err != nil {
		return err
	}
	return p.q.WorkflowEndBelow(ctx, dbsqlc.WorkflowEndBelowParams{RootID: p.root.ID, FirstFlow: first, LastFlow: last, EndedAt: p.now})
}

// cancelBelow cancels the steps without a job of workflows with numbers in a range. It returns how many of them are of
// jobs. Each portion is one statement that goes on behind the last step of the portion before. No step is cancelled twice:
// a portion leaves no waiting step behind it.
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

// release begins the steps of a dag that waited for this one only. The statement lowers waits_on of all that depend on the
// step; those at 0 begin. It runs once for a completed step, because a completed job never leaves its state. Two steps that
// end at once cannot both see the other as open: each holds the lock of the root. The rows are sorted, because UPDATE …
// RETURNING has no order and beginStarts joins ascending indexes.
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

// cancelDependents cancels the steps of a dag that depend on a failed one. They count as neither completed nor failed, as
// they never had a job; Completed < Total still tells that not all members completed. A manual retry of the failed step
// does not bring them back (docs/reference/workflows.md, States).
func (p *pass) cancelDependents(ctx context.Context, f *flow, st *step) error {
	rows, err := p.q.WorkflowStepListDependents(ctx, dbsqlc.WorkflowStepListDependentsParams{RootID: p.root.ID, Flow: f.Flow, Index: st.index})
	if err != nil {
		return err
	}
	// They leave Open without being counted as completed or failed, so the workflow can end.
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
		// A nested workflow that waits has workflows and steps of its own, which are cancelled with it.
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
		// The row is cancelled already. Without this line a later store of the child, which is in memory as running, would
		// revive it.
		child.State = cancelled
	}
	return nil
}

// errConflict says that the state of a workflow does not allow the request. It is answered 409
// (docs/reference/workflows.md, Cancel).
func errConflict(id [16]byte, state, why string) *ojs.Error {
	text := spec.FormatID(id)
	return spec.NewError(ojs.ErrInvalidStateTransition, "Workflow "+text+" "+why+".",
		map[string]any{"workflow_id": text, "current_state": state})
}
