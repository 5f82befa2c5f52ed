package golden_test

import (
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// rpc declares one RPC. Its cases are made from the descriptor of the request by rule.
type rpc struct {
	method string // such as ojs.v1.OJSService/Enqueue
	good   string // the request as JSON, with fixtures
	// ids are the fields that name something, as paths.
	ids []string
	// extra are good requests that the rule does not make.
	extra []string
	// messages is how many messages of a stream are read; a stream that has none yet is written as open.
	messages int
	// maxMessage is the size of a message that is refused.
	maxMessage int
	seed       []string
	settle     bool
	alone      bool // as for a route
}

// rpcCase is one request; change alters the good message, raw its bytes.
type rpcCase struct {
	name     string
	good     string // instead of that of the RPC
	change   func(m protoreflect.Message)
	raw      func(b []byte) []byte
	tenant   string
	metadata []string // name, value, …
}

// field is a field of the request, reached through messages and first elements of lists.
type field struct {
	path []protoreflect.FieldDescriptor
}

func (f field) last() protoreflect.FieldDescriptor { return f.path[len(f.path)-1] }

func (f field) String() string {
	names := make([]string, len(f.path))
	for i, p := range f.path {
		names[i] = string(p.Name())
	}
	return strings.Join(names, ".")
}

// parent is the message that has the field; it is made if it is not there.
func (f field) parent(m protoreflect.Message) protoreflect.Message {
	for _, p := range f.path[:len(f.path)-1] {
		if p.IsList() {
			l := m.Mutable(p).List()
			if l.Len() == 0 {
				l.AppendMutable()
			}
			m = l.Get(0).Message()
			continue
		}
		m = m.Mutable(p).Message()
	}
	return m
}

func (f field) set(m protoreflect.Message, v any) {
	parent := f.parent(m)
	switch v := v.(type) {
	case nil:
		parent.Clear(f.last())
	case []any:
		l := parent.NewField(f.last()).List()
		for _, e := range v {
			l.Append(valueOf(l.NewElement(), e))
		}
		parent.Set(f.last(), protoreflect.ValueOfList(l))
	default:
		parent.Set(f.last(), valueOf(parent.NewField(f.last()), v))
	}
}

// valueOf converts a known message to one of the descriptor's type.
func valueOf(like protoreflect.Value, v any) protoreflect.Value {
	m, ok := v.(proto.Message)
	if !ok {
		return protoreflect.ValueOf(v)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	if err := proto.Unmarshal(b, like.Message().Interface()); err != nil {
		panic(err)
	}
	return like
}

// fields are those of a request, those of inner messages behind their own. A message is entered once on a path, to three levels.
func fields(d protoreflect.MessageDescriptor, above ...protoreflect.FieldDescriptor) (list []field) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		path := append(append([]protoreflect.FieldDescriptor{}, above...), f)
		list = append(list, field{path})
		if m := f.Message(); m != nil && !f.IsMap() && !strings.HasPrefix(string(m.FullName()), "google.protobuf.") && len(path) < 4 {
			list = append(list, fields(m, path...)...)
		}
	}
	return list
}

type badValue struct {
	name  string
	value any
}

// bads are the bad values of a field, by its type. protobuf has no null and no other type: an absent field is empty.
func (f field) bads() []badValue {
	d := f.last()
	if d.IsList() {
		return listBads(d)
	}
	switch d.Kind() {
	case protoreflect.StringKind:
		return []badValue{{"absent", nil}, {"unknown text", "no such thing ~"}, {"U+0000", "a\x00"}, {"too long", strings.Repeat("a", 3000)}}
	case protoreflect.Int32Kind:
		return []badValue{{"absent", nil}, {"negative", int32(-1)}, {"least", int32(math.MinInt32)}, {"most", int32(math.MaxInt32)}}
	case protoreflect.DoubleKind:
		return []badValue{{"absent", nil}, {"negative", -1.0}, {"NaN", math.NaN()}, {"infinite", math.Inf(1)}, {"most", math.MaxFloat64}}
	case protoreflect.BoolKind:
		return []badValue{{"absent", nil}, {"true", true}}
	case protoreflect.EnumKind:
		return []badValue{{"absent", nil}, {"first", protoreflect.EnumNumber(1)}, {"unknown", protoreflect.EnumNumber(99)}, {"negative", protoreflect.EnumNumber(-1)}}
	case protoreflect.MessageKind:
		return append([]badValue{{"absent", nil}}, messageBads(d.Message())...)
	default:
		panic(d.Kind().String())
	}
}

