package grpcapi_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api/grpcapi"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// refusing lets no statement of this name through.
type refusing string

func (name refusing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(data.SQL, "-- name: "+string(name)+" ") {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func (refusing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestHeartbeatThatCannotReadTheJobAgain(t *testing.T) {
	t.Parallel()
	poolConfig, err := pgxpool.ParseConfig(dbtest.URL(t))
	require.NoError(t, err)
	poolConfig.ConnConfig.Tracer = refusing("JobListByID")
	pool, err := pgxpool.NewWithConfig(t.Context(), poolConfig)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := setup(t, config.Default(), func(d *grpcapi.Deps) {
		events, feed := d.Events, d.Feed
		d.Domains = domains(t, pool, nil).Domains
		d.Events, d.Feed = events, feed
	})

	sent, err := b.client.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{Queue: "q"}})
	require.NoError(t, err)
	_, err = b.client.Fetch(t.Context(), &ojsv1.FetchRequest{Queues: []string{"q"}, WorkerId: "w"})
	require.NoError(t, err)
	res, err := b.client.Heartbeat(t.Context(), &ojsv1.HeartbeatRequest{WorkerId: "w", Id: sent.GetJob().GetId()})
	require.NoError(t, err)
	require.Equal(t, ojsv1.WorkerState_WORKER_STATE_RUNNING, res.GetDirectedState())
	require.Nil(t, res.GetNewDeadline())
	_, err = b.client.GetJob(t.Context(), &ojsv1.GetJobRequest{JobId: sent.GetJob().GetId()})
	require.Error(t, err, "the statement was not refused")
}
