package grpcapi

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	codenames "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

// routesOf are the full methods of a server.
func routesOf(s *grpc.Server) map[string]bool {
	routes := map[string]bool{}
	// Methods of reflection and health are among them.
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			routes["/"+service+"/"+m.Name] = true
		}
	}
	return routes
}

// A label made of what clients send would have values without number.
func (a *API) route(method string) string {
	if a.routes[method] {
		return method
	}
	return api.RouteUnknown
}

// trace puts the trace context of a call, and its span if there is one, where the store finds them.
// rpcName is the name of the span.
func (a *API) trace(ctx context.Context, route string) (context.Context, tracing.Request) {
	md := func(name string) []string { return metadata.ValueFromIncomingContext(ctx, name) }
	return a.Tracer.Request(tracing.Receive(ctx, md("traceparent"), md("tracestate")), rpcName(route))
}

// rpcName is package.Service/Method.
func rpcName(route string) string {
	if route == api.RouteUnknown {
		return route
	}
	return route[1:]
}

// codeName is NOT_FOUND, where codes.Code says NotFound.
func codeName(code codes.Code) string { return codenames.Code(code).String() }

// end turns what came of a call into its status, and reports it: streams at their end.
// It must be called once for each begin, also if that failed. A stream is reported at its end.
func (a *API) end(ctx context.Context, err error) error {
	defer a.running.add(-1)
	// It also sets metadata, so it must come before the handler returns.
	shown, answer := a.statusOf(ctx, err)
	c, code := callOf(ctx), status.Code(answer)
	end := api.Ended{
		RequestID: c.requestID, Method: "grpc", Route: c.route, Status: slog.StringValue(codeName(code)), Took: time.Since(c.started),
		Remote: c.caller.Address, Ending: a.ending(ctx, err, code), OK: code == codes.OK, Err: err, Shown: shown,
	}
	end.Log(ctx, a.Logger)
	if c.span.Recording() {
		end.EndSpan(c.span, rpcName(c.route),
			attribute.String("rpc.system", "grpc"), attribute.String("rpc.method", rpcName(c.route)), attribute.Int("rpc.grpc.status_code", int(code)))
	}
	if a.RequestDone != nil {
		a.RequestDone(c.route, codeName(code), end.Took)
	}
	return answer
}

// ending is that of an HTTP request that ends alike.
// A call that a stopping node has ended is no failure and is logged at Debug.
func (a *API) ending(ctx context.Context, err error, code codes.Code) api.Ending {
	wire, plain := err.(*ojs.Error) //nolint:errorlint // wrapped it would be a failure that is shown as something else
	switch {
	case err == nil:
		return api.Served
	// Before the codes: a panic is INTERNAL like other failures.
	case api.IsPanic(err):
		return api.Panicked
	case plain && wire == errTooSlow: // errors.Is is true for all of its kind
		return api.TooSlow
	// A deadline that the client has set is its own decision.
	case code == codes.Canceled, code == codes.DeadlineExceeded && ctx.Err() != nil:
		return api.HungUp
	case code == codes.Unavailable && plain && a.Streams.Life().Err() != nil:
		return api.Stopped
	}
	switch code {
	case codes.Internal, codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.DataLoss:
		return api.Failed
	}
	return api.Refused
}

// remote is the address of the client; "" if the library does not know it.
// Behind a proxy it is that of the proxy.
func remote(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return p.Addr.String()
}
