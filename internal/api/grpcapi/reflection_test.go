package grpcapi_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ojsd/ojsd/internal/config"
)

// TestReflectionNeedsTheKey: who shows no key learns nothing of the interface.
func TestReflectionNeedsTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t, with(func(c *config.Config) { c.Server.APIKeys = []string{"secret"} }))
	list := func(ctx context.Context) error {
		stream, err := reflectionpb.NewServerReflectionClient(b.conn).ServerReflectionInfo(ctx)
		require.NoError(t, err)
		_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		_, err = stream.Recv()
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.Equal(t, codes.Unauthenticated, status.Code(list(ctx)))
	require.NoError(t, list(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer secret")))
}
