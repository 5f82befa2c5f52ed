package e2e_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
)

// rpc is a running node with both interfaces, and a client of each.
type rpc struct {
	*node
	ojsv1.OJSServiceClient
	conn *grpc.ClientConn
}

// setupGRPC is setup with gRPC.
func setupGRPC(t testing.TB, change ...func(*app.Config)) *rpc {
	t.Helper()
	first := func(c *app.Config) { c.GRPC.Listen = "127.0.0.1:0" }
	a := setup(t, append([]func(*app.Config){first}, change...)...)
	return a.dialGRPC(grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// anotherGRPC starts one more node on the same database.
func (r *rpc) anotherGRPC() *rpc { return setupGRPC(r.t, on(r.database)) }

func (a *node) dialGRPC(options ...grpc.DialOption) *rpc {
	a.t.Helper()
	conn, err := grpc.NewClient(a.app.GRPCAddr(), options...)
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = conn.Close() })
	return &rpc{a, ojsv1.NewOJSServiceClient(conn), conn}
}

// narrow is the same node for a client whose window does not grow, so that a few hundred events fill it.
func (r *rpc) narrow() *rpc {
	r.t.Helper()
	const window = 1 << 16
	return r.dialGRPC(grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
}

// overfill writes 3 000 events, which is more than the window.
func (r *rpc) overfill() {
	r.t.Helper()
	for range 3 {
		r.pushMany(r.t, "full", 1000)
	}
}

func (r *rpc) events() eventsv1.OJSEventsClient { return eventsv1.NewOJSEventsClient(r.conn) }

// ctx ends with the test.
func (r *rpc) ctx(pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(r.t.Context(), pairs...)
}

// refusal is a status with its details.
type refusal struct {
	code       codes.Code
	message    string
	reason     string
	metadata   map[string]string
	violations []string
	retry      time.Duration
}

func refusalOf(t testing.TB, err error) refusal {
	t.Helper()
	require.Error(t, err)
	s, ok := status.FromError(err)
	require.True(t, ok, "%v", err)
	r := refusal{code: s.Code(), message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			require.Equal(t, "openjobspec.org", d.GetDomain())
			r.reason, r.metadata = d.GetReason(), d.GetMetadata()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				require.NotEmpty(t, v.GetDescription())
				r.violations = append(r.violations, v.GetField())
			}
		case *errdetails.RetryInfo:
			r.retry = d.GetRetryDelay().AsDuration()
		}
	}
	return r
}

// refused requires a status with its OJS code.
func refused(t testing.TB, err error, code codes.Code, reason string) refusal {
	t.Helper()
	r := refusalOf(t, err)
	require.Equal(t, code, r.code, "%v", err)
	require.Equal(t, reason, r.reason, "%v", err)
	require.Contains(t, []string{"true", "false"}, r.metadata["retryable"])
	require.NotEmpty(t, r.metadata["request_id"])
	return r
}

// oneAtATime requires that no job of queue q was begun before the one that was begun before it had ended.
func (r *rpc) oneAtATime() {
	r.t.Helper()
	require.Equal(r.t, "0", r.one(`SELECT count(*)::text FROM (
			SELECT started_at, lag(finished_at, 1, '-infinity') OVER (ORDER BY started_at) AS before_ended FROM (
				SELECT queue, started_at, finished_at FROM ojs.jobs UNION ALL SELECT queue, started_at, finished_at FROM ojs.jobs_done) j
			WHERE queue = 'q' AND started_at IS NOT NULL) x
		WHERE before_ended IS NULL OR before_ended > started_at`))
}

// enqueue makes a job in a queue and returns its id.
func (r *rpc) enqueue(queue string) string {
	r.t.Helper()
	res, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{Queue: queue}})
	require.NoError(r.t, err)
	return res.GetJob().GetId()
}

// enqueueing starts to enqueue and returns when the call waits for the lock of lockJobs.
func (r *rpc) enqueueing(ctx context.Context) <-chan error {
	r.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "t"})
		done <- err
	}()
	r.waitForEnqueue()
	return done
}

func (r *rpc) state(id string) ojsv1.JobState {
	r.t.Helper()
	res, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
	require.NoError(r.t, err)
	return res.GetJob().GetState()
}

func value(t testing.TB, v any) *structpb.Value {
	t.Helper()
	out, err := structpb.NewValue(v)
	require.NoError(t, err)
	return out
}

func object(t testing.TB, m map[string]any) *structpb.Struct {
	t.Helper()
	out, err := structpb.NewStruct(m)
	require.NoError(t, err)
	return out
}

// inbox collects the messages of a stream.
type inbox[M any] struct {
	t        testing.TB
	messages chan *M
	end      chan error
	header   metadata.MD
	cancel   context.CancelFunc
}

// listen opens a stream and returns when its headers have come.
func listen[M any](t testing.TB, open func(ctx context.Context) (grpc.ServerStreamingClient[M], error)) *inbox[M] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := open(ctx)
	require.NoError(t, err)
	in := &inbox[M]{t: t, messages: make(chan *M, 10_000), end: make(chan error, 1), cancel: cancel}
	in.header, err = stream.Header()
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := stream.Recv()
			if err != nil {
				in.end <- err
				return
			}
			in.messages <- m
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return in
}

func (in *inbox[M]) next() *M {
	in.t.Helper()
	select {
	case m := <-in.messages:
		return m
	case err := <-in.end:
		require.FailNow(in.t, "the stream has ended", "%v", err)
	case <-time.After(waitFor):
		require.FailNow(in.t, "no message")
	}
	return nil
}

// ends waits for the end and returns its error.
func (in *inbox[M]) ends() error {
	in.t.Helper()
	for {
		select {
		case <-in.messages:
		case err := <-in.end:
			require.NotErrorIs(in.t, err, io.EOF)
			return err
		case <-time.After(waitFor):
			require.FailNow(in.t, "the stream does not end")
		}
	}
}

func (r *rpc) listenEvents(in *ojsv1.StreamEventsRequest) *inbox[ojsv1.Event] {
	r.t.Helper()
	return listen(r.t, func(ctx context.Context) (grpc.ServerStreamingClient[ojsv1.Event], error) {
		return r.StreamEvents(ctx, in)
	})
}

func (r *rpc) listenJobs(worker string, most int32, queues ...string) *inbox[ojsv1.Job] {
	r.t.Helper()
	return listen(r.t, func(ctx context.Context) (grpc.ServerStreamingClient[ojsv1.Job], error) {
		return r.StreamJobs(ctx, &ojsv1.StreamJobsRequest{Queues: queues, WorkerId: worker, MaxConcurrent: most})
	})
}
