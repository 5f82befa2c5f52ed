package ojs_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestWorkflowDefinitions is the checklist's chain, group and batch: pure functions.
func TestWorkflowDefinitions(t *testing.T) {
	t.Parallel()
	a, b := ojs.JobRequest{Type: "a", Args: 1}, ojs.JobRequest{Type: "b", Args: map[string]any{"x": 1}, Queue: "q", Delay: time.Minute}
	for name, c := range map[string]struct {
		w    *ojs.Workflow
		want string
	}{
		"Chain": {named(ojs.Chain(a, b), "n"), `{"type":"chain","name":"n","steps":[{"type":"a","args":[1]},{"type":"b","args":[{"x":1}],"options":{"queue":"q","delay_until":"PT60S"}}]}`},
		"Group": {&ojs.Workflow{Type: "group", Steps: []ojs.Step{&a}, Defaults: &ojs.JobRequest{Queue: "g"}}, `{"type":"group","options":{"queue":"g"},"jobs":[{"type":"a","args":[1]}]}`},
		"Batch": {ojs.Batch(ojs.Callbacks{OnComplete: &ojs.JobRequest{Type: "c"}, OnFailure: &ojs.JobRequest{Type: "f"}}, a),
			`{"type":"batch","jobs":[{"type":"a","args":[1]}],"callbacks":{"on_complete":{"type":"c","args":[]},"on_failure":{"type":"f","args":[]}}}`},
		"Nested": {ojs.Chain(a, ojs.Group(a, ojs.Chain(a))), `{"type":"chain","steps":[{"type":"a","args":[1]},{"type":"group","jobs":[{"type":"a","args":[1]},{"type":"chain","steps":[{"type":"a","args":[1]}]}]}]}`},
		"Graph": {ojs.Graph(ojs.JobRequest{Type: "a", Args: 1, StepID: "one"}, ojs.JobRequest{Type: "b", Args: 2, StepID: "two", DependsOn: []string{"one"}}),
			`{"steps":[{"id":"one","type":"a","args":[1]},{"id":"two","type":"b","args":[2],"depends_on":["one"]}]}`},
	} {
		data, err := json.Marshal(c.w)
		require.NoError(t, err, name)
		require.JSONEq(t, c.want, string(data), name)
	}
	_, err := json.Marshal(ojs.Chain(a, ojs.JobRequest{Type: "x", Args: make(chan int)}))
	require.ErrorContains(t, err, "step 1")
}

// TestWorkflows runs workflows on the server in memory.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	ctx := t.Context()
	worker := func() *ojs.Worker {
		w := ojs.NewWorker(c, ojs.WorkerConfig{Concurrency: 2})
		w.Register("double", ojs.Typed(func(ctx ojs.JobContext, n int) error {
			if before := ctx.Job.ParentResults; len(before) > 0 {
				if err := json.Unmarshal(before[len(before)-1], &n); err != nil {
					return err
				}
			}
			return ctx.SetResult(2 * n)
		}))
		w.Register("fail", func(ojs.JobContext) error { return ojs.Discard(errors.New("no")) })
		w.Register("note", func(ojs.JobContext) error { return nil })
		return w
	}
	double := func(n int) ojs.JobRequest { return ojs.JobRequest{Type: "double", Args: n} }
	chain, err := c.CreateWorkflow(ctx, ojs.Chain(double(5), double(0), ojs.Group(ojs.JobRequest{Type: "note"}, ojs.JobRequest{Type: "note"})))
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowRunning, chain.State)
	failing, err := c.CreateWorkflow(ctx, ojs.Batch(ojs.Callbacks{OnFailure: &ojs.JobRequest{Type: "note", Args: "failed"}, OnSuccess: &ojs.JobRequest{Type: "note", Args: "fine"}}, double(1), ojs.JobRequest{Type: "fail"}))
	require.NoError(t, err)
	graph, err := c.CreateWorkflow(ctx, ojs.Graph(ojs.JobRequest{Type: "double", Args: 1, StepID: "one"}, ojs.JobRequest{Type: "double", Args: 1, StepID: "two", DependsOn: []string{"one"}}, ojs.JobRequest{Type: "fail", Args: 1, StepID: "three"}, ojs.JobRequest{Type: "note", Args: 1, StepID: "four", DependsOn: []string{"three"}}))
	require.NoError(t, err)
	s.Drain(t, worker())

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
}

