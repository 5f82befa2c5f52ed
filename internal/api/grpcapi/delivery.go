package grpcapi

import (
	"context"

	"google.golang.org/grpc/stats"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
)

// deliveries is the stats.Handler that learns what became of the answer to a fetch: the library sends it after the handler has
// returned. Claimed jobs whose answer was not sent go back to their queue, and their attempt does not count.
// StreamJobs does not need it: it sends its jobs itself and sees the error.
type deliveries struct{ api *API }

// delivery is the answer of one call.
// The handler writes jobs, HandleRPC sent; both run on the goroutine of the call, or after it.
type delivery struct {
	jobs []*job.Record // claimed for it
	sent bool
}

type deliveryKey struct{}

// claimedFor records the jobs that the answer of a unary call carries.
func claimedFor(ctx context.Context, jobs []*job.Record) {
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
		d.jobs = jobs
	}
}

// TagRPC prepares a fetch.
// All other methods pay one comparison.
func (deliveries) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if info.FullMethodName != ojsv1.OJSService_Fetch_FullMethodName {
		return ctx
	}
	return context.WithValue(ctx, deliveryKey{}, &delivery{})
}

// HandleRPC hands back jobs at the end of a call. The library calls it from one goroutine for each call.
func (h deliveries) HandleRPC(ctx context.Context, event stats.RPCStats) {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return
	}
	switch event.(type) {
	// The event means that the message was handed to the transport. What the network loses after that is found by the end of
	// the reservation.
	case *stats.OutPayload:
		d.sent = true
	case *stats.End:
		if !d.sent {
			h.api.Jobs.HandBack(ctx, d.jobs)
		}
	}
}

// TagConn does nothing.
func (deliveries) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (deliveries) HandleConn(context.Context, stats.ConnStats) {}
