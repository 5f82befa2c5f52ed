package ojs_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// TestWorkflowDefinitions is the checklist's chain, group and batch: pure functions.
func TestWorkflowDefinitions(t *testing.T) {
	t.Parallel()
	a, b := ojs.NewRequest("a", 1), ojs.NewRequest("b", map[string]any{"x": 1}, ojs.WithQueue("q"), ojs.WithDelay(time.Minute))
	for name, c := range map[string]struct {
		w    *ojs.Workflow
		want string
	}{
		"Chain": {ojs.Chain(a, b).Named("n"), `{"type":"chain","name":"n","steps":[{"type":"a","args":[1]},{"type":"b","args":[{"x":1}],"options":{"queue":"q","delay_until":"PT60S"}}]}`},
		"Group": {ojs.Group(a).WithDefaults(ojs.WithQueue("g")), `{"type":"group","options":{"queue":"g"},"jobs":[{"type":"a","args":[1]}]}`},
		"Batch": {ojs.Batch(ojs.Callbacks{OnComplete: ojs.NewRequest("c", nil), OnFailure: ojs.NewRequest("f", nil)}, a),
			`{"type":"batch","jobs":[{"type":"a","args":[1]}],"callbacks":{"on_complete":{"type":"c","args":[]},"on_failure":{"type":"f","args":[]}}}`},
		"Nested": {ojs.Chain(a, ojs.Group(a, ojs.Chain(a))), `{"type":"chain","steps":[{"type":"a","args":[1]},{"type":"group","jobs":[{"type":"a","args":[1]},{"type":"chain","steps":[{"type":"a","args":[1]}]}]}]}`},
		"Graph": {ojs.Graph(ojs.NewRequest("a", 1, ojs.WithStep("one")), ojs.NewRequest("b", 2, ojs.WithStep("two", "one"))),
			`{"steps":[{"id":"one","type":"a","args":[1]},{"id":"two","type":"b","args":[2],"depends_on":["one"]}]}`},
	} {
		data, err := json.Marshal(c.w)
		require.NoError(t, err, name)
		require.JSONEq(t, c.want, string(data), name)
	}
	_, err := json.Marshal(ojs.Chain(a, ojs.NewRequest("x", make(chan int))))
	require.ErrorContains(t, err, "step 1")
}

// TestWorkflows runs workflows on the server in memory.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	ctx := t.Context()
	worker := func() *ojs.Worker {
		w := ojs.NewWorker(c, ojs.WorkerConfig{Concurrency: 2})
		ojs.RegisterResult(w, "double", func(_ context.Context, job *ojs.Job[int]) (int, error) {
			if len(job.ParentResults) > 0 {
				var before int
				if err := json.Unmarshal(job.ParentResults[len(job.ParentResults)-1], &before); err != nil {
					return 0, err
				}
				return 2 * before, nil
			}
			return 2 * job.Args, nil
		})
		ojs.RegisterFunc(w, "fail", func(context.Context, *ojs.Job[any]) error { return ojs.Discard(errors.New("no")) })
		ojs.RegisterFunc(w, "note", func(context.Context, *ojs.Job[any]) error { return nil })
		return w
	}
	double := func(n int) *ojs.JobRequest { return ojs.NewRequest("double", n) }
	chain, err := c.CreateWorkflow(ctx, ojs.Chain(double(5), double(0), ojs.Group(ojs.NewRequest("note", nil), ojs.NewRequest("note", nil))))
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowRunning, chain.State)
	failing, err := c.CreateWorkflow(ctx, ojs.Batch(ojs.Callbacks{OnFailure: ojs.NewRequest("note", "failed"), OnSuccess: ojs.NewRequest("note", "fine")}, double(1), ojs.NewRequest("fail", nil)))
	require.NoError(t, err)
	graph, err := c.CreateWorkflow(ctx, ojs.Graph(ojs.NewRequest("double", 1, ojs.WithStep("one")), ojs.NewRequest("double", 1, ojs.WithStep("two", "one")), ojs.NewRequest("fail", 1, ojs.WithStep("three")), ojs.NewRequest("note", 1, ojs.WithStep("four", "three"))))
	require.NoError(t, err)
	s.Drain(t, worker(), waitFor)

	chain, err = c.GetWorkflow(ctx, chain.ID)
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowCompleted, chain.State)
	require.Equal(t, "20", string(chain.Steps[1].Result))
	require.Equal(t, ojs.WorkflowCompleted, chain.Steps[2].Workflow.State)
	failing, err = c.GetWorkflow(ctx, failing.ID)
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowCompleted, failing.State, "its failure was dealt with")
	require.True(t, failing.Callbacks["on_failure"].Fired)
	require.False(t, failing.Callbacks["on_success"].Fired)
	graph, err = c.GetWorkflow(ctx, graph.ID)
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowFailed, graph.State)
	require.Equal(t, []string{"completed", "completed", "failed", "cancelled"}, []string{graph.Steps[0].State, graph.Steps[1].State, graph.Steps[2].State, graph.Steps[3].State})

	open, err := c.CreateWorkflow(ctx, ojs.Group(double(1)))
	require.NoError(t, err)
	open, err = c.CancelWorkflow(ctx, open.ID, false)
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowCancelled, open.State)
	_, err = c.CancelWorkflow(ctx, open.ID, false)
	require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
	all, err := c.ListWorkflows(ctx, ojs.WorkflowFilter{State: ojs.WorkflowCancelled})
	require.NoError(t, err)
	require.Len(t, all.Items, 1)
}
