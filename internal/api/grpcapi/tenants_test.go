package grpcapi_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
)

// as is the context of a tenant's call.
func as(t *testing.T, tenant string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(t.Context(), "x-ojs-tenant", tenant)
}

// filled makes something of each kind for tenant zulu, in queue q.
type filled struct{ active, dead, pending, workflow string }

func fillTenant(t *testing.T, c ojsv1.OJSServiceClient) (f filled) {
	t.Helper()
	ctx := as(t, "zulu")
	enqueue := func(o *ojsv1.EnqueueOptions) string {
		o.Queue = "q"
		res, err := c.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "zulu.job", Options: o})
		require.NoError(t, err)
		require.Equal(t, "zulu", res.GetJob().GetMeta().GetFields()["tenant_id"].GetStringValue())
		return res.GetJob().GetId()
	}
	fetch := func(want string) {
		res, err := c.Fetch(ctx, &ojsv1.FetchRequest{Queues: []string{"q"}, WorkerId: "zulu-worker"})
		require.NoError(t, err)
		require.Len(t, res.GetJobs(), 1)
		require.Equal(t, want, res.GetJobs()[0].GetId())
	}
	f.dead = enqueue(&ojsv1.EnqueueOptions{Priority: 9, MaxAttempts: 1, Retry: &ojsv1.RetryPolicy{MaxAttempts: 1, OnExhaustion: "dead_letter"}})
	fetch(f.dead)
	_, err := c.Nack(ctx, &ojsv1.NackRequest{JobId: f.dead, Error: &ojsv1.JobError{Code: "x", Message: "x"}})
	require.NoError(t, err)
	f.active = enqueue(&ojsv1.EnqueueOptions{Priority: 8})
	fetch(f.active)
	f.pending = enqueue(&ojsv1.EnqueueOptions{Pending: true})
	enqueue(&ojsv1.EnqueueOptions{})
	_, err = c.Heartbeat(ctx, &ojsv1.HeartbeatRequest{WorkerId: "zulu-worker"})
	require.NoError(t, err)
	_, err = c.RegisterCron(ctx, &ojsv1.RegisterCronRequest{Name: "zulu-cron", Cron: "0 0 1 1 *", Type: "t"})
	require.NoError(t, err)
	w, err := c.CreateWorkflow(ctx, &ojsv1.CreateWorkflowRequest{Name: "zulu-workflow", Steps: []*ojsv1.WorkflowStep{{Id: "a", Type: "t", Options: &ojsv1.EnqueueOptions{Queue: "q"}}}})
	require.NoError(t, err)
	f.workflow = w.GetWorkflow().GetId()
	return f
}

