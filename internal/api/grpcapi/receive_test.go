package grpcapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/grpcapi"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
)

// TestMessagesAreBounded: what a call may send depends on who calls what, and all calls share the memory of the node.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	const nodeMemory = 128 << 20
	memory := &api.Memory{}
	b := setup(t, with(func(c *config.Config) { c.Server.APIKeys = []string{"one"} }), func(d *grpcapi.Deps) { d.Memory = memory })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // 200 MB of JSON take their time on a busy machine
	defer cancel()
	known := metadata.AppendToOutgoingContext(ctx, "x-ojs-api-key", "one")
	health := func(ctx context.Context, bytes int, options ...grpc.CallOption) codes.Code {
		t.Helper()
		in := &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", bytes)}
		_, err := grpc_health_v1.NewHealthClient(b.conn).Check(ctx, in, options...)
		return status.Code(err)
	}
	batch := func(jobs, bytes int, options ...grpc.CallOption) error {
		in := &ojsv1.EnqueueBatchRequest{}
		for range jobs {
			in.Jobs = append(in.Jobs, &ojsv1.BatchJobEntry{Type: "t", Args: []*structpb.Value{structpb.NewStringValue(strings.Repeat("x", bytes))}})
		}
		_, err := b.client.EnqueueBatch(known, in, options...)
		return err
	}
	free := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			err := memory.Take(nodeMemory)
			if err == nil {
				memory.Free(nodeMemory)
			}
			return err == nil
		}, 10*time.Second, time.Millisecond, "bytes stay reserved after the call")
	}

	// Without a key.
	require.Equal(t, codes.OK, health(ctx, 0))
	require.Equal(t, codes.NotFound, health(ctx, 4000))
	require.Equal(t, codes.ResourceExhausted, health(ctx, 5000))
	require.Equal(t, codes.ResourceExhausted, health(ctx, 30<<20))
	require.Equal(t, codes.Unauthenticated, health(ctx, 30<<20, grpc.UseCompressor(gzip.Name)))

	// With one.
	require.Equal(t, codes.NotFound, health(known, 5000))
	require.Equal(t, codes.NotFound, health(known, 1<<20, grpc.UseCompressor(gzip.Name)))
	require.Equal(t, codes.ResourceExhausted, health(known, 4<<20))
	require.Equal(t, codes.ResourceExhausted, health(known, 30<<20, grpc.UseCompressor(gzip.Name)), "after decompression")
	require.NoError(t, batch(6, 1_000_000))
	require.NoError(t, batch(6, 1_000_000, grpc.UseCompressor(gzip.Name)))
	require.Equal(t, codes.ResourceExhausted, status.Code(batch(34, 1_000_000)))
	require.Equal(t, codes.ResourceExhausted, status.Code(batch(34, 1_000_000, grpc.UseCompressor(gzip.Name))))
	get := func(bytes int, options ...grpc.CallOption) codes.Code {
		_, err := b.client.GetJob(known, &ojsv1.GetJobRequest{JobId: strings.Repeat("x", bytes)}, options...)
		return status.Code(err)
	}
	const largest = 4<<20 - 5 // the tag and the length of the field take 5 bytes
	for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
		require.Equal(t, codes.NotFound, get(largest, options...))
		require.Equal(t, codes.ResourceExhausted, get(largest+1, options...))
	}
	free()

	// Nearly all memory is taken.
	require.NoError(t, memory.Take(nodeMemory-1<<20))
	require.Equal(t, codes.NotFound, health(known, 100_000))
	require.Equal(t, codes.Unavailable, status.Code(batch(6, 1_000_000)))
	require.Equal(t, codes.Unavailable, status.Code(batch(6, 1_000_000, grpc.UseCompressor(gzip.Name))), "after decompression")
	memory.Free(nodeMemory - 1<<20)
	free()
}
