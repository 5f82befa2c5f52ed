package grpcapi

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
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

// call is what is known of a call besides its message.
// It is made by begin and read by the goroutines of its call; after begin it does not change.
type call struct {
	method string
	// route is method or api.RouteUnknown; labels and log lines show route, because a client may send any method.
	route     string // method, if it exists
	requestID string
	// caller is without principal for callers without a key, also when no keys are configured.
	caller  api.Caller
	started time.Time
	span    tracing.Request
	// setHeader fails once headers are sent.
	setHeader func(metadata.MD) error
}

type callKey struct{}

// It is never nil, so that code which runs without begin, as in tests, needs no check.
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
	c := &call{
		method: method, route: a.route(method), requestID: api.RequestID(sent(ctx, requestIDKey)), started: time.Now(), setHeader: setHeader,
	}
	ctx, c.span = a.trace(ctx, c.route)
	ctx = context.WithValue(ctx, callKey{}, c)
	err := setHeader(metadata.Pairs(requestIDKey, c.requestID, versionKey, a.config.Version, levelKey, strconv.Itoa(api.ConformanceLevel)))
	if err != nil {
		return ctx, err
	}
	// Either name may carry the key; the first that has a valid one counts.
	principal, known := a.keys.Bearer(sent(ctx, "authorization"))
	if !known {
		principal, known = a.keys.Token(sent(ctx, apiKeyKey))
	}
	c.caller = api.Caller{Principal: principal, Address: remote(ctx)}
	if len(a.keys) > 0 && !known && !public(method) {
		return ctx, spec.Unauthenticated()
	}
	if !public(method) {
		if c.caller.Tenant, err = a.callerTenant(ctx); err != nil {
			return ctx, err
		}
	}
	return queue.WithProducer(ctx, principal), nil
}

// public methods need no key, as over HTTP.
// Reflection is not among them, because it tells what the server offers.
func public(method string) bool {
	return method == ojsv1.OJSService_Manifest_FullMethodName || method == ojsv1.OJSService_Health_FullMethodName ||
		strings.HasPrefix(method, "/grpc.health.v1.Health/")
}