func messageBads(d protoreflect.MessageDescriptor) []badValue {
	switch d.FullName() {
	case "google.protobuf.Duration":
		return []badValue{
			{"zero", &durationpb.Duration{}}, {"negative", &durationpb.Duration{Seconds: -1}}, {"a nanosecond", &durationpb.Duration{Nanos: 1}}, {"the longest", &durationpb.Duration{Seconds: 315_576_000_000}},
			{"longer than the longest", &durationpb.Duration{Seconds: math.MaxInt64}}, {"mixed signs", &durationpb.Duration{Seconds: 1, Nanos: -1}}, {"too many nanoseconds", &durationpb.Duration{Nanos: 2_000_000_000}},
		}
	case "google.protobuf.Timestamp":
		return []badValue{
			{"zero", &timestamppb.Timestamp{}}, {"far", &timestamppb.Timestamp{Seconds: 4_070_908_800}}, {"year 1", &timestamppb.Timestamp{Seconds: -62_135_596_800}}, {"year 10000", &timestamppb.Timestamp{Seconds: 253_402_300_800}},
			{"negative nanoseconds", &timestamppb.Timestamp{Seconds: 4_070_908_800, Nanos: -1}},
		}
	case "google.protobuf.Struct":
		return []badValue{
			{"empty", &structpb.Struct{}}, {"good", &structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewNumberValue(1)}}}, {"a value without kind", &structpb.Struct{Fields: map[string]*structpb.Value{"k": {}}}},
			{"NaN", &structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewNumberValue(math.NaN())}}}, {"U+0000", &structpb.Struct{Fields: map[string]*structpb.Value{"a\x00": structpb.NewStringValue("a\x00")}}},
			{"deep", &structpb.Struct{Fields: map[string]*structpb.Value{"k": deep(300)}}}, {"another tenant", &structpb.Struct{Fields: map[string]*structpb.Value{"tenant_id": structpb.NewStringValue("other")}}},
		}
	default:
		return []badValue{{"empty", dynamicpb.NewMessage(d)}}
	}
}

