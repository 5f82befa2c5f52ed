package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

func TestGRPCWorkflows(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)

	t.Run("StepsAndCallbacks", func(t *testing.T) {
		t.Parallel()
		r, q := *r, queue()
		r.node = r.in(t)
		options := &ojsv1.EnqueueOptions{Queue: q}
		in := &ojsv1.CreateWorkflowRequest{Name: "etl", Steps: []*ojsv1.WorkflowStep{
			{Id: "extract", Type: "etl.extract", Args: []*structpb.Value{structpb.NewNumberValue(1)}, Options: options},
			{Id: "load", Type: "etl.load", DependsOn: []string{"extract"}, Options: options},
			{Id: "on-failure", Type: "etl.alarm", DependsOn: []string{"extract", "load"}, Options: options},
		}}
		created, err := r.CreateWorkflow(r.ctx("x-ojs-idempotency-key", q), in)
		require.NoError(t, err)
		again, err := r.CreateWorkflow(r.ctx("x-ojs-idempotency-key", q), in)
		require.NoError(t, err)
		require.True(t, proto.Equal(created, again))
		w := created.GetWorkflow()
		require.Equal(t, "etl", w.GetName())
		require.Equal(t, ojsv1.WorkflowState_WORKFLOW_STATE_RUNNING, w.GetState())
		require.Len(t, w.GetSteps(), 3)
		require.Equal(t, ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_PENDING, w.GetSteps()[0].GetState())
		require.Equal(t, ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_WAITING, w.GetSteps()[1].GetState())
		require.Equal(t, []string{"extract"}, w.GetSteps()[1].GetDependsOn())
		require.Equal(t, []string{"extract", "load"}, w.GetSteps()[2].GetDependsOn())
		require.Equal(t, "dag", r.get("/ojs/v1/workflows/"+w.GetId()).at("type"))

		job := r.run(q, "etl.extract", `{"rows":3}`)
		require.Equal(t, w.GetSteps()[0].GetJobId(), job.at("jobs.0.id"))
		require.Equal(t, `[{"rows":3}]`, r.run(q, "etl.load", "1").at("jobs.0.parent_results"))
		got, err := r.GetWorkflow(r.ctx(), &ojsv1.GetWorkflowRequest{WorkflowId: "wf_" + w.GetId()})
		require.NoError(t, err)
		require.Equal(t, ojsv1.WorkflowState_WORKFLOW_STATE_COMPLETED, got.GetWorkflow().GetState())
		require.NotNil(t, got.GetWorkflow().GetCompletedAt())
		require.Equal(t, ojsv1.WorkflowStepState_WORKFLOW_STEP_STATE_CANCELLED, got.GetWorkflow().GetSteps()[2].GetState())

		_, err = r.CancelWorkflow(r.ctx(), &ojsv1.CancelWorkflowRequest{WorkflowId: w.GetId(), Reason: "late"})
		refused(t, err, codes.FailedPrecondition, "conflict")
	})

	t.Run("Cancel", func(t *testing.T) {
		t.Parallel()
		created, err := r.CreateWorkflow(r.ctx(), &ojsv1.CreateWorkflowRequest{Steps: []*ojsv1.WorkflowStep{{Id: "a", Type: "a"}}})
		require.NoError(t, err)
		member, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: created.GetWorkflow().GetSteps()[0].GetJobId()})
		require.NoError(t, err)
		require.Equal(t, created.GetWorkflow().GetId(), member.GetJob().GetWorkflowId())
		require.Equal(t, "chain", created.GetWorkflow().GetName())
		out, err := r.CancelWorkflow(r.ctx(), &ojsv1.CancelWorkflowRequest{WorkflowId: created.GetWorkflow().GetId(), Reason: "why"})
		require.NoError(t, err)
		require.Equal(t, ojsv1.WorkflowState_WORKFLOW_STATE_CANCELLED, out.GetWorkflow().GetState())
	})

	t.Run("Refusals", func(t *testing.T) {
		t.Parallel()
		for _, in := range []*ojsv1.CreateWorkflowRequest{
			{},
			{Steps: []*ojsv1.WorkflowStep{{Type: "a"}}},
			{Steps: []*ojsv1.WorkflowStep{{Id: "a", Type: "a", DependsOn: []string{"b"}}, {Id: "b", Type: "b", DependsOn: []string{"a"}}}},
			{Steps: []*ojsv1.WorkflowStep{{Id: "a", Type: "A"}}},
		} {
			_, err := r.CreateWorkflow(r.ctx(), in)
			require.NotEmpty(t, refused(t, err, codes.InvalidArgument, "invalid_payload").violations)
		}
		_, err := r.CreateWorkflow(r.ctx(), &ojsv1.CreateWorkflowRequest{Steps: []*ojsv1.WorkflowStep{{Id: "a", Type: "a", Options: &ojsv1.EnqueueOptions{Retry: &ojsv1.RetryPolicy{MaxAttempts: -1}}}}})
		refused(t, err, codes.InvalidArgument, "validation_error")
		for _, id := range []string{newID(), "x"} {
			_, err = r.GetWorkflow(r.ctx(), &ojsv1.GetWorkflowRequest{WorkflowId: id})
			refused(t, err, codes.NotFound, "not_found")
		}
		_, err = r.GetWorkflow(r.ctx(), &ojsv1.GetWorkflowRequest{})
		refused(t, err, codes.InvalidArgument, "invalid_payload")
	})
}