// TestEndsOfWorkflows: what becomes of a workflow, and of what depends on a step that fails.
func TestEndsOfWorkflows(t *testing.T) {
	t.Parallel()
	fine, fail := ojs.JobRequest{Type: "fine"}, ojs.JobRequest{Type: "fail"}
	step := func(r ojs.JobRequest, id string, needs ...string) ojs.JobRequest {
		r.StepID, r.DependsOn = id, needs
		return r
	}
	for name, test := range map[string]struct {
		w    *ojs.Workflow
		want string
	}{
		"Chain":              {ojs.Chain(fail, fine, fine), "failed failed cancelled cancelled"},
		"Graph":              {ojs.Graph(step(fail, "a"), step(fine, "b", "a"), step(fine, "c", "b"), step(fine, "d")), "failed failed cancelled cancelled completed"},
		"GraphBackwards":     {ojs.Graph(step(fine, "c", "b"), step(fine, "b", "a"), step(fail, "a")), "failed cancelled cancelled failed"},
		"OnCompleteOnly":     {ojs.Batch(ojs.Callbacks{OnComplete: &fine}, fail), "failed failed"},
		"OnSuccessOnly":      {ojs.Batch(ojs.Callbacks{OnSuccess: &fine}, fail), "failed failed"},
		"OnFailure":          {ojs.Batch(ojs.Callbacks{OnFailure: &fine}, fail, fine), "completed failed completed"},
		"OnBoth":             {ojs.Batch(ojs.Callbacks{OnComplete: &fine, OnFailure: &fine}, fail), "completed failed"},
		"OnCompleteFails":    {ojs.Batch(ojs.Callbacks{OnComplete: &fail}, fine), "failed completed"},
		"OnSuccessFails":     {ojs.Batch(ojs.Callbacks{OnSuccess: &fail}, fine), "failed completed"},
		"OnFailureFails":     {ojs.Batch(ojs.Callbacks{OnFailure: &fail}, fail), "failed failed"},
		"OnFailureOfSuccess": {ojs.Batch(ojs.Callbacks{OnFailure: &fail}, fine), "completed completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			w := ojs.NewWorker(c, ojs.WorkerConfig{})
			w.Register("fine", func(ojs.JobContext) error { return nil })
			w.Register("fail", func(ojs.JobContext) error { return ojs.Discard(errors.New("no")) })
			flow, err := c.CreateWorkflow(t.Context(), test.w)
			require.NoError(t, err)
			s.Drain(t, w)
			flow, err = c.GetWorkflow(t.Context(), flow.ID)
			require.NoError(t, err)
			got := string(flow.State)
			for _, st := range flow.Steps {
				got += " " + st.State
			}
			require.Equal(t, test.want, got)
		})
	}
}

func named(w *ojs.Workflow, name string) *ojs.Workflow {
	w.Name = name
	return w
}

// TestWorkflowsWithoutSteps: a definition that was written by hand is refused with the place of the mistake.
func TestWorkflowsWithoutSteps(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	for _, step := range []ojs.Step{nil, (*ojs.Workflow)(nil), (*ojs.JobRequest)(nil)} {
		_, err := c.CreateWorkflow(t.Context(), &ojs.Workflow{Type: "chain", Steps: []ojs.Step{ojs.JobRequest{Type: "a"}, step}})
		require.ErrorContains(t, err, "step 1: it is nil")
	}
}