// asStreams makes streams of all methods of a service; clients see no difference. The library reads the message of a unary
// method, up to 36 MiB after decompression, before an interceptor can look at the key of the caller. A stream is handled when
// its headers have arrived, and reads its message itself. The library runs interceptors only for streams that say so.
// An interceptor for unary methods is therefore not registered; stream is the only one.
func asStreams(service grpc.ServiceDesc) *grpc.ServiceDesc {
	service.Streams = slices.Clone(service.Streams)
	for _, method := range service.Methods {
		service.Streams = append(service.Streams, grpc.StreamDesc{StreamName: method.MethodName, ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
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

// checkMessage refuses what could not be read, and what is of a size that only EnqueueBatch may have.
// It runs after the message was read, whose bytes the receiver has bounded already; here the size is that of the decoded
// message.
func (a *API) checkMessage(ctx context.Context, req any) error {
	if err := readable(req); err != nil {
		return err
	}
	field, limit := a.limitOf(callOf(ctx).method)
	if message, ok := req.(proto.Message); ok {
		if size := proto.Size(message); size > limit {
			return spec.TooLarge(field, limit, size)
		}
	}
	return nil
}

// limitOf is the largest message of a method, and the field that a refusal names.
func (a *API) limitOf(method string) (field string, bytes int) {
	if method == ojsv1.OJSService_EnqueueBatch_FullMethodName {
		return "batch", a.config.MaxBatchBytes
	}
	return "envelope", maxMessage
}

// isLibrary tells the methods that the library serves from ours.
func isLibrary(method string) bool { return strings.HasPrefix(method, "/grpc.") }

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
		// Its handler waits for messages of the client without looking at the stop of the node.
		if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
			err = a.untilStop(run)
		} else {
			err = recovered(run)
		}
	}
	return a.end(ctx, err)
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

// It is the handler of methods that are not registered; the key is checked before, as over HTTP.
func unknown(_ any, stream grpc.ServerStream) error {
	return errNotOffered("The method "+callOf(stream.Context()).method+" does not exist.", nil)
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

// callerTenant is the tenant that a call names; "": an operator's.
// More than one value, or a malformed one, is refused.
func (a *API) callerTenant(ctx context.Context) (string, error) {
	return a.config.Tenancy.Caller(metadata.ValueFromIncomingContext(ctx, tenantKey))
}

// tenantOf is the tenant of a call that has begun.
func tenantOf(ctx context.Context) string { return callOf(ctx).caller.Tenant }

// limits are those for what a call sends.
func (a *API) limits(ctx context.Context) job.Limits {
	return a.config.Tenancy.Limits(a.config.Limits, tenantOf(ctx))
}

// reach is what a method shows to, and does for, a call that names a tenant.
// The zero value refuses, so a method that is forgotten shows nothing.
type reach int

const (
	operators       reach = iota // nothing: the call is refused
	everybody                    // the same as to others: it shows nothing of any tenant
	confined                     // what is the tenant's, by the method
	aboutJob                     // what is about the job in the message, which must be the tenant's
	aboutDeadLetter              // and so on
	aboutWorkflow
)

// methodReach has the methods. One that is missing is for operators, so that one which somebody adds shows nothing of other tenants.
// PauseQueue and ResumeQueue are missing on purpose: queues are shared by tenants.
var methodReach = map[string]reach{
	ojsv1.OJSService_Manifest_FullMethodName: everybody, ojsv1.OJSService_Health_FullMethodName: everybody,

	ojsv1.OJSService_Enqueue_FullMethodName: confined, ojsv1.OJSService_EnqueueBatch_FullMethodName: confined,
	ojsv1.OJSService_GetJob_FullMethodName: aboutJob, ojsv1.OJSService_CancelJob_FullMethodName: aboutJob, ojsv1.OJSService_ActivateJob_FullMethodName: aboutJob,
	ojsv1.OJSService_Fetch_FullMethodName: confined, ojsv1.OJSService_Ack_FullMethodName: aboutJob, ojsv1.OJSService_Nack_FullMethodName: aboutJob,
	ojsv1.OJSService_Heartbeat_FullMethodName: confined, ojsv1.OJSService_StreamJobs_FullMethodName: confined,
	ojsv1.OJSService_StreamEvents_FullMethodName: confined, eventsv1.OJSEvents_StreamEvents_FullMethodName: confined,
	ojsv1.OJSService_ListQueues_FullMethodName: confined, ojsv1.OJSService_QueueStats_FullMethodName: confined,
	ojsv1.OJSService_ListDeadLetter_FullMethodName: confined, ojsv1.OJSService_RetryDeadLetter_FullMethodName: aboutDeadLetter,
	ojsv1.OJSService_DeleteDeadLetter_FullMethodName: aboutDeadLetter,
	ojsv1.OJSService_RegisterCron_FullMethodName:     confined, ojsv1.OJSService_UnregisterCron_FullMethodName: confined,
	ojsv1.OJSService_ListCron_FullMethodName: confined, ojsv1.OJSService_CreateWorkflow_FullMethodName: confined,
	ojsv1.OJSService_GetWorkflow_FullMethodName: aboutWorkflow, ojsv1.OJSService_CancelWorkflow_FullMethodName: aboutWorkflow,
}

// confine lets a call that names a tenant reach nothing that is not the tenant's (docs/reference/tenants.md, What a call reaches).
// It runs when the message has been read. Health and reflection show nothing of tenants.
func (a *API) confine(ctx context.Context, req any) error {
	call := callOf(ctx)
	if call.caller.Tenant == "" || isLibrary(call.method) {
		return nil
	}
	switch of := methodReach[call.method]; of {
	case operators:
		return queueadmin.ErrOperators()
	case everybody, confined:
		return nil
	default:
		return a.inReach(ctx, of, req)
	}
}

// inReach refuses what the message names if it is not the tenant's, as if it did not exist. What cannot name anything is left
// to the method. The tenant of a job or workflow never changes, so the look holds for what the method does next.
func (a *API) inReach(ctx context.Context, of reach, req any) (err error) {
	caller, found := tenantOf(ctx), true
	text, kind := subjectOf(of, req)
	id, isID := spec.ParseID(text)
	switch {
	case of == aboutWorkflow && isID:
		found, err = a.Tenants.HasWorkflow(ctx, caller, id)
	case isID:
		found, err = a.Tenants.HasJob(ctx, caller, id)
	}
	if err == nil && !found {
		err = spec.NotFound(kind, text)
	}
	return err
}

// subjectOf is what a message names, and the kind of it that an error names.
// Each of these methods has a message with that accessor.
func subjectOf(of reach, req any) (text, kind string) {
	switch of {
	case aboutWorkflow:
		named, _ := req.(interface{ GetWorkflowId() string })
		return named.GetWorkflowId(), "workflow"
	case aboutDeadLetter:
		named, _ := req.(interface{ GetJobId() string })
		return named.GetJobId(), "dead_letter_job"
	default:
		named, _ := req.(interface{ GetJobId() string })
		return named.GetJobId(), "job"
	}
}

// ownBeat is the id of the job that a heartbeat extends, "" if it is not the caller's.
// The heartbeat itself is carried out, and extends nothing.
func (a *API) ownBeat(ctx context.Context, text string) (string, error) {
	caller := tenantOf(ctx)
	id, isID := spec.ParseID(text)
	if caller == "" || !isID {
		return text, nil
	}
	own, err := a.Tenants.HasJob(ctx, caller, id)
	if err != nil || !own {
		return "", err
	}
	return text, nil
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
