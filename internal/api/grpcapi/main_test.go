package grpcapi_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/grpcapi"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// testBundle is an API on a database of the test's own. End-to-end tests of a whole node are in package e2e.
type testBundle struct {
	api    *grpcapi.API
	conn   *grpc.ClientConn
	client ojsv1.OJSServiceClient
	pool   *pgxpool.Pool
}

// with is the default configuration after change.
func with(change func(c *config.Config)) config.Config {
	c := config.Default()
	change(&c)
	return c
}

// domains are those of a node. Its interface ends after the comparison at the end of a test would be made, so there is none.
func domains(t *testing.T, pool *pgxpool.Pool, committed func()) *domaintest.Bundle {
	t.Helper()
	return domaintest.On(t, pool, func(c *domaintest.Config) { c.Unchecked, c.Committed = true, committed })
}

func setup(t *testing.T, c config.Config, change ...func(*grpcapi.Deps)) *testBundle {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dbtest.URL(t))
	require.NoError(t, err)
	logger := slog.New(slog.DiscardHandler)
	archetype := baseservice.NewArchetype(logger)
	var feed *eventlog.Feed
	relay := eventlog.NewRelay(archetype, pool, eventlog.RelayConfig{Events: c.Events, AfterPublish: func() { feed.Wake() }})
	b := domains(t, pool, relay.Wake)
	require.NoError(t, b.Workers.Prepare(t.Context()))
	reader := eventlog.NewReader(pg.New(pool, time.Minute), relay)
	feed = eventlog.NewFeed(archetype, reader, eventlog.FeedConfig{})
	require.NoError(t, startstop.StartAll(context.WithoutCancel(t.Context()), relay, feed))
	deps := grpcapi.Deps{
		Domains: b.Domains, Streams: api.NewStreams(c.Realtime), Logger: logger,
		Health: api.NewHealth("test", api.LookAt(b.Domains, b.DB.Probe), func() map[string]string { return nil }),
	}
	deps.Events, deps.Feed = reader, feed
	for _, f := range change {
		f(&deps)
	}
	api, err := grpcapi.New(c, deps)
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
