package grpcapi

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	codenames "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ojsd/ojsd/internal/logging"
	"github.com/ojsd/ojsd/internal/tracing"
	"github.com/ojsd/ojsd/ojs"
)

// routeUnknown stands for all methods that do not exist: what clients send would make labels without number.
const routeUnknown = "unknown"

// routesOf are the full methods of a server.
func routesOf(s *grpc.Server) map[string]bool {
	routes := map[string]bool{}
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			routes["/"+service+"/"+m.Name] = true
		}
	}
	return routes
}

func (a *API) route(method string) string {
	if a.routes[method] {
		return method
	}
	return routeUnknown
}

// trace puts the trace context of a call, and its span if there is one, where the store finds them.
func (a *API) trace(ctx context.Context, route string) (context.Context, tracing.Request) {
	md := func(name string) []string { return metadata.ValueFromIncomingContext(ctx, name) }
	return a.Tracer.Request(tracing.Receive(ctx, md("traceparent"), md("tracestate")), rpcName(route))
}

// rpcName is package.Service/Method.
func rpcName(route string) string {
	if route == routeUnknown {
		return route
	}
	return route[1:]
}

// codeName is NOT_FOUND, where codes.Code says NotFound.
func codeName(code codes.Code) string { return codenames.Code(code).String() }

// ended is a call that is over.
type ended struct {
	code  codes.Code
	took  time.Duration
	err   error
	shown *ojs.Error // what the client was told of err
}

// end turns what came of a call into its status, and reports it: streams at their end.
func (a *API) end(ctx context.Context, err error) error {
	defer a.running.add(-1)
	shown, told := a.statusOf(ctx, err)
	c := callOf(ctx)
	end := ended{code: status.Code(told), took: time.Since(c.started), err: err, shown: shown}
	level, message := a.severity(ctx, &end)
	a.logCall(ctx, level, message, &end)
	endSpan(c, level, &end)
	if a.RequestDone != nil {
		a.RequestDone(c.route, codeName(end.code), end.took)
	}
	return told
}

// severity is that of an HTTP request that ends alike.
func (a *API) severity(ctx context.Context, end *ended) (slog.Level, string) {
	wire, plain := end.err.(*ojs.Error) //nolint:errorlint // wrapped it would be a failure that is shown as something else
	switch {
	case end.err == nil:
		return slog.LevelDebug, "request served"
	case isPanic(end.err):
		return slog.LevelError, "request panicked"
	case plain && wire == errTooSlow: // errors.Is is true for all of its kind
		return slog.LevelWarn, "client is too slow: stream closed"
	case end.code == codes.Canceled, end.code == codes.DeadlineExceeded && ctx.Err() != nil:
		return slog.LevelDebug, "client hung up"
	case end.code == codes.Unavailable && plain && a.Streams.Life().Err() != nil:
		return slog.LevelDebug, "call ended with the node"
	}
	switch end.code {
	case codes.Internal, codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.DataLoss:
		return slog.LevelError, "request failed"
	}
	return slog.LevelInfo, "request refused"
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*panicked](err)
	return ok
}

// logCall writes the line of contract 40 §13 for a call: never its message or metadata. Of a refusal only the kind is told,
// because its text may quote what the client sent.
func (a *API) logCall(ctx context.Context, level slog.Level, message string, end *ended) {
	if !a.Logger.Enabled(ctx, level) {
		return
	}
	c := callOf(ctx)
	attrs := [3]slog.Attr{slog.String("category", "http"), slog.Group("request",
		slog.String("id", c.requestID),
		slog.String("method", "grpc"),
		slog.String("route", c.route),
		slog.String("status", codeName(end.code)),
		slog.Float64("duration_ms", float64(end.took.Microseconds())/1000),
		slog.String("remote", remote(ctx)))}
	n := 2
	switch {
	case end.err == nil:
	case level < slog.LevelError:
		attrs[n], n = slog.Group("error", slog.String("type", end.shown.Type)), n+1
	default:
		attrs[n], n = failureAttr(end), n+1
	}
	a.Logger.LogAttrs(ctx, level, message, attrs[:n]...)
}

// failureAttr tells of an error of ours, which the client was shown as something else.
func failureAttr(end *ended) slog.Attr {
	attrs := []any{slog.String("type", end.shown.Type), slog.String("message", logging.Message(end.err))}
	if p, ok := errors.AsType[*panicked](end.err); ok {
		attrs = append(attrs, slog.String("backtrace", logging.Cut(string(p.stack))))
	}
	return slog.Group("error", attrs...)
}

// remote is the address of the client; "" if the library does not know it.
func remote(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return p.Addr.String()
}

// endSpan ends the span of a call. Like the log it tells nothing of its message.
func endSpan(c *call, level slog.Level, end *ended) {
	if !c.span.Recording() {
		return
	}
	o := tracing.Outcome{
		Name: rpcName(c.route), Failed: level >= slog.LevelError, OK: end.code == codes.OK,
		Attrs: []attribute.KeyValue{
			attribute.String("rpc.system", "grpc"), attribute.String("rpc.method", rpcName(c.route)),
			attribute.Int("rpc.grpc.status_code", int(end.code)), attribute.String("ojs.backend.type", "postgres"),
			attribute.String("ojs.request.id", c.requestID),
		},
	}
	if end.err != nil {
		o.ErrorType, o.ErrorMessage = end.shown.Type, end.shown.Message
	}
	c.span.End(o)
}
