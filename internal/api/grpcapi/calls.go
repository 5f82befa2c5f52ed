package grpcapi

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	codenames "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Names of metadata (docs/reference/grpc.md, Metadata).
const (
	requestIDKey   = "x-ojs-request-id"
	apiKeyKey      = "x-ojs-api-key"
	actorKey       = "x-ojs-actor"
	idempotencyKey = "x-ojs-idempotency-key"
	blockKey       = "x-ojs-block-timeout"
	versionKey     = "x-ojs-server-version"
	levelKey       = "x-ojs-conformance-level"
	retryAfterKey  = "retry-after"
)

// rpc is all that this package declares about an RPC.
type rpc struct {
	name  string // the full method
	reach api.Reach
	is    traits
}

// traits are what is special about an RPC. Most have none: they need a key, and take one message of at most maxMessage.
type traits uint8

const (
	public traits = 1 << iota // needs no key, as over HTTP
	empty                     // its request has no fields, so callers without a key have it not read
	batch                     // its message may have config.Server.MaxBatchBytes
	claims                    // its answer carries claimed jobs, which go back if it is not sent (see deliveries)
	waits                     // its handler waits for messages of the client without looking at the stop of the node
)

// rpcs has a row for each RPC, those of libraries included. checkDeclared keeps it so.
var rpcs = []rpc{
	{ojsv1.OJSService_Manifest_FullMethodName, api.Everybody, public | empty},
	{ojsv1.OJSService_Health_FullMethodName, api.Everybody, public | empty},

	{ojsv1.OJSService_Enqueue_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_EnqueueBatch_FullMethodName, api.Confined, batch},
	{ojsv1.OJSService_GetJob_FullMethodName, api.AboutJob, 0},
	{ojsv1.OJSService_CancelJob_FullMethodName, api.AboutJob, 0},
	{ojsv1.OJSService_ActivateJob_FullMethodName, api.AboutJob, 0},

	{ojsv1.OJSService_Fetch_FullMethodName, api.Confined, claims},
	{ojsv1.OJSService_Ack_FullMethodName, api.AboutJob, 0},
	{ojsv1.OJSService_Nack_FullMethodName, api.AboutJob, 0},
	{ojsv1.OJSService_Heartbeat_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_StreamJobs_FullMethodName, api.Confined, 0},

	{ojsv1.OJSService_StreamEvents_FullMethodName, api.Confined, 0},
	{eventsv1.OJSEvents_StreamEvents_FullMethodName, api.Confined, 0},

	{ojsv1.OJSService_ListQueues_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_QueueStats_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_PauseQueue_FullMethodName, api.Operators, 0}, // tenants share queues
	{ojsv1.OJSService_ResumeQueue_FullMethodName, api.Operators, 0},

	{ojsv1.OJSService_ListDeadLetter_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_RetryDeadLetter_FullMethodName, api.AboutDeadLetter, 0},
	{ojsv1.OJSService_DeleteDeadLetter_FullMethodName, api.AboutDeadLetter, 0},

	{ojsv1.OJSService_RegisterCron_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_UnregisterCron_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_ListCron_FullMethodName, api.Confined, 0},

	{ojsv1.OJSService_CreateWorkflow_FullMethodName, api.Confined, 0},
	{ojsv1.OJSService_GetWorkflow_FullMethodName, api.AboutWorkflow, 0},
	{ojsv1.OJSService_CancelWorkflow_FullMethodName, api.AboutWorkflow, 0},

	{grpc_health_v1.Health_Check_FullMethodName, api.Everybody, public},
	{grpc_health_v1.Health_List_FullMethodName, api.Everybody, public},
	{grpc_health_v1.Health_Watch_FullMethodName, api.Everybody, public},
	// Not public, because it tells what the server offers.
	{grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName, api.Everybody, waits},
	{grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName, api.Everybody, waits},
}

var rpcByName = func() map[string]rpc {
	m := make(map[string]rpc, len(rpcs))
	for _, r := range rpcs {
		m[r.name] = r
	}
	return m
}()

// checkDeclared panics if an RPC of these services has no row, or a row no RPC.
func checkDeclared(services map[string]grpc.ServiceInfo) {
	rows := maps.Clone(rpcByName)
	for service, info := range services {
		for _, m := range info.Methods {
			name := "/" + service + "/" + m.Name
			if _, declared := rows[name]; !declared {
				panic("grpcapi: rpcs has no row for " + name)
			}
			delete(rows, name)
		}
	}
	for name := range rows {
		panic("grpcapi: no service has the RPC " + name)
	}
}

