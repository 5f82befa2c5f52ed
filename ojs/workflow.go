package ojs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Step is a member of a workflow: a [JobRequest] or a *[Workflow].
type Step interface{ step() ([]byte, error) }

// Workflow is the definition of a workflow. [Chain], [Group], [Batch] and [Graph] make one. [Chain], [Group] and [Batch] take
// workflows as steps, too. Rules and limits: docs/reference/workflows.md.
type Workflow struct {
	Type      string // chain, group, batch; "": a graph
	Name      string
	ID        string // UUIDv7; "": the client makes one for the workflow that it creates
	StepID    string // of a nested workflow
	Steps     []Step
	Callbacks Callbacks
	Defaults  *JobRequest // queue and other options of the jobs that have none of their own
	Meta      map[string]any
}

// Callbacks are jobs at the end of a batch. The workflow ends when they have ended too.
type Callbacks struct {
	OnComplete *JobRequest // always
	OnSuccess  *JobRequest // if all jobs have completed
	OnFailure  *JobRequest // if one has not
}

// Chain runs steps one after the other. Each gets the results of those before it. If a step fails for good, those after it do
// not run.
func Chain(steps ...Step) *Workflow { return ofSteps("chain", steps) }

// Group runs steps at the same time. The group has failed if one step has, but the others run to their end.
func Group(steps ...Step) *Workflow { return ofSteps("group", steps) }

// Batch runs steps at the same time, and callbacks when all have ended.
func Batch(callbacks Callbacks, steps ...Step) *Workflow {
	w := ofSteps("batch", steps)
	w.Callbacks = callbacks
	return w
}

// ofSteps panics where a step is nil, as it may be made by a function that has failed.
func ofSteps(kind string, steps []Step) *Workflow {
	for i, s := range steps {
		if isNilStep(s) {
			panic(fmt.Sprintf("ojs: step %d of a %s is nil", i, kind))
		}
	}
	return &Workflow{Type: kind, Steps: steps}
}

func isNilStep(s Step) bool {
	switch s := s.(type) {
	case *Workflow:
		return s == nil
	case *JobRequest:
		return s == nil
	}
	return s == nil
}

// Graph runs each step when those that it depends on have completed: give steps a StepID and DependsOn. A step that names one that
// does not exist, or a circle, is refused by the server.
func Graph(steps ...JobRequest) *Workflow {
	w := &Workflow{}
	for _, s := range steps {
		w.Steps = append(w.Steps, s)
	}
	return w
}

// MarshalJSON gives the body of the request that creates the workflow.
func (w *Workflow) MarshalJSON() ([]byte, error) { return w.marshal(w.ID) }

func (w *Workflow) step() ([]byte, error) { return w.marshal(w.StepID) }

func (w *Workflow) marshal(id string) ([]byte, error) {
	m := optionSet{}
	m.text("type", w.Type)
	m.text("name", w.Name)
	m.text("id", id)
	if len(w.Meta) > 0 {
		m["meta"] = w.Meta
	}
	if w.Defaults != nil {
		m["options"] = w.Defaults.options()
	}
	steps := make([]json.RawMessage, len(w.Steps))
	for i, s := range w.Steps {
		if isNilStep(s) {
			return nil, fmt.Errorf("step %d: it is nil", i)
		}
		data, err := s.step()
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		steps[i] = data
	}
	if w.Type == "group" || w.Type == "batch" {
		m["jobs"] = steps
	} else {
		m["steps"] = steps
	}
	callbacks := map[string]json.RawMessage{}
	for name, r := range map[string]*JobRequest{"on_complete": w.Callbacks.OnComplete, "on_success": w.Callbacks.OnSuccess,
		"on_failure": w.Callbacks.OnFailure} {
		if r != nil {
			data, err := r.step()
			if err != nil {
				return nil, fmt.Errorf("callback %s: %w", name, err)
			}
			callbacks[name] = data
		}
	}
	if len(callbacks) > 0 {
		m["callbacks"] = callbacks
	}
	return json.Marshal(m)
}

// WorkflowState is running until the outcome is known.
type WorkflowState string

