package grpcapi

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	settings "github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	ojsv1 "github.com/ojsd/ojsd/internal/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/node"
	"github.com/ojsd/ojsd/internal/store"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// testBundle is an API on a database of the test's own. End-to-end tests of a whole node are in package server.
type testBundle struct {
	api    *API
	conn   *grpc.ClientConn
	client ojsv1.OJSServiceClient
	pool   *pgxpool.Pool
}

func newStore(pool *pgxpool.Pool, logger *slog.Logger) *store.Store {
	c := store.FromConfig(settings.Default())
	c.Logger = logger
	return store.New(pool, c)
}

func setup(t *testing.T, config Config, change ...func(*Deps)) *testBundle {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dbtest.URL(t))
	require.NoError(t, err)
	logger := slog.New(slog.DiscardHandler)
	archetype := baseservice.NewArchetype(logger)
	s := newStore(pool, logger)
	require.NoError(t, s.Prepare(t.Context()))
	relay := eventlog.NewRelay(archetype, pool, eventlog.RelayConfig{Service: "ojs"})
	s.OnCommit(relay.Wake)
	reader := eventlog.NewReader(pool, relay)
	feed := eventlog.NewFeed(archetype, reader, eventlog.FeedConfig{})
	relay.OnPublished(feed.Wake)
	require.NoError(t, startstop.StartAll(context.WithoutCancel(t.Context()), relay, feed))
	deps := Deps{
		Store: s, Events: reader, Feed: feed, Streams: node.NewStreams(node.Realtime{MaxConnections: 100, MaxPerClient: 100}), Logger: logger,
		Health: node.NewHealth("test", node.LookAt(s), func() map[string]string { return nil }),
	}
	for _, c := range change {
		c(&deps)
	}
	config.MaxBatchBytes, config.MaxBatchSize = 32<<20, 10_000
	api, err := New(config, deps)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- api.Serve(ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		deps.Streams.Stop()
		require.NoError(t, conn.Close())
		require.NoError(t, api.Stop(context.Background()))
		require.NoError(t, deps.Streams.Wait(context.Background()))
		require.NoError(t, <-served)
		startstop.StopAllParallel(relay, feed)
		pool.Close()
	})
	return &testBundle{api, conn, ojsv1.NewOJSServiceClient(conn), pool}
}
