package workflow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/workflow"
)

func TestChain(t *testing.T) {
	t.Parallel()

	t.Run("RunsStepAfterStep", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, member(t, "a"), member(t, "b"), member(t, "c")))
		require.Equal(t, "running a:pending b:waiting c:waiting", states(w))
		require.Equal(t, [6]int{3, 0, 0, 3, 0, 0}, counts(w))

		first := b.next("a")
		b.nothing()
		require.Equal(t, "running a:active b:waiting c:waiting", states(b.read(w)))
		require.Equal(t, `[]`, extra(first, "parent_results"))
		require.Equal(t, `0`, extra(first, "workflow_step"))
		b.ack(first, `{"n":1}`)
		second := b.next("b")
		require.Equal(t, `[{"n":1}]`, extra(second, "parent_results"))
		require.Equal(t, `{"a":{"n":1}}`, extra(second, "parent_results_map"))
		require.Equal(t, `"b"`, extra(second, "workflow_step_id"))
		b.ack(second, "")
		require.Equal(t, `[{"n":1},null]`, extra(b.next("c"), "parent_results"))
		w = b.read(w)
		require.Equal(t, "running a:completed b:completed c:active", states(w))
		require.JSONEq(t, `{"n":1}`, string(w.Steps[0].Result))
		b.ack(b.jobOf(w.Steps[2]), "")
		w = b.read(w)
		require.Equal(t, "completed a:completed b:completed c:completed", states(w))
		require.Equal(t, [6]int{3, 3, 0, 3, 3, 0}, counts(w))
		require.NotNil(t, w.StartedAt)
		require.NotNil(t, w.EndedAt)
		require.InDelta(t, 1, w.Progress(), 0)
		require.Equal(t, []string{
			"job.enqueued t.a", "workflow.started", "job.started t.a", "job.completed t.a", "workflow.step_completed a",
			"job.enqueued t.b", "job.started t.b", "job.completed t.b", "workflow.step_completed b",
			"job.enqueued t.c", "job.started t.c", "job.completed t.c", "workflow.step_completed c", "workflow.completed",
		}, b.events(w))
	})

	t.Run("EndsAtFailure", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, member(t, "a"), member(t, "b"), nested("n", define(workflow.Group, member(t, "c")))))
		b.done("a")
		b.fail("b")
		b.nothing()
		w = b.read(w)
		require.Equal(t, "failed a:completed b:failed n:cancelled[cancelled c:cancelled]", states(w))
		require.Equal(t, [6]int{3, 1, 1, 3, 1, 1}, counts(w))
		require.JSONEq(t, `{"code":"broken","message":"It \"broke\"."}`, string(w.Steps[1].Error))
		require.Equal(t, []string{"job.failed t.b", "job.discarded t.b", "workflow.failed b"}, b.events(w)[len(b.events(w))-3:])
		require.Contains(t, b.eventData(w, "workflow.failed"), `"failed_step_id":"b","failed_step_type":"t.b","error":{"code":"broken","message":"It \"broke\"."}`)
	})
}

func TestGroup(t *testing.T) {
	t.Parallel()

	t.Run("CompletesWithAllMembers", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a"), member(t, "b"), member(t, "c")))
		b.done("a")
		b.done("b")
		require.Equal(t, "running a:completed b:completed c:pending", states(b.read(w)))
		b.done("c")
		require.Equal(t, "completed a:completed b:completed c:completed", states(b.read(w)))
	})

	t.Run("FailsWhenAllHaveEnded", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a"), member(t, "b")))
		b.fail("a")
		require.Equal(t, "running a:failed b:pending", states(b.read(w)))
		b.done("b")
		require.Equal(t, "failed a:failed b:completed", states(b.read(w)))
	})
}

func TestBatch(t *testing.T) {
	t.Parallel()
	all := []string{"on_complete", "on_success", "on_failure"}

	t.Run("FiresAfterSuccess", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b")), all...))
		b.done("a")
		b.nothing2(w)
		last := b.next("b")
		b.ack(last, `2`)
		callback := b.next("on_complete")
		require.Equal(t, `["a",2]`, extra(callback, "parent_results"))
		require.Equal(t, `"on_complete"`, extra(callback, "workflow_callback"))
		require.Empty(t, extra(callback, "workflow_step"))
		require.Equal(t, "running a:completed b:completed on_complete:active on_success:pending on_failure:waiting", states(b.read(w)))
		b.ack(callback, "")
		b.done("on_success")
		b.nothing()
		require.Equal(t, "completed a:completed b:completed on_complete:completed on_success:completed on_failure:cancelled", states(b.read(w)))
	})

	t.Run("FailureIsHandledByCallback", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b")), all...))
		b.fail("a")
		b.done("b")
		b.done("on_complete")
		callback := b.done("on_failure")
		require.Equal(t, `[{"error":{"code":"broken","message":"It \"broke\"."}},"b"]`, extra(callback, "parent_results"))
		b.nothing()
		w = b.read(w)
		require.Equal(t, "completed a:failed b:completed on_complete:completed on_success:cancelled on_failure:completed", states(w))
		require.Equal(t, 1, w.FailedCount)
	})

	t.Run("FailsWithoutHandler", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), "on_complete"))
		b.fail("a")
		b.done("on_complete")
		require.Equal(t, "failed a:failed on_complete:completed", states(b.read(w)))

		w = b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), "on_success"))
		b.fail("a")
		require.Equal(t, "failed a:failed on_success:cancelled", states(b.read(w)))

		w = b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), "on_failure"))
		b.done("a")
		require.Equal(t, "completed a:completed on_failure:cancelled", states(b.read(w)))
	})

	t.Run("FailsWithCallback", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), all...))
		b.done("a")
		b.fail("on_complete")
		require.Equal(t, "running", b.read(w).State, "decided once all have ended")
		b.done("on_success")
		require.Equal(t, "failed a:completed on_complete:failed on_success:completed on_failure:cancelled", states(b.read(w)))
		require.Contains(t, b.eventData(w, "workflow.failed"), `"failed_step_id":"on_complete"`)
	})
}

