// Package grpcapi speaks the Open Job Spec over gRPC (docs/reference/grpc.md). It owns the messages: it writes each as the JSON that an
// HTTP client sends for the same, hands that to the decoder of HTTP, calls the same operations as httpapi, and shows what they return. So
// the rules and their messages are those of HTTP. It must hold no rules and no SQL, and must never import httpapi: what both need is in
// package api or below.
package grpcapi

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed, as over HTTP
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
)

// Deps are the parts an API talks to.
type Deps struct {
	api.Domains
	Health  *api.Health
	Streams *api.Streams
	Memory  *api.Memory // counts the bytes of requests of all interfaces; nil: of this one
	Logger  *slog.Logger
	Version string // of the server, shown in the manifest and in the metadata of every answer

	Certificates *api.Certificates // nil: without TLS

	Tracer *tracing.Tracer // nil: nothing is traced

	// RequestDone is called after every RPC, unary or stream, with its full method, which is one of few, and the name of its
	// status, OK or NOT_FOUND; nil: nobody wants to know.
	RequestDone func(method, code string, took time.Duration)
}

// API is the gRPC interface of one node. Use New, Serve and Stop.
// Its fields do not change after New. server ends with Stop; an API is not started again.
type API struct {
	ojsv1.UnimplementedOJSServiceServer

	config  config.Config
	tenancy queueadmin.TenantMode
	Deps
	keys    *api.Keys
	codec   codec
	server  *grpc.Server
	running runningCalls
	streams eventlog.StreamCounter
}

// pingsAllowed leaves a client that pings every 10 s a little for its clock and the network.
// Clients may ping every 10 s (docs/reference/grpc.md, Transport); the library ends connections that ping more often.
const pingsAllowed = 9 * time.Second

// maxStreams bounds the calls and streams of one connection; clients wait with further ones.
// It keeps one connection from taking all memory for messages.
const maxStreams = 250

// maxHeaderBytes bounds the metadata of a call, as net/http bounds headers (docs/reference/grpc.md, Transport).
const maxHeaderBytes = 1 << 20

// New returns the API. It opens no port; Serve does.
func New(c config.Config, deps Deps) (*API, error) {
	a := &API{config: c, tenancy: queueadmin.TenantMode(c.Server.Tenancy), Deps: deps, keys: api.NewKeys(c.Server.APIKeys),
		codec: codec{encoding.GetCodecV2(protobuf.Name)}}
	options := []grpc.ServerOption{
		// A connection whose client is gone is found after 40 s.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
		grpc.StreamInterceptor(a.stream), grpc.UnknownServiceHandler(unknown), grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		// It learns what became of the answers to fetches.
		grpc.StatsHandler(deliveries{a}),
		grpc.ForceServerCodecV2(a.codec),
	}
	if deps.Certificates != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(deps.Certificates.Server())))
	}
	a.Memory = cmp.Or(a.Memory, &api.Memory{})
	a.server = grpc.NewServer(options...)
	a.server.RegisterService(asStreams(ojsv1.OJSService_ServiceDesc), a)
	a.server.RegisterService(asStreams(eventsv1.OJSEvents_ServiceDesc), &eventsAPI{api: a})
	a.server.RegisterService(asStreams(grpc_health_v1.Health_ServiceDesc), &healthAPI{api: a})
	reflection.Register(a.server)
	checkDeclared(a.server.GetServiceInfo())
	return a, nil
}

// StreamCounter counts the streams, for metrics.
func (a *API) StreamCounter() *eventlog.StreamCounter { return &a.streams }

// Serve answers calls until Stop.
func (a *API) Serve(ln net.Listener) error { return a.server.Serve(ln) }

// errCutOff says that calls did not end before ctx.
var errCutOff = errors.New("calls did not end in time")

// Stop accepts no more calls and returns when the running ones have ended, or with ctx, which cuts them off. Streams end
// with api.Streams.
// Call api.Streams.Stop before, or streams keep it waiting until ctx ends.
func (a *API) Stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() { defer close(done); a.server.GracefulStop() }()
	select {
	case <-done:
		return nil
	case <-a.running.none():
	// GracefulStop returns, too, when the connections are closed, so its goroutine ends.
	case <-ctx.Done():
		a.server.Stop() // a handler may still wait for the database
		return errCutOff
	}
	// Only connections are left, such as one whose client does not take its last message.
	select {
	case <-done:
	case <-time.After(api.LastWrites):
	case <-ctx.Done():
	}
	a.server.Stop()
	return nil
}