// TestTenantsReachOnlyTheirOwn calls every method as one tenant with the data of another one. A method that is added fails until it is here.
func TestTenantsReachOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, config.Default())
	f := fillTenant(t, b.client)
	c, ctx := b.client, as(t, "yankee")
	meta, err := structpb.NewStruct(map[string]any{"tenant_id": "zulu"})
	require.NoError(t, err)
	forged := &ojsv1.EnqueueOptions{Meta: meta}
	calls := map[string]struct {
		code codes.Code
		call func() (proto.Message, error)
	}{
		"Manifest": {codes.OK, func() (proto.Message, error) { return c.Manifest(ctx, &ojsv1.ManifestRequest{}) }},
		"Health":   {codes.OK, func() (proto.Message, error) { return c.Health(ctx, &ojsv1.HealthRequest{}) }},
		"Enqueue": {codes.PermissionDenied, func() (proto.Message, error) {
			return c.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "t", Options: forged})
		}},
		"EnqueueBatch": {codes.PermissionDenied, func() (proto.Message, error) {
			return c.EnqueueBatch(ctx, &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "t", Options: forged}}})
		}},
		"GetJob":    {codes.NotFound, func() (proto.Message, error) { return c.GetJob(ctx, &ojsv1.GetJobRequest{JobId: f.active}) }},
		"CancelJob": {codes.NotFound, func() (proto.Message, error) { return c.CancelJob(ctx, &ojsv1.CancelJobRequest{JobId: f.active}) }},
		"ActivateJob": {codes.NotFound, func() (proto.Message, error) {
			return c.ActivateJob(ctx, &ojsv1.ActivateJobRequest{JobId: f.pending})
		}},
		"Fetch": {codes.OK, func() (proto.Message, error) {
			return c.Fetch(ctx, &ojsv1.FetchRequest{Queues: []string{"q"}, Count: 100, WorkerId: "w"})
		}},
		"Ack": {codes.NotFound, func() (proto.Message, error) { return c.Ack(ctx, &ojsv1.AckRequest{JobId: f.active}) }},
		"Nack": {codes.NotFound, func() (proto.Message, error) {
			return c.Nack(ctx, &ojsv1.NackRequest{JobId: f.active, Error: &ojsv1.JobError{Code: "x"}})
		}},
		"Heartbeat": {codes.OK, func() (proto.Message, error) {
			res, err := c.Heartbeat(ctx, &ojsv1.HeartbeatRequest{WorkerId: "w", Id: f.active})
			require.Nil(t, res.GetNewDeadline())
			return res, err
		}},
		"ListQueues":  {codes.OK, func() (proto.Message, error) { return c.ListQueues(ctx, &ojsv1.ListQueuesRequest{}) }},
		"QueueStats":  {codes.NotFound, func() (proto.Message, error) { return c.QueueStats(ctx, &ojsv1.QueueStatsRequest{Queue: "q"}) }},
		"PauseQueue":  {codes.PermissionDenied, func() (proto.Message, error) { return c.PauseQueue(ctx, &ojsv1.PauseQueueRequest{Queue: "q"}) }},
		"ResumeQueue": {codes.PermissionDenied, func() (proto.Message, error) { return c.ResumeQueue(ctx, &ojsv1.ResumeQueueRequest{Queue: "q"}) }},
		"ListDeadLetter": {codes.OK, func() (proto.Message, error) {
			res, err := c.ListDeadLetter(ctx, &ojsv1.ListDeadLetterRequest{})
			require.Zero(t, res.GetTotalCount())
			return res, err
		}},
		"RetryDeadLetter": {codes.NotFound, func() (proto.Message, error) {
			return c.RetryDeadLetter(ctx, &ojsv1.RetryDeadLetterRequest{JobId: f.dead})
		}},
		"DeleteDeadLetter": {codes.NotFound, func() (proto.Message, error) {
			return c.DeleteDeadLetter(ctx, &ojsv1.DeleteDeadLetterRequest{JobId: f.dead})
		}},
		"RegisterCron": {codes.AlreadyExists, func() (proto.Message, error) {
			return c.RegisterCron(ctx, &ojsv1.RegisterCronRequest{Name: "zulu-cron", Cron: "@daily", Type: "t"})
		}},
		"UnregisterCron": {codes.NotFound, func() (proto.Message, error) {
			return c.UnregisterCron(ctx, &ojsv1.UnregisterCronRequest{Name: "zulu-cron"})
		}},
		"ListCron": {codes.OK, func() (proto.Message, error) { return c.ListCron(ctx, &ojsv1.ListCronRequest{}) }},
		"CreateWorkflow": {codes.PermissionDenied, func() (proto.Message, error) {
			return c.CreateWorkflow(ctx, &ojsv1.CreateWorkflowRequest{Name: "n", Steps: []*ojsv1.WorkflowStep{{Id: "a", Type: "t", Options: forged}}})
		}},
		"GetWorkflow": {codes.NotFound, func() (proto.Message, error) {
			return c.GetWorkflow(ctx, &ojsv1.GetWorkflowRequest{WorkflowId: f.workflow})
		}},
		"CancelWorkflow": {codes.NotFound, func() (proto.Message, error) {
			return c.CancelWorkflow(ctx, &ojsv1.CancelWorkflowRequest{WorkflowId: f.workflow})
		}},
	}
	for _, method := range ojsv1.OJSService_ServiceDesc.Methods {
		call, known := calls[method.MethodName]
		require.True(t, known, "%s is new: say what a tenant gets that calls it", method.MethodName)
		res, err := call.call()
		require.Equal(t, call.code, status.Code(err), "%s: %v", method.MethodName, err)
		if err == nil {
			text, err := protojson.Marshal(res)
			require.NoError(t, err)
			require.NotContains(t, string(text), "zulu", method.MethodName)
		}
	}
	requireUnchanged(t, b, f)
}

