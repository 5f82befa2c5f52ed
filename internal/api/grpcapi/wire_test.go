package grpcapi

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// TestWireFacts: names, numbers and types are what clients in other languages were generated from (docs/reference/grpc.md, Messages).
// What is in the file may be added to, never changed.
func TestWireFacts(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/wire.txt")
	require.NoError(t, err)
	var b strings.Builder
	seen := map[string]bool{}
	appendFile(&b, ojsv1.File_ojs_v1_service_proto, seen)
	appendFile(&b, eventsv1.File_ojs_events_v1_events_proto, seen)
	require.Equal(t, string(want), b.String())
}

func appendFile(b *strings.Builder, f protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[f.Path()] || !strings.HasPrefix(f.Path(), "ojs/") {
		return
	}
	seen[f.Path()] = true
	for i := range f.Imports().Len() {
		appendFile(b, f.Imports().Get(i), seen)
	}
	for i := range f.Enums().Len() {
		e := f.Enums().Get(i)
		fmt.Fprintf(b, "%s:", e.FullName())
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			fmt.Fprintf(b, " %d %s", v.Number(), v.Name())
		}
		b.WriteByte('\n')
	}
	for i := range f.Messages().Len() {
		m := f.Messages().Get(i)
		fmt.Fprintf(b, "%s:", m.FullName())
		for j := range m.Fields().Len() {
			fmt.Fprintf(b, " %d %s %s", m.Fields().Get(j).Number(), m.Fields().Get(j).Name(), kindOf(m.Fields().Get(j)))
		}
		b.WriteByte('\n')
	}
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			stream := ""
			if m.IsStreamingServer() {
				stream = "stream "
			}
			fmt.Fprintf(b, "%s/%s(%s) %s%s\n", s.FullName(), m.Name(), m.Input().Name(), stream, m.Output().Name())
		}
	}
}

func kindOf(f protoreflect.FieldDescriptor) string {
	kind := f.Kind().String()
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s,%s>", f.MapKey().Kind(), kindOf(f.MapValue()))
	case f.Message() != nil:
		kind = string(f.Message().Name())
	case f.Enum() != nil:
		kind = string(f.Enum().Name())
	}
	if f.IsList() {
		return "r " + kind
	}
	return kind
}
