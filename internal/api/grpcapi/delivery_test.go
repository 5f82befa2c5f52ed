package grpcapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/stats"

	"github.com/ojsd/ojsd/internal/api/grpcapi"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/domaintest"
)

// TestUndeliveredFetch: the library sends the answer of a fetch after the handler has returned, and may find the client gone.
func TestUndeliveredFetch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent    bool
		state   string
		attempt int
	}{
		"Undelivered": {false, "available", 0},
		"Delivered":   {true, "active", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := domaintest.New(t)
			a := &grpcapi.API{Deps: grpcapi.Deps{Domains: b.Domains}}
			id := b.Enqueued(domaintest.NewJob("q"))[0].ID
			h := grpcapi.Deliveries(a)
			ctx := h.TagRPC(t.Context(), &stats.RPCTagInfo{FullMethodName: ojsv1.OJSService_Fetch_FullMethodName})
			res, err := a.Fetch(ctx, &ojsv1.FetchRequest{Queues: []string{"q"}, WorkerId: "w"})
			require.NoError(t, err)
			require.Len(t, res.GetJobs(), 1)
			if c.sent {
				h.HandleRPC(ctx, &stats.OutPayload{})
			}
			h.HandleRPC(ctx, &stats.End{})
			require.EqualValues(t, c.state, b.State(id))
			require.Equal(t, c.attempt, b.Number(`SELECT attempt FROM ojs.jobs WHERE id = $1`, id))
		})
	}
}