// 4 MiB is the bound of the library for messages and what clients accept by default.
const (
	// maxMessage bounds every message but that of EnqueueBatch.
	maxMessage = 4 << 20

	// openMessage bounds the messages of callers without a key: what they may ask about has no name as long as that.
	openMessage = 4 << 10

	// chunk is how much is reserved and read at a time.
	chunk = 256 << 10
)

// transport is what the stream of the library does besides: it reads parts of a message. The library would read and decompress a
// message whole, up to a size that is the same for all methods and callers, before its bytes can be counted.
// The stream of grpc-go has these methods but promises them to nobody: a new release may need a change here. A test fails
// then, because RecvMsg answers no call.
type transport interface {
	RecvCompress() string
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// received is a stream that a message is read from.
// limit holds for the message as sent and for the decompressed one, so a small message cannot become a large one.
type received struct {
	transport
	stream *serverStream
	field  string // that a refusal names
	limit  int    // bytes of a message, before and after decompression
}

// read reads a message into m. Memory is reserved as the bytes arrive, not by the length that the client promises.
// What it has reserved stays counted in the stream until the call ends.
func (r received) read(m any, codec encoding.CodecV2) error {
	var header [5]byte // 1 if the message is compressed, and its length
	if err := r.ReadMessageHeader(header[:]); err != nil {
		return r.stream.broken(err)
	}
	length := binary.BigEndian.Uint32(header[1:])
	if int64(length) > int64(r.limit) {
		return spec.TooLarge(r.field, r.limit, int(length))
	}
	data, err := r.body(int(length))
	// A closure, because data is assigned again by append; the codec has copied what it needs.
	defer func() { data.Free() }()
	if err != nil {
		return err
	}
	if header[0] == 0 {
		return codec.Unmarshal(data, m)
	}
	text, err := r.decompress(data)
	if err != nil {
		return err
	}
	return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, m)
}

// body reads in chunks, so that a client which promises 32 MiB and sends nothing reserves 256 KiB.
func (r received) body(length int) (data mem.BufferSlice, err error) {
	for length > 0 {
		n := min(length, chunk)
		if err := r.stream.reserve(n); err != nil {
			return data, err
		}
		part, err := r.Read(n)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return data, r.stream.broken(err)
		}
		data, length = append(data, part...), length-n
	}
	return data, nil
}

// decompress stops one byte above the limit.
func (r received) decompress(data mem.BufferSlice) ([]byte, error) {
	compressor := encoding.GetCompressor(r.RecvCompress())
	if compressor == nil {
		return nil, status.Errorf(codes.Internal, "the message is compressed, but grpc-encoding is %q", r.RecvCompress())
	}
	packed := data.Reader()
	defer func() { _ = packed.Close() }() // frees its buffers
	src, err := compressor.Decompress(packed)
	if err != nil {
		return nil, brokenMessage(err)
	}
	var text []byte
	for {
		if len(text) > r.limit {
			return nil, spec.TooLarge(r.field, r.limit, 0)
		}
		if len(text) == cap(text) {
			capacity := min(max(2*cap(text), chunk), r.limit+1)
			if err := r.stream.reserve(capacity - cap(text)); err != nil {
				return nil, err
			}
			text = append(make([]byte, 0, capacity), text...)
		}
		n, err := src.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, brokenMessage(err)
		}
	}
}

func brokenMessage(err error) error {
	return spec.InvalidPayload("message", "a message in valid gzip", nil, fmt.Sprintf("The message cannot be decompressed: %v.", err))
}

// end makes sure that no second message follows where a method takes one.
// A unary method of the library would check it, too; asStreams has made streams of them.
func (r received) end() error {
	var header [5]byte
	err := r.ReadMessageHeader(header[:])
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return r.stream.broken(err)
	}
	return status.Error(codes.Internal, "the method takes one message, and the client has sent another one")
}

