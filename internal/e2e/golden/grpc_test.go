package golden_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// TestGRPC sends every RPC its cases. An RPC that the node offers and that is not declared fails.
func TestGRPC(t *testing.T) {
	t.Parallel()
	names, shared := map[string]bool{}, &servers{t: t}
	for i := range rpcs {
		r := &rpcs[i]
		names[r.name()] = true
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			r.run(t, shared)
		})
	}
	t.Run("EveryRPCIsDeclared", func(t *testing.T) {
		t.Parallel()
		declared := map[string]bool{}
		for _, r := range rpcs {
			declared[r.method] = true
		}
		for _, offered := range shared.take(t, false).rpcs() {
			require.True(t, declared[offered], "%s has no golden: declare it in grpc_rpcs_test.go and run make goldens", offered)
			delete(declared, offered)
		}
		require.Empty(t, declared, "declared and not offered")
	})
	if !*update {
		require.Empty(t, orphans(t, "grpc", names), "goldens without an RPC: remove them")
	}
}

// rpcs are those of the services that the node lists by reflection, but for reflection itself, which is the library's.
func (s *server) rpcs() (list []string) {
	stream, err := reflectionv1.NewServerReflectionClient(s.rpc).ServerReflectionInfo(s.t.Context())
	require.NoError(s.t, err)
	require.NoError(s.t, stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	reply, err := stream.Recv()
	require.NoError(s.t, err)
	for _, service := range reply.GetListServicesResponse().GetService() {
		if strings.HasPrefix(service.GetName(), "grpc.reflection.") {
			continue
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service.GetName()))
		require.NoError(s.t, err)
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			list = append(list, service.GetName()+"/"+string(methods.Get(i).Name()))
		}
	}
	return list
}

// name is that of the file and of the subtest.
func (r *rpc) name() string { return strings.NewReplacer("/", "_", ".", "_").Replace(r.method) }

func (r *rpc) descriptor() protoreflect.MethodDescriptor {
	service, method, _ := strings.Cut(r.method, "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		panic(err)
	}
	return d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
}

func (r *rpc) run(t *testing.T, shared *servers) {
	s := shared.take(t, r.alone)
	for _, tenant := range []string{"", "acme"} {
		m := s.newMaker(tenant)
		for _, name := range r.seed {
			m.fill(name)
		}
	}
	if len(r.seed) > 0 {
		s.settle()
	}
	d := r.descriptor()
	g := newGolden(r.method)
	for _, c := range r.cases(d.Input()) {
		m := s.newMaker(c.tenant)
		sent, shown := r.message(c, d.Input(), m)
		if r.settle {
			s.settle()
		}
		n := newNormalizer(m)
		// A stream stays silent in the cases whose golden says "open". In the others its messages come, however busy the machine is.
		patience := waitFor
		if d.IsStreamingServer() && (*update || strings.Contains("\n"+recorded(t, "grpc/"+r.name(), c.name), "\nopen")) {
			patience = silence
		}
		reply := n.text(s.call(r, d, sent, c.metadata, patience))
		for _, id := range requestID.FindAllStringSubmatch(reply, -1) {
			reply = strings.ReplaceAll(reply, id[1], "<request>")
		}
		lines := []string{shorten(n.text(written(shown, m)))}
		for i := 0; i < len(c.metadata); i += 2 {
			lines = append(lines, c.metadata[i]+": "+shorten(c.metadata[i+1]))
		}
		if c.raw != nil {
			lines = append(lines, fmt.Sprintf("(%s, %d bytes)", c.name, len(sent)))
		}
		replyLines := strings.Split(reply, "\n")
		for i, line := range replyLines {
			replyLines[i] = pretty(line)
		}
		g.add(c.name, strings.Join(lines, "\n"), strings.Join(replyLines, "\n"))
	}
	g.compare(t, "grpc/"+r.name())
}

// rawCodec sends and receives bytes, so that a case may send what is no message.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}
func (rawCodec) Name() string { return "proto" }

// silence is how long a stream that has sent its header may take to fail or to send a message before it counts as open.
const silence = 500 * time.Millisecond

// call sends one message and returns the status, the metadata and the messages as text. It waits for each message of a stream as long as
// its patience.
func (s *server) call(r *rpc, d protoreflect.MethodDescriptor, sent []byte, pairs []string, patience time.Duration) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	stream, err := s.rpc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+r.method, grpc.ForceCodec(rawCodec{}))
	require.NoError(s.t, err)
	if err := stream.SendMsg(&sent); err != nil && !errors.Is(err, io.EOF) {
		require.NoError(s.t, err)
	}
	require.NoError(s.t, stream.CloseSend())
	var lines []string
	header, _ := stream.Header()
	want := max(1, r.messages)
	for range want {
		got, err := receive(stream, patience)
		if err != nil {
			lines = append(lines, refusal(err))
			break
		}
		if got == nil {
			lines = append(lines, "open")
			break
		}
		msg := dynamicpb.NewMessage(d.Output())
		require.NoError(s.t, proto.Unmarshal(*got, msg))
		js, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg)
		require.NoError(s.t, err)
		lines = append(lines, compact(js))
	}
	cancel()
	names := []string{}
	all := metadata.Join(header, stream.Trailer())
	for name := range all {
		// These are in every answer, or of the transport.
		if strings.HasPrefix(name, "x-ojs-") && name != "x-ojs-request-id" && name != "x-ojs-server-version" && name != "x-ojs-conformance-level" || name == "retry-after" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		lines = append(lines, name+": "+strings.Join(all[name], ", "))
	}
	return strings.Join(lines, "\n")
}

// receive waits for a message. It is nil if none has come in that time: the stream is open.
func receive(stream grpc.ClientStream, patience time.Duration) (*[]byte, error) {
	type result struct {
		message *[]byte
		err     error
	}
	done := make(chan result, 1)
	go func() {
		var b []byte
		err := stream.RecvMsg(&b)
		done <- result{&b, err}
	}()
	select {
	case r := <-done:
		return r.message, r.err
	case <-time.After(patience):
		return nil, nil
	}
}

// refusal is a status with its details, one a line.
func refusal(err error) string {
	if errors.Is(err, io.EOF) {
		return "end"
	}
	s := status.Convert(err)
	lines := []string{s.Code().String() + ": " + s.Message()}
	for _, d := range s.Proto().GetDetails() {
		m, err := d.UnmarshalNew()
		if err != nil {
			lines = append(lines, err.Error())
			continue
		}
		js, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			js = []byte(err.Error())
		}
		lines = append(lines, string(m.ProtoReflect().Descriptor().Name())+" "+compact(js))
	}
	return strings.Join(lines, "\n")
}

// compact takes out the white space that protojson puts in at random.
func compact(js []byte) string {
	var b bytes.Buffer
	if err := json.Compact(&b, js); err != nil {
		return string(js)
	}
	return b.String()
}