// requireUnchanged checks that zulu finds everything as it was.
func requireUnchanged(t *testing.T, b *testBundle, f filled) {
	t.Helper()
	for id, want := range map[string]ojsv1.JobState{
		f.active: ojsv1.JobState_JOB_STATE_ACTIVE, f.dead: ojsv1.JobState_JOB_STATE_DISCARDED, f.pending: ojsv1.JobState_JOB_STATE_PENDING,
	} {
		res, err := b.client.GetJob(as(t, "zulu"), &ojsv1.GetJobRequest{JobId: id})
		require.NoError(t, err)
		require.Equal(t, want, res.GetJob().GetState())
	}
	w, err := b.client.GetWorkflow(as(t, "zulu"), &ojsv1.GetWorkflowRequest{WorkflowId: f.workflow})
	require.NoError(t, err)
	require.Equal(t, ojsv1.WorkflowState_WORKFLOW_STATE_RUNNING, w.GetWorkflow().GetState())
	crons, err := b.client.ListCron(as(t, "zulu"), &ojsv1.ListCronRequest{})
	require.NoError(t, err)
	require.Len(t, crons.GetEntries(), 1)
	require.Equal(t, "0 0 1 1 *", crons.GetEntries()[0].GetCron())
	stats, err := b.client.QueueStats(as(t, "zulu"), &ojsv1.QueueStatsRequest{Queue: "q"})
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.GetStats().GetActive())
	require.EqualValues(t, 2, stats.GetStats().GetAvailable())
}

// TestTenantStreams covers the methods that stream: each shows what is the tenant's alone, which comes last.
func TestTenantStreams(t *testing.T) {
	t.Parallel()
	require.Len(t, ojsv1.OJSService_ServiceDesc.Streams, 2, "a stream is new: test it here")
	require.Len(t, eventsv1.OJSEvents_ServiceDesc.Streams, 1)
	b := setup(t, config.Default())
	ctx, cancel := context.WithCancel(as(t, "yankee"))
	t.Cleanup(cancel)
	jobs, err := b.client.StreamJobs(ctx, &ojsv1.StreamJobsRequest{Queues: []string{"q"}, WorkerId: "w", MaxConcurrent: 10})
	require.NoError(t, err)
	_, err = jobs.Header()
	require.NoError(t, err)
	events, err := b.client.StreamEvents(ctx, &ojsv1.StreamEventsRequest{})
	require.NoError(t, err)
	_, err = events.Header()
	require.NoError(t, err)
	spec, err := eventsv1.NewOJSEventsClient(b.conn).StreamEvents(ctx, &eventsv1.StreamEventsRequest{})
	require.NoError(t, err)
	_, err = spec.Header()
	require.NoError(t, err)
	var own string
	for _, tenant := range []string{"zulu", "yankee"} {
		res, err := b.client.Enqueue(as(t, tenant), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{Queue: "q"}})
		require.NoError(t, err)
		own = res.GetJob().GetId()
	}
	job, err := jobs.Recv()
	require.NoError(t, err)
	require.Equal(t, own, job.GetId())
	event, err := events.Recv()
	require.NoError(t, err)
	require.Equal(t, own, event.GetJobId())
	same, err := spec.Recv()
	require.NoError(t, err)
	require.Equal(t, own, same.GetSubject())
}

func TestTenantMetadata(t *testing.T) {
	t.Parallel()
	b := setup(t, with(func(c *config.Config) { c.Server.Tenancy = "required" }))
	for _, name := range []string{"a b", "a/b", strings.Repeat("x", 129), ""} {
		_, err := b.client.ListCron(as(t, name), &ojsv1.ListCronRequest{})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%q", name)
	}
	_, err := b.client.ListCron(metadata.AppendToOutgoingContext(as(t, "a"), "x-ojs-tenant", "b"), &ojsv1.ListCronRequest{})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "X-OJS-Tenant")
	_, err = b.client.ListCron(t.Context(), &ojsv1.ListCronRequest{})
	require.NoError(t, err)
}