// The states of a workflow. Other servers may also say pending.
const (
	WorkflowRunning   WorkflowState = "running"
	WorkflowCompleted WorkflowState = "completed"
	WorkflowFailed    WorkflowState = "failed"
	WorkflowCancelled WorkflowState = "cancelled"
)

// Terminal reports whether the workflow has ended.
func (s WorkflowState) Terminal() bool {
	return s == WorkflowCompleted || s == WorkflowFailed || s == WorkflowCancelled
}

// WorkflowInfo is what the server says of a workflow.
type WorkflowInfo struct {
	ID             string                  `json:"id"`
	Type           string                  `json:"type"`
	Name           string                  `json:"name"`
	State          WorkflowState           `json:"state"`
	Meta           map[string]any          `json:"meta"`
	Steps          []StepInfo              `json:"steps"`
	Callbacks      map[string]CallbackInfo `json:"callbacks"`
	StepsTotal     int                     `json:"steps_total"`
	StepsCompleted int                     `json:"steps_completed"`
	StepsFailed    int                     `json:"steps_failed"`
	StepsCancelled int                     `json:"steps_cancelled"` // by this call
	CreatedAt      time.Time               `json:"created_at"`
	StartedAt      time.Time               `json:"started_at"`
	CompletedAt    time.Time               `json:"completed_at"`
	CancelledAt    time.Time               `json:"cancelled_at"`
}

// StepInfo is a step of a workflow.
type StepInfo struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	State     string          `json:"state"` // waiting, pending, active, completed, failed, cancelled
	JobID     string          `json:"job_id"`
	JobState  JobState        `json:"job_state"`
	DependsOn []string        `json:"depends_on"`
	Result    json.RawMessage `json:"result"`
	Error     *JobError       `json:"error"`
	Workflow  *WorkflowInfo   `json:"workflow"` // of a nested one
}

// CallbackInfo is a callback of a workflow.
type CallbackInfo struct {
	Type  string `json:"type"`
	Fired bool   `json:"fired"`
	State string `json:"state"`
	JobID string `json:"job_id"`
}

// CreateWorkflow starts a workflow. Enqueue middleware does not see its jobs; Meta of the workflow may carry a trace context, which
// ojsotel.TraceWorkflow puts there.
// All is checked and stored in one transaction. The ID makes repetition safe, like that of a job.
func (c *Client) CreateWorkflow(ctx context.Context, workflow *Workflow) (*WorkflowInfo, error) {
	notNil("the workflow", workflow == nil)
	w := *workflow
	if w.ID == "" {
		w.ID = NewID()
	}
	info, unknown, err := c.workflowCall(ctx, post("/workflows", &w).again())
	if unknown && errors.Is(err, ErrDuplicateJob) {
		return c.GetWorkflow(ctx, w.ID)
	}
	return info, err
}

// GetWorkflow reads a workflow.
func (c *Client) GetWorkflow(ctx context.Context, id string) (*WorkflowInfo, error) {
	info, _, err := c.workflowCall(ctx, get("/workflows/"+url.PathEscape(id), nil))
	return info, err
}

// CancelWorkflow cancels what has not begun, and with force also what runs. One that has ended is an error with the code
// conflict.
func (c *Client) CancelWorkflow(ctx context.Context, id string, force bool) (*WorkflowInfo, error) {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	info, unknown, err := c.workflowCall(ctx, Call{Method: http.MethodDelete, Path: "/workflows/" + url.PathEscape(id), Query: query,
		Idempotent: true})
	if unknown && ErrorDetail(err, "current_state") == string(WorkflowCancelled) {
		return c.GetWorkflow(ctx, id)
	}
	return info, err
}

// workflowCall reads a workflow at the top level of the answer or in its member workflow.
func (c *Client) workflowCall(ctx context.Context, r Call) (info *WorkflowInfo, unknown bool, err error) {
	var answer struct {
		Workflow *WorkflowInfo `json:"workflow"`
		WorkflowInfo
	}
	if unknown, err = c.repeat(ctx, r, &answer); err != nil {
		return nil, unknown, err
	}
	if answer.Workflow != nil {
		return answer.Workflow, unknown, nil
	}
	return &answer.WorkflowInfo, unknown, nil
}
