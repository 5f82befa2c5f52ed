package grpcapi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ojsd/ojsd/internal/api/grpcapi"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/observe"
)

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	b := setup(t, with(func(c *config.Config) { c.GRPC.KeepAlive = 200 * time.Millisecond }))
	start := time.Now()
	stream, err := b.client.StreamEvents(t.Context(), &ojsv1.StreamEventsRequest{})
	require.NoError(t, err)
	for range 2 {
		e, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "stream.keepalive", e.GetType())
		require.Empty(t, e.GetId())
		require.WithinDuration(t, time.Now(), e.GetTimestamp().AsTime(), time.Minute)
	}
	require.GreaterOrEqual(t, time.Since(start), 400*time.Millisecond)
}

// TestMissedEventLeaksNoSlot: the database is changed without an event.
func TestMissedEventLeaksNoSlot(t *testing.T) {
	t.Parallel()
	b := setup(t, with(func(c *config.Config) { c.GRPC.Reconcile = 100 * time.Millisecond }))
	stream, err := b.client.StreamJobs(t.Context(), &ojsv1.StreamJobsRequest{Queues: []string{"default"}, WorkerId: "w", MaxConcurrent: 1})
	require.NoError(t, err)
	for range 3 {
		_, err := b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t"})
		require.NoError(t, err)
	}
	for range 3 {
		job, err := stream.Recv()
		require.NoError(t, err)
		_, err = b.pool.Exec(t.Context(), `DELETE FROM ojs.jobs WHERE id = $1`, job.GetId())
		require.NoError(t, err)
	}
}

// TestReconcileKeepsSlots: a job that the worker holds keeps its slot while missed events free those of others.
func TestReconcileKeepsSlots(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, with(func(c *config.Config) { c.GRPC.Reconcile = 20 * time.Millisecond }))
	enqueue := func(queue string) {
		_, err := b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{Queue: queue}})
		require.NoError(t, err)
	}
	holder, err := b.client.StreamJobs(t.Context(), &ojsv1.StreamJobsRequest{Queues: []string{"held"}, WorkerId: "w1", MaxConcurrent: 1})
	require.NoError(t, err)
	other, err := b.client.StreamJobs(t.Context(), &ojsv1.StreamJobsRequest{Queues: []string{"q"}, WorkerId: "w2", MaxConcurrent: 1})
	require.NoError(t, err)
	enqueue("held")
	_, err = holder.Recv()
	require.NoError(t, err)
	enqueue("held")
	for range 5 { // each time after a look of the other stream
		enqueue("q")
		job, err := other.Recv()
		require.NoError(t, err)
		_, err = b.pool.Exec(t.Context(), `DELETE FROM ojs.jobs WHERE id = $1`, job.GetId())
		require.NoError(t, err)
	}
	var waiting int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM ojs.jobs WHERE queue = 'held' AND state = 'available'`).Scan(&waiting))
	require.Equal(t, 1, waiting)
}

func TestPanicIsInternal(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	b := setup(t, config.Default(), func(d *grpcapi.Deps) { d.Jobs, d.Pools, d.Logger = nil, nil, slog.New(slog.NewTextHandler(&log, nil)) })
	for range 2 {
		_, err := b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t"})
		require.Equal(t, codes.Internal, status.Code(err))
		require.NotContains(t, err.Error(), "nil pointer")
	}
	stream, err := b.client.StreamJobs(t.Context(), &ojsv1.StreamJobsRequest{Queues: []string{"q"}, WorkerId: "w"})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Internal, status.Code(err))
	require.Contains(t, log.String(), "nil pointer")
	require.Contains(t, log.String(), "jobs.go")
	require.Contains(t, log.String(), "workers.go")
}

// The client learns that the call failed, the log why.
func TestFailureIsLoggedWhole(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	b := setup(t, config.Default(), func(d *grpcapi.Deps) { d.Logger = observe.NewLogger(&log, "json", slog.LevelInfo) })
	b.pool.Close()
	_, err := b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{structpb.NewStringValue("marker")}})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "closed pool")
	require.Contains(t, log.String(), `"severity":"ERROR"`)
	require.Contains(t, log.String(), `"message":"request failed"`)
	require.Contains(t, log.String(), "closed pool")
	require.NotContains(t, log.String(), "marker")
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestRequestDone(t *testing.T) {
	t.Parallel()
	type done struct{ method, code string }
	calls := make(chan done, 10)
	b := setup(t, config.Default(), func(d *grpcapi.Deps) {
		d.RequestDone = func(method, code string, took time.Duration) {
			if took <= 0 {
				code = "took no time"
			}
			calls <- done{method, code}
		}
	})
	_, err := b.client.Manifest(t.Context(), &ojsv1.ManifestRequest{})
	require.NoError(t, err)
	require.Equal(t, done{"/ojs.v1.OJSService/Manifest", "OK"}, <-calls)
	_, err = b.client.GetJob(t.Context(), &ojsv1.GetJobRequest{JobId: "x"})
	require.Error(t, err)
	require.Equal(t, done{"/ojs.v1.OJSService/GetJob", "NOT_FOUND"}, <-calls)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := b.client.StreamEvents(ctx, &ojsv1.StreamEventsRequest{})
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	cancel()
	require.Equal(t, done{"/ojs.v1.OJSService/StreamEvents", "CANCELLED"}, <-calls)
	err = b.conn.Invoke(t.Context(), "/ojs.v1.OJSService/Guess", &ojsv1.ManifestRequest{}, &ojsv1.ManifestResponse{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.Equal(t, done{"unknown", "UNIMPLEMENTED"}, <-calls)
}

// TestStreamsLeakNothing is alone, because goleak looks at all goroutines.
func TestStreamsLeakNothing(t *testing.T) { //nolint:paralleltest // see above
	dbtest.URL(t) // starts Postgres, which stays
	before := goleak.IgnoreCurrent()
	t.Run("Streams", func(t *testing.T) {
		b := setup(t, config.Default())
		var streams sync.WaitGroup
		for i := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Millisecond)
			streams.Go(func() {
				defer cancel()
				if i%2 == 0 {
					stream, err := b.client.StreamEvents(ctx, &ojsv1.StreamEventsRequest{})
					for err == nil {
						_, err = stream.Recv()
					}
					return
				}
				stream, err := b.client.StreamJobs(ctx, &ojsv1.StreamJobsRequest{Queues: []string{"default"}, WorkerId: "w", MaxConcurrent: 2})
				for err == nil {
					_, err = stream.Recv()
				}
				if errors.Is(err, io.EOF) {
					t.Error("a stream ended by itself")
				}
			})
		}
		for range 40 {
			_, err := b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t"})
			require.NoError(t, err)
		}
		streams.Wait()
	})
	require.Eventually(t, func() bool { return goleak.Find(before) == nil }, time.Minute, time.Millisecond)
}