// call is what is known of a call besides its message.
// It is made by begin and read by the goroutines of its call; after begin it does not change.
type call struct {
	method string // as the client sent it
	rpc    rpc    // zero: there is no such method
	// route is method or api.RouteUnknown. Labels and log lines show it: made of what clients send they would have values without number.
	route     string
	requestID string
	// caller is without principal for callers without a key, also when no keys are configured.
	caller  api.Caller
	started time.Time
	span    tracing.Request
	// setHeader fails once headers are sent.
	setHeader func(metadata.MD) error
}

type callKey struct{}

// callOf is never nil, so that code which runs without begin, as in tests, needs no check.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		c = &call{}
	}
	return c
}

// sent is the first value of a name in the metadata of a request.
// Further values of a name are ignored; the tenant, of which a second one is refused, is read elsewhere.
func sent(ctx context.Context, name string) string {
	if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// begin does for every call what is done before its message is looked at. The context is of use even with an error.
// The order is that of HTTP: request id and trace, headers, key, tenant. running is counted first and undone by end, which
// must follow in any case.
func (a *API) begin(ctx context.Context, method string, setHeader func(metadata.MD) error) (context.Context, error) {
	a.running.add(1)
	c := &call{method: method, rpc: rpcByName[method], requestID: api.RequestID(sent(ctx, requestIDKey)), started: time.Now(),
		setHeader: setHeader}
	c.route = cmp.Or(c.rpc.name, api.RouteUnknown)
	md := func(name string) []string { return metadata.ValueFromIncomingContext(ctx, name) }
	// The trace context of the call, and its span if there is one, are where the store finds them.
	ctx, c.span = a.Tracer.Request(tracing.Receive(ctx, md("traceparent"), md("tracestate")), c.spanName())
	ctx = context.WithValue(ctx, callKey{}, c)
	err := setHeader(metadata.Pairs(requestIDKey, c.requestID, versionKey, a.Version, levelKey, strconv.Itoa(api.ConformanceLevel)))
	if err != nil {
		return ctx, err
	}
	if p, ok := peer.FromContext(ctx); ok { // behind a proxy it is that of the proxy
		c.caller.Address = p.Addr.String()
	}
	if a.keys.Any() {
		// Either name may carry the key; the first that has a valid one counts.
		c.caller.Principal, err = a.keys.Admit(c.caller.Address, api.BearerToken(sent(ctx, "authorization")), sent(ctx, apiKeyKey))
	}
	if c.rpc.is&public == 0 {
		if err != nil {
			return ctx, err
		}
		// More than one tenant, or a malformed one, is refused.
		if c.caller.Tenant, err = a.tenancy.Caller(md(tenantKey)); err != nil {
			return ctx, err
		}
	}
	return queue.WithProducer(ctx, c.caller.Principal), nil
}

// spanName is package.Service/Method.
func (c *call) spanName() string { return strings.TrimPrefix(c.route, "/") }

// asStreams makes streams of all methods of a service; clients see no difference. The library reads the message of a unary
// method, up to 36 MiB after decompression, before an interceptor can look at the key of the caller. A stream is handled when
// its headers have arrived, and reads its message itself. The library runs interceptors only for streams that say so.
// An interceptor for unary methods is therefore not registered; stream is the only one.
func asStreams(service grpc.ServiceDesc) *grpc.ServiceDesc {
	service.Streams = slices.Clone(service.Streams)
	for _, method := range service.Methods {
		service.Streams = append(service.Streams, grpc.StreamDesc{StreamName: method.MethodName, ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error {
				res, err := method.Handler(srv, stream.Context(), stream.RecvMsg, nil)
				if err != nil {
					return err
				}
				return stream.SendMsg(res)
			}})
	}
	service.Methods = nil
	return &service
}

// stream serves the calls and streams of this package, and those of libraries, which know nothing of a node that stops.
// Everything passes it: calls, streams, unknown methods, health and reflection. An error of begin is answered before the
// message is read. The memory of the message is given back when the handler has returned.
func (a *API) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := a.begin(stream.Context(), info.FullMethod, stream.SetHeader)
	if err == nil {
		wrapped := &serverStream{ServerStream: stream, api: a, ctx: ctx, many: info.IsClientStream}
		run := func() error {
			defer wrapped.release()
			return handler(srv, wrapped)
		}
		if callOf(ctx).rpc.is&waits != 0 {
			err = a.untilStop(run)
		} else {
			err = recovered(run)
		}
	}
	return a.end(ctx, err)
}