func deep(n int) *structpb.Value {
	v := structpb.NewNullValue()
	for range n {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return v
}

func listBads(d protoreflect.FieldDescriptor) []badValue {
	many := func(e any) (list []any) {
		for range 1001 {
			list = append(list, e)
		}
		return list
	}
	switch {
	case d.Kind() == protoreflect.StringKind:
		return []badValue{{"absent", nil}, {"of an empty text", []any{""}}, {"of unknown text", []any{"no such thing ~"}}, {"of U+0000", []any{"a\x00"}}, {"twice the same", []any{"golden", "golden"}}, {"too many", many("q")}}
	case d.Kind() == protoreflect.EnumKind:
		return []badValue{{"absent", nil}, {"of none", []any{protoreflect.EnumNumber(0)}}, {"of an unknown one", []any{protoreflect.EnumNumber(99)}}, {"good", []any{protoreflect.EnumNumber(2)}}}
	case d.Message().FullName() == "google.protobuf.Value":
		return []badValue{{"absent", nil}, {"a value without kind", []any{&structpb.Value{}}}, {"NaN", []any{structpb.NewNumberValue(math.NaN())}}, {"infinite", []any{structpb.NewNumberValue(math.Inf(-1))}}, {"deep", []any{deep(300)}}, {"U+0000", []any{structpb.NewStringValue("a\x00")}}}
	default:
		return []badValue{{"absent", nil}, {"of an empty message", []any{dynamicpb.NewMessage(d.Message())}}}
	}
}

// cases are all requests of an RPC, in the order of its file.
func (r *rpc) cases(input protoreflect.MessageDescriptor) []rpcCase {
	cases := []rpcCase{
		{name: "good"}, {name: "tenant: its own", tenant: "acme", metadata: []string{"x-ojs-tenant", "acme"}}, {name: "tenant: another one's", tenant: "acme", metadata: []string{"x-ojs-tenant", "other"}},
		{name: "tenant: one's, for an operator", tenant: "acme"}, {name: "tenant: an operator's", metadata: []string{"x-ojs-tenant", "acme"}}, {name: "tenant: malformed", metadata: []string{"x-ojs-tenant", "a b"}},
		{name: "tenant: empty", metadata: []string{"x-ojs-tenant", ""}}, {name: "tenant: twice", metadata: []string{"x-ojs-tenant", "acme", "x-ojs-tenant", "acme"}},
		{name: "request id: sent", metadata: []string{"x-ojs-request-id", "golden-1"}}, {name: "idempotency key", metadata: []string{"x-ojs-idempotency-key", "k1"}}, {name: "idempotency key: too long", metadata: []string{"x-ojs-idempotency-key", strings.Repeat("a", 300)}},
		{name: "block timeout: malformed", metadata: []string{"x-ojs-block-timeout", "x"}},
	}
	for _, body := range r.extra {
		cases = append(cases, rpcCase{name: "another good request: " + body, good: body})
	}
	all := fields(input)
	for _, f := range all {
		for _, b := range f.bads() {
			cases = append(cases, rpcCase{name: f.String() + ": " + b.name, change: func(m protoreflect.Message) { f.set(m, b.value) }})
		}
	}
	for _, id := range r.ids {
		for _, f := range all {
			if f.String() == id {
				cases = append(cases, rpcCase{name: id + ": an unknown id", change: func(m protoreflect.Message) { f.set(m, unknownID) }})
			}
		}
	}
	return append(append(cases, twoBadFields(all)...), r.wires(input)...)
}

// twoBadFields are each pair of the first fields with a bad value: the last but one of its kind.
func twoBadFields(all []field) (cases []rpcCase) {
	var first []field
	for _, f := range all {
		if len(f.path) == 1 && len(first) < 4 {
			first = append(first, f)
		}
	}
	for i, a := range first {
		for _, b := range first[i+1:] {
			cases = append(cases, rpcCase{name: "two errors: " + a.String() + ", " + b.String(), change: func(m protoreflect.Message) {
				for _, f := range []field{a, b} {
					bads := f.bads()
					f.set(m, bads[min(2, len(bads)-1)].value)
				}
			}})
		}
	}
	return cases
}

// wires are cases about the bytes of a message.
func (r *rpc) wires(input protoreflect.MessageDescriptor) []rpcCase {
	cases := []rpcCase{
		{name: "message: empty", raw: func([]byte) []byte { return nil }},
		{name: "message: garbage", raw: func([]byte) []byte { return []byte{0xff, 0xff, 0xff} }},
		{name: "message: cut", raw: func(b []byte) []byte { return b[:max(0, len(b)-1)] }},
		{name: "message: twice", raw: func(b []byte) []byte { return append(append([]byte{}, b...), b...) }},
		{name: "message: an unknown field", raw: func(b []byte) []byte {
			return protowire.AppendVarint(protowire.AppendTag(b, 19, protowire.VarintType), 7)
		}},
		{name: "message: a field of another type", raw: func(b []byte) []byte {
			return protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 7)
		}},
		{name: "message: too large", raw: func(b []byte) []byte {
			return protowire.AppendBytes(protowire.AppendTag(b, 19, protowire.BytesType), make([]byte, max(r.maxMessage, 4<<20)))
		}},
	}
	for i := range input.Fields().Len() {
		if f := input.Fields().Get(i); f.Kind() == protoreflect.StringKind {
			cases = append(cases, rpcCase{name: "message: invalid UTF-8 in " + string(f.Name()), raw: func(b []byte) []byte {
				return protowire.AppendBytes(protowire.AppendTag(b, f.Number(), protowire.BytesType), []byte{0xff})
			}})
		}
	}
	return cases
}

// message is the good request with the fixtures of a case, changed.
func (r *rpc) message(c rpcCase, input protoreflect.MessageDescriptor, m *maker) (sent []byte, shown string) {
	text := r.good
	if c.good != "" {
		text = c.good
	}
	msg := dynamicpb.NewMessage(input)
	if err := protojson.Unmarshal([]byte(m.fill(text)), msg); err != nil {
		panic(err)
	}
	if c.change != nil {
		c.change(msg)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		panic(err)
	}
	shown = text
	if c.change != nil {
		shown = ""
		if js, err := (protojson.MarshalOptions{UseProtoNames: true}).Marshal(msg); err == nil {
			shown = compact(js)
		}
	}
	if c.raw != nil {
		b = c.raw(b)
	}
	return b, shown
}