// broken is the error of a message that did not arrive.
// io.EOF means the regular end for a stream whose client may send any number of messages.
func (s *serverStream) broken(err error) error {
	switch {
	case errors.Is(err, io.EOF) && s.many:
		return io.EOF
	case errors.Is(err, io.EOF):
		return status.Error(codes.Internal, "the method takes a message, and the client has sent none")
	case s.ctx.Err() != nil:
		return status.FromContextError(s.ctx.Err()).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// reserve counts bytes of a message, until the next one or the end of the call.
// UNAVAILABLE tells the client to send the message again.
func (s *serverStream) reserve(bytes int) error {
	if err := s.api.Memory.Take(bytes); err != nil {
		return err
	}
	s.reserved += bytes
	return nil
}

// release may be called again.
func (s *serverStream) release() {
	s.api.Memory.Free(s.reserved)
	s.reserved = 0
}

// RecvMsg reads a message, and refuses what no method takes. Callers without a key may send what has no fields, which is not read,
// and the name of a service whose health they want to know.
// Here every message of every method is checked once, before its handler sees it: size, form, and whose it is.
func (s *serverStream) RecvMsg(m any) error {
	s.release()
	stream, ok := grpc.ServerTransportStreamFromContext(s.ctx).(transport)
	if !ok {
		return errors.New("this release of grpc-go does not let messages be read in parts")
	}
	call := callOf(s.ctx)
	from := received{transport: stream, stream: s, field: "envelope", limit: maxMessage}
	if call.rpc.is&batch != 0 {
		from.field, from.limit = "batch", int(s.api.config.Server.MaxBatchBytes)
	}
	if s.api.keys.Any() && call.caller.Principal == "" {
		if call.rpc.is&empty != 0 {
			return nil
		}
		if stream.RecvCompress() != "" {
			return spec.Unauthenticated()
		}
		from.field, from.limit = "message", openMessage
	}
	if err := from.read(m, s.api.codec); err != nil {
		return err
	}
	if !s.many {
		if err := from.end(); err != nil {
			return err
		}
	}
	message := m.(proto.Message)
	// Unknown fields of other numbers are ignored, as protobuf has it.
	if number, _, n := protowire.ConsumeTag(message.ProtoReflect().GetUnknown()); n > 0 && number == markNumber {
		why, _ := protowire.ConsumeString(message.ProtoReflect().GetUnknown()[n:])
		return spec.InvalidPayload("message", "a message of this method in valid protobuf", nil, "The message cannot be read: "+why+".")
	}
	// The bytes were bounded before; this is the size of the decoded message.
	if size := proto.Size(message); size > from.limit {
		return spec.TooLarge(from.field, from.limit, size)
	}
	return s.api.confine(s.ctx, message)
}

// codec is the library's, but for messages that cannot be read, such as those with invalid UTF-8: the library would say
// INTERNAL before anybody else has a word. They pass as a mark, and RecvMsg refuses them.
// It must be set by ForceServerCodecV2, or a client could choose another one by its content-type.
type codec struct{ encoding.CodecV2 }

// encoded is a message in protobuf that many streams share.
// It must not be changed after it was handed to the library.
type encoded []byte

// Marshal is what the library calls.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if text, ok := v.(encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(text)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// markNumber is of a field that no message has. A client that sends one has its message refused, too.
// It is the largest number that protobuf permits.
const markNumber = protowire.Number(536_870_911)

// Unmarshal is what the library calls.
// The message is reset first, so that no part of what could not be read is acted on.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	message, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	proto.Reset(message)
	mark := protowire.AppendString(protowire.AppendTag(nil, markNumber, protowire.BytesType), err.Error())
	message.ProtoReflect().SetUnknown(mark)
	return nil
}

// room for the rest of a message.
const room = 64 << 10

// claimBytes bounds what a fetch claims, so that it fits maxMessage with one more job of the default size. Numbers take more
// room in a message than as JSON; what does not fit all the same is handed back (see fitting).
// A job of the default size has at most 1 MiB, so 2 MiB and one more job leave 1 MiB for what protobuf adds.
const claimBytes = 2 << 20

// fitting is how many of the jobs, at least one, a client takes in one message: beyond maxMessage it would refuse all of
// them, fetched as they are.
// A single job is never cut: handed back, it would be fetched again for ever.
func fitting(jobs []*ojsv1.Job) int {
	size := room
	for i, j := range jobs {
		if size += proto.Size(j) + 8; size > maxMessage && i > 0 {
			return i
		}
	}
	return len(jobs)
}

// shrink leaves parts out of an answer, one after the other, until a client takes it in one message.
// If the last part does not suffice either, the answer is sent as it is.
func shrink(answer proto.Message, parts ...func()) {
	for _, leaveOut := range parts {
		if proto.Size(answer) <= maxMessage-room {
			return
		}
		leaveOut()
	}
}
