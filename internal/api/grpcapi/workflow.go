package grpcapi

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
)

// CreateWorkflow is POST /workflows with steps that depend on each other.
// Everything is stored in one transaction, or nothing. A client that got no answer should repeat the call with its key.
func (a *API) CreateWorkflow(ctx context.Context, in *ojsv1.CreateWorkflowRequest) (*ojsv1.CreateWorkflowResponse, error) {
	definition, err := a.readWorkflow(ctx, in)
	if err != nil {
		return nil, err
	}
	// Only the jobs that begin at once need room.
	wait, err := api.ParseBlockTimeout(blockKey, sent(ctx, blockKey))
	if err != nil {
		return nil, err
	}
	return retryFull(ctx, a, wait, func() (*ojsv1.CreateWorkflowResponse, error) {
		// The transaction of a key is within the wait, so no key is locked while the call waits.
		if key := sent(ctx, idempotencyKey); key != "" {
			return a.createWorkflowOnce(ctx, key, in, definition)
		}
		w, err := a.Workflows.Create(ctx, definition)
		if err != nil {
			return nil, err
		}
		return &ojsv1.CreateWorkflowResponse{Workflow: workflowOf(w)}, nil
	})
}

// The error names the step.
func (a *API) readWorkflow(ctx context.Context, in *ojsv1.CreateWorkflowRequest) (*workflow.Definition, error) {
	draft := workflow.Draft{Name: in.GetName(), Steps: make([]workflow.StepDraft, len(in.GetSteps()))}
	for i, s := range in.GetSteps() {
		// A new one for each step, so that the error is that of the first bad step.
		var r reader
		draft.Steps[i] = workflow.StepDraft{ID: s.GetId(), DependsOn: s.GetDependsOn(), Job: r.draft(s.GetType(), s.GetArgs(), s.GetOptions())}
		if r.err != nil {
			r.err.Message = fmt.Sprintf("steps[%d]: %s", i, r.err.Message)
			return nil, r.err
		}
	}
	// It checks what Decode checks for HTTP, with the same messages.
	definition, wire := a.Workflows.Define(draft, a.limits(ctx))
	if wire != nil {
		return nil, wire
	}
	return definition, nil
}

// It is not once, because a workflow is stored by another transaction than a batch.
func (a *API) createWorkflowOnce(ctx context.Context, key string, in *ojsv1.CreateWorkflowRequest, definition *workflow.Definition) (*ojsv1.CreateWorkflowResponse, error) {
	if err := api.CheckIdempotencyKey(idempotencyKey, idempotencyKey, key); err != nil {
		return nil, err
	}
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("hash request: %w", err)
	}
	// Another definition under the same key is a conflict.
	hash := sha256.Sum256(message)
	k := queue.IdempotencyKey{Holder: callOf(ctx).caller.Holder(), Operation: "grpc workflow", Key: key, Hash: hash[:]}
	answer, err := a.Workflows.CreateOnce(ctx, definition, k, func(w *workflow.Workflow) (queue.Answer, error) {
		body, err := protojson.Marshal(&ojsv1.CreateWorkflowResponse{Workflow: workflowOf(w)})
		return queue.Answer{Body: body}, err
	})
	if err != nil {
		return nil, err
	}
	out := &ojsv1.CreateWorkflowResponse{}
	if err := protojson.Unmarshal(answer.Body, out); err != nil {
		return nil, fmt.Errorf("read remembered answer: %w", err)
	}
	return out, nil
}

// GetWorkflow is GET /workflows/{id}.
// The tree is read in one snapshot; nested workflows are steps here, to be asked for by their own ids.
func (a *API) GetWorkflow(ctx context.Context, in *ojsv1.GetWorkflowRequest) (*ojsv1.GetWorkflowResponse, error) {
	id, err := workflowID(in.GetWorkflowId())
	if err != nil {
		return nil, err
	}
	w, err := a.Workflows.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &ojsv1.GetWorkflowResponse{Workflow: workflowOf(w)}, nil
}

// CancelWorkflow is DELETE /workflows/{id}. The reason is checked as that of a job; no event of a workflow carries it.
// Active jobs run on: the message has no force.
func (a *API) CancelWorkflow(ctx context.Context, in *ojsv1.CancelWorkflowRequest) (*ojsv1.CancelWorkflowResponse, error) {
	id, err := workflowID(in.GetWorkflowId())
	if err != nil {
		return nil, err
	}
	cancel, err := api.NewCancel(actor(ctx), in.GetReason())
	if err != nil {
		return nil, err
	}
	// The counts of cancelled steps have no field in the message.
	w, _, err := a.Workflows.Cancel(ctx, id, false, cancel.By)
	if err != nil {
		return nil, err
	}
	return &ojsv1.CancelWorkflowResponse{Workflow: workflowOf(w)}, nil
}

// A missing id is a mistake of the call, a malformed one an unknown workflow.
func workflowID(text string) ([16]byte, error) {
	if text == "" {
		return [16]byte{}, spec.InvalidPayload("workflow_id", "the id of a workflow", nil, "'workflow_id' is required: send the id of a workflow.")
	}
	id, ok := spec.ParseID(text)
	if !ok {
		return id, spec.NotFound("workflow", shorten(text, maxDetail))
	}
	return id, nil
}

// A state that is missing here is shown as 0, unspecified.
var workflowStates = map[string]ojsv1.WorkflowState{
	"running": ojsv1.WorkflowState_WORKFLOW_STATE_RUNNING, "completed": ojsv1.WorkflowState_WORKFLOW_STATE_COMPLETED,
	"failed": ojsv1.WorkflowState_WORKFLOW_STATE_FAILED, "cancelled": ojsv1.WorkflowState_WORKFLOW_STATE_CANCELLED,
}

var workflowStepStates = map[string]ojsv1.WorkflowStepState{
	"waiting": ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_WAITING, "pending": ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_PENDING,
	"active": ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_ACTIVE, "completed": ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_COMPLETED,
	"failed": ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_FAILED, "cancelled": ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_CANCELLED,
}

// workflowOf shows the steps of the workflow itself, and behind them those that were sent as callbacks.
// Steps of nested workflows are read by the id of that workflow.
func workflowOf(w *workflow.Workflow) *ojsv1.Workflow {
	out := &ojsv1.Workflow{Id: spec.FormatID(w.ID), Name: w.Name, State: workflowStates[w.State], CreatedAt: timestamppb.New(w.CreatedAt)}
	if w.EndedAt != nil {
		out.CompletedAt = timestamppb.New(*w.EndedAt)
	}
	for i := range w.Steps {
		out.Steps = append(out.Steps, stepOf(&w.Steps[i]))
	}
	for i := range w.Callbacks {
		// Callbacks of another form cannot be shown as steps, because they have no ids.
		if w.StepsForm {
			// A callback waits for all members.
			s := stepOf(&w.Callbacks[i])
			for j := range w.Steps {
				s.DependsOn = append(s.DependsOn, w.Steps[j].ID)
			}
			out.Steps = append(out.Steps, s)
		}
	}
	shrink(out, func() {
		for _, s := range out.GetSteps() {
			s.DependsOn = nil
		}
	})
	return out
}

func stepOf(st *workflow.Step) *ojsv1.WorkflowStepStatus {
	out := &ojsv1.WorkflowStepStatus{Id: st.ID, Type: st.Type, State: workflowStepStates[st.State]}
	// Without a job the field is empty: the step waits, or its job could not be made.
	if st.JobID != nil {
		out.JobId = spec.FormatID(*st.JobID)
	}
	if st.Callback == "" {
		out.DependsOn = st.DependsOn
	}
	return out
}