// end turns what came of a call into its status, and reports it: streams at their end.
// It must be called once for each begin, also if that failed. A stream is reported at its end.
func (a *API) end(ctx context.Context, err error) error {
	defer a.running.add(-1)
	// It also sets metadata, so it must come before the handler returns.
	shown, answer := a.statusOf(ctx, err)
	c, code := callOf(ctx), status.Code(answer)
	name := codenames.Code(code).String() // NOT_FOUND, where codes.Code says NotFound
	end := api.Ended{
		RequestID: c.requestID, Method: "grpc", Route: c.route, Status: slog.StringValue(name), Took: time.Since(c.started),
		Remote: c.caller.Address, Ending: a.ending(ctx, err, code), OK: code == codes.OK, Err: err, Shown: shown,
	}
	end.Log(ctx, a.Logger)
	if c.span.Recording() {
		end.EndSpan(c.span, c.spanName(),
			attribute.String("rpc.system", "grpc"), attribute.String("rpc.method", c.spanName()),
			attribute.Int("rpc.grpc.status_code", int(code)))
	}
	if a.RequestDone != nil {
		a.RequestDone(c.route, name, end.Took)
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

// untilStop leaves a handler to itself when the node stops: its stream has then ended, and so does what it does with it.
// done has room for one, so the goroutine ends although nobody reads.
func (a *API) untilStop(run func() error) error {
	done := make(chan error, 1)
	go func() {
		done <- recovered(run)
	}()
	select {
	case err := <-done:
		return err
	case <-a.Streams.Life().Done():
		return spec.Unavailable()
	}
}

// serverStream has the context of begin.
// One goroutine receives. The stream of the library below it is used for sending.
type serverStream struct {
	grpc.ServerStream
	api  *API
	ctx  context.Context
	many bool // the client may send any number of messages

	// The bytes count in the memory of the node until the next message or the end of the call.
	reserved int // bytes of the latest message
}

func (s *serverStream) Context() context.Context { return s.ctx }

// unknown is the handler of methods that are not registered; the key is checked before, as over HTTP.
func unknown(_ any, stream grpc.ServerStream) error {
	return notOffered{spec.Unsupported("The method "+callOf(stream.Context()).method+" does not exist.", nil)}
}

// recovered turns a panic into an error with its stack.
// A panic must not end the process: the library would let it.
func recovered(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = api.NewPanic(p)
		}
	}()
	return do()
}

// actor names in events who did something: the key, else the metadata.
// There is no parameter for it, as over HTTP.
func actor(ctx context.Context) string { return callOf(ctx).caller.Actor(sent(ctx, actorKey)) }

// tenantKey is job.TenantHeader as metadata spell it.
var tenantKey = strings.ToLower(job.TenantHeader)

// tenantOf is the tenant of a call that has begun.
func tenantOf(ctx context.Context) string { return callOf(ctx).caller.Tenant }

// limits are those for what a call sends.
func (a *API) limits(ctx context.Context) job.Limits {
	return a.tenancy.Limits(a.JobLimits, tenantOf(ctx))
}

// confine lets a call that names a tenant reach nothing that is not the tenant's (docs/reference/tenants.md, What a call reaches): what the
// message names, and is not the tenant's, does not exist. It runs when the message has been read. What cannot name anything is left to the
// method. The tenant of a job or workflow never changes, so the look holds for what the method does next.
func (a *API) confine(ctx context.Context, message proto.Message) error {
	call := callOf(ctx)
	if call.caller.Tenant == "" {
		return nil
	}
	// Each of these methods has a message with that accessor.
	var text, kind string
	has := a.Tenants.HasJob
	switch call.rpc.reach {
	case api.Everybody, api.Confined:
		return nil
	case api.AboutJob:
		text, kind = message.(interface{ GetJobId() string }).GetJobId(), "job"
	case api.AboutDeadLetter:
		text, kind = message.(interface{ GetJobId() string }).GetJobId(), "dead_letter_job"
	case api.AboutWorkflow:
		text, kind, has = message.(interface{ GetWorkflowId() string }).GetWorkflowId(), "workflow", a.Tenants.HasWorkflow
	default:
		return queueadmin.ErrOperators()
	}
	id, isID := spec.ParseID(text)
	if !isID {
		return nil
	}
	found, err := has(ctx, call.caller.Tenant, id)
	if err == nil && !found {
		err = spec.NotFound(kind, text)
	}
	return err
}

// runningCalls counts calls. Unlike a sync.WaitGroup it may be waited for while calls still come.
// The zero value is ready to use.
type runningCalls struct {
	mu   sync.Mutex
	n    int
	wait chan struct{} // closed at zero; nil: nobody waits
}

func (r *runningCalls) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += n
	if r.n == 0 && r.wait != nil {
		close(r.wait)
		r.wait = nil
	}
}

// none is closed when there is no call.
// A channel that is closed says that there was a moment without calls; another may have begun since. Stop asks when no new
// ones come.
func (r *runningCalls) none() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{})
	switch {
	case r.n == 0:
		close(c)
	case r.wait == nil:
		r.wait = c
	default:
		c = r.wait
	}
	return c
}