func TestDAG(t *testing.T) {
	t.Parallel()

	t.Run("BeginsStepsInOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.DAG, member(t, "a"), member(t, "b"), member(t, "c", 1, 0), member(t, "d", 1), member(t, "e", 2, 3)))
		require.Equal(t, []string{"b", "a"}, w.Steps[2].DependsOn)
		b.done("a")
		second := b.next("b")
		b.nothing()
		b.ack(second, `2`)
		third := b.next("c")
		require.Equal(t, `[2,"a"]`, extra(third, "parent_results"), "in the order of depends_on")
		require.Equal(t, `{"b":2,"a":"a"}`, extra(third, "parent_results_map"))
		b.ack(third, "")
		b.done("d")
		b.done("e")
		require.Equal(t, "completed a:completed b:completed c:completed d:completed e:completed", states(b.read(w)))
	})

	t.Run("CancelsDependents", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.DAG, member(t, "a"), member(t, "b"), member(t, "c", 0),
			workflow.Member{ID: "n", Nested: define(workflow.Chain, member(t, "x"), member(t, "y")), DependsOn: []int{2}}, member(t, "d", 1)))
		b.fail("a")
		require.Equal(t, "running a:failed b:pending c:cancelled n:cancelled[cancelled x:cancelled y:cancelled] d:waiting", states(b.read(w)))
		b.done("b")
		b.done("d")
		b.nothing()
		w = b.read(w)
		require.Equal(t, "failed a:failed b:completed c:cancelled n:cancelled[cancelled x:cancelled y:cancelled] d:completed", states(w))
		require.Equal(t, [6]int{5, 2, 1, 6, 2, 1}, counts(w))
	})

	t.Run("CancelsNoOtherWaitingSteps", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.DAG, member(t, "a"), member(t, "b", 0), member(t, "c", 1), member(t, "x"), member(t, "y", 3), member(t, "z", 4)))
		b.fail("a")
		require.Equal(t, "running a:failed b:cancelled c:cancelled x:pending y:waiting z:waiting", states(b.read(w)))
	})
}

func TestNested(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inner := define(workflow.Group, member(t, "x"), nested("c", define(workflow.Chain, member(t, "y"), member(t, "z"))))
	w := b.created(withCallbacks(t, define(workflow.Chain, member(t, "a"), nested("n", inner), member(t, "b"))))
	require.Equal(t, "running a:pending n:waiting[running x:waiting c:waiting[running y:waiting z:waiting]] b:waiting", states(w))
	require.Equal(t, [6]int{3, 0, 0, 5, 0, 0}, counts(w))
	b.done("a")
	first := b.next("x")
	require.Equal(t, `["a"]`, extra(first, "parent_results"), "what the enclosing member would have got")
	require.Contains(t, states(b.read(w)), "n:active[running x:active c:pending")
	b.ack(first, `1`)
	require.Equal(t, `["a"]`, extra(b.done("y"), "parent_results"))
	require.Equal(t, `["y"]`, extra(b.done("z"), "parent_results"), "only of its own chain")
	last := b.done("b")
	require.Equal(t, `["a",[1,"z"]]`, extra(last, "parent_results"))
	require.Equal(t, `{"a":"a","n":{"x":1,"c":"z"}}`, extra(last, "parent_results_map"))
	w = b.read(w)
	require.Equal(t, []string{"q", "", "q"}, []string{w.Steps[0].Queue, w.Steps[1].Queue, w.Steps[2].Queue}, "a nested workflow is in no queue")
	require.Equal(t, "completed a:completed n:completed[completed x:completed c:completed[completed y:completed z:completed]] b:completed", states(w))
	require.Equal(t, [6]int{3, 3, 0, 5, 5, 0}, counts(w))
	require.Equal(t, [6]int{2, 2, 0, 3, 3, 0}, counts(w.Steps[1].Workflow))
	require.Contains(t, b.events(w), "workflow.step_completed n.c.y")

	child := b.read(w.Steps[1].Workflow)
	require.Equal(t, w.ID, *child.ParentID)
	require.Equal(t, w.ID, child.RootID)
}
