package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestGRPCOutage is TestDatabaseOutage over gRPC. Open streams wait for the database.
func TestGRPCOutage(t *testing.T) {
	t.Parallel()
	cluster := dbtest.Cluster(t)
	r := setupGRPC(t, func(c *app.Config) {
		c.Database.URL, c.Jobs.VisibilityTimeout = cluster.URL(dbtest.ClusterDatabase), time.Hour
	})
	id := r.enqueue("q")
	events, jobs := r.listenEvents(&ojsv1.StreamEventsRequest{EventTypes: []string{"job.completed"}}), r.listenJobs("w", 1, "q")
	require.Equal(t, id, jobs.next().GetId())
	require.NoError(t, cluster.Kill())

	var header metadata.MD
	h := grpc.Header(&header)
	for name, call := range map[string]func(ctx context.Context) error{
		"Enqueue": func(ctx context.Context) error {
			_, err := r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "t"}, h)
			return err
		},
		"EnqueueBatch": func(ctx context.Context) error {
			_, err := r.EnqueueBatch(ctx, &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "t"}}}, h)
			return err
		},
		"EnqueueOnce": func(ctx context.Context) error {
			_, err := r.EnqueueBatch(metadata.AppendToOutgoingContext(ctx, "x-ojs-idempotency-key", "k"), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "t"}}}, h)
			return err
		},
		"GetJob": func(ctx context.Context) error {
			_, err := r.GetJob(ctx, &ojsv1.GetJobRequest{JobId: id}, h)
			return err
		},
		"CancelJob": func(ctx context.Context) error {
			_, err := r.CancelJob(ctx, &ojsv1.CancelJobRequest{JobId: id}, h)
			return err
		},
		"ActivateJob": func(ctx context.Context) error {
			_, err := r.ActivateJob(ctx, &ojsv1.ActivateJobRequest{JobId: id}, h)
			return err
		},
		"Fetch": func(ctx context.Context) error {
			_, err := r.Fetch(ctx, &ojsv1.FetchRequest{Queues: []string{"q2"}}, h)
			return err
		},
		"Ack": func(ctx context.Context) error {
			_, err := r.Ack(ctx, &ojsv1.AckRequest{JobId: id}, h)
			return err
		},
		"Nack": func(ctx context.Context) error {
			_, err := r.Nack(ctx, &ojsv1.NackRequest{JobId: id, Error: &ojsv1.JobError{Code: "E"}}, h)
			return err
		},
		"Heartbeat": func(ctx context.Context) error {
			_, err := r.Heartbeat(ctx, &ojsv1.HeartbeatRequest{Id: id, WorkerId: "w"}, h)
			return err
		},
		"ListQueues": func(ctx context.Context) error {
			_, err := r.ListQueues(ctx, &ojsv1.ListQueuesRequest{}, h)
			return err
		},
		"QueueStats": func(ctx context.Context) error {
			_, err := r.QueueStats(ctx, &ojsv1.QueueStatsRequest{Queue: "q"}, h)
			return err
		},
		"ListDeadLetter": func(ctx context.Context) error {
			_, err := r.ListDeadLetter(ctx, &ojsv1.ListDeadLetterRequest{}, h)
			return err
		},
		"RetryDeadLetter": func(ctx context.Context) error {
			_, err := r.RetryDeadLetter(ctx, &ojsv1.RetryDeadLetterRequest{JobId: id}, h)
			return err
		},
		"DeleteDeadLetter": func(ctx context.Context) error {
			_, err := r.DeleteDeadLetter(ctx, &ojsv1.DeleteDeadLetterRequest{JobId: id}, h)
			return err
		},
		"RegisterCron": func(ctx context.Context) error {
			_, err := r.RegisterCron(ctx, &ojsv1.RegisterCronRequest{Name: "c", Cron: "@hourly", Type: "t"}, h)
			return err
		},
		"UnregisterCron": func(ctx context.Context) error {
			_, err := r.UnregisterCron(ctx, &ojsv1.UnregisterCronRequest{Name: "c"}, h)
			return err
		},
		"ListCron": func(ctx context.Context) error {
			_, err := r.ListCron(ctx, &ojsv1.ListCronRequest{}, h)
			return err
		},
		"StreamEvents": func(ctx context.Context) error {
			stream, err := r.StreamEvents(ctx, &ojsv1.StreamEventsRequest{})
			require.NoError(t, err)
			header, err = stream.Header()
			require.NoError(t, err)
			_, err = stream.Recv()
			return err
		},
		"StreamJobs": func(ctx context.Context) error {
			stream, err := r.StreamJobs(ctx, &ojsv1.StreamJobsRequest{Queues: []string{"q"}, WorkerId: "w"})
			require.NoError(t, err)
			header, err = stream.Header()
			require.NoError(t, err)
			_, err = stream.Recv()
			return err
		},
	} {
		start := time.Now()
		header = nil
		err := call(r.ctx())
		if status.Code(err) == codes.DeadlineExceeded { // sent on a connection whose end the node had not seen
			require.Equal(t, "unknown", refused(t, err, codes.DeadlineExceeded, "backend_error").metadata["outcome"], name)
			continue
		}
		e := refused(t, err, codes.Unavailable, "backend_error")
		require.Less(t, time.Since(start), 10*time.Second, name) // a statement may take 15 s
		require.Equal(t, "true", e.metadata["retryable"], name)
		require.Equal(t, []string{"1"}, header.Get("retry-after"), name)
		for _, secret := range []string{"postgres://", "SQLSTATE", "127.0.0.1", "dial", "socket"} {
			require.NotContains(t, e.message, secret, name)
		}
	}
	_, err := r.Manifest(r.ctx(), &ojsv1.ManifestRequest{})
	require.NoError(t, err)
	eventually(t, func() bool { // a probe is shared for a second
		h, err := r.Health(r.ctx(), &ojsv1.HealthRequest{})
		require.NoError(t, err)
		return h.GetStatus() == ojsv1.HealthStatus_HEALTH_STATUS_UNHEALTHY
	})
	ready, err := grpc_health_v1.NewHealthClient(r.conn).Check(r.ctx(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, ready.GetStatus())

	require.NoError(t, cluster.Restart(t.Context()))
	eventually(t, func() bool {
		_, err := r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id})
		return err == nil
	})
	require.Equal(t, id, events.next().GetJobId())
	require.Equal(t, r.enqueue("q"), jobs.next().GetId())
}
