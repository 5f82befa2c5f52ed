package grpcapi_test

import (
	"strings"
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

// A number takes eleven bytes in a message, and two as JSON. Clients refuse messages of more than 4 MiB, with all jobs in them.
func TestFetchedJobsFitAMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ numbers, fetches []int }{
		"TooLargeAlone":   {[]int{450_000}, []int{1, 0}},
		"AndASmallOne":    {[]int{450_000, 10}, []int{1, 1, 0}},
		"TheSecond":       {[]int{300_000, 300_000}, []int{1, 1, 0}},
		"TheThird":        {[]int{150_000, 150_000, 150_000}, []int{2, 1, 0}},
		"BehindASmallOne": {[]int{10, 450_000}, []int{1, 1, 0}},
		"AllFit":          {[]int{150_000, 10, 150_000}, []int{3, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := domaintest.New(t)
			a := &grpcapi.API{Deps: grpcapi.Deps{Domains: b.Domains}}
			for _, n := range c.numbers {
				j := domaintest.NewJob("q")
				j.Args = []byte("[" + strings.Repeat("1,", n-1) + "1]")
				b.Enqueued(j)
			}
			for _, want := range c.fetches {
				res, err := a.Fetch(t.Context(), &ojsv1.FetchRequest{Queues: []string{"q"}, WorkerId: "w", Count: 10})
				require.NoError(t, err)
				require.Len(t, res.GetJobs(), want)
				for _, j := range res.GetJobs() {
					require.EqualValues(t, 1, j.GetAttempt())
				}
				require.Equal(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'active'`), b.Number(`SELECT sum(attempt) FROM ojs.jobs`), "what is handed back counts no attempt")
			}
		})
	}
}
