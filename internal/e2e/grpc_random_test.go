package e2e_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
)

// TestGRPCRandomMessagesAreNeverInternal: no content of the fields makes an internal error.
func TestGRPCRandomMessagesAreNeverInternal(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t, func(c *app.Config) { c.Logger = silent })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ids := []string{r.jobIn("available"), r.jobIn("active"), r.jobIn("discarded"), r.jobIn("scheduled")}
	methods := ojsv1.File_ojs_v1_service_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		if m.IsStreamingServer() {
			continue
		}
		for range 40 {
			req, res := newMessage(t, m.Input()), newMessage(t, m.Output())
			fillRandomly(random, req.ProtoReflect(), ids, 6)
			err := r.conn.Invoke(r.ctx(), "/ojs.v1.OJSService/"+string(m.Name()), req, res)
			require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "%s(%v): %v", m.Name(), req, err)
		}
	}
}

func newMessage(t testing.TB, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	require.NoError(t, err)
	return kind.New().Interface()
}

func fillRandomly(random *rand.Rand, m protoreflect.Message, ids []string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if random.IntN(2) == 0 || depth == 0 && f.Message() != nil {
			continue
		}
		switch {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind {
				v := m.NewField(f)
				element := v.Map().NewValue()
				fillRandomly(random, element.Message(), ids, depth-1)
				v.Map().Set(protoreflect.ValueOfString(randomText(random, ids)).MapKey(), element)
				m.Set(f, v)
			}
		case f.IsList():
			v := m.NewField(f)
			for range random.IntN(3) {
				if f.Message() != nil {
					fillRandomly(random, v.List().AppendMutable().Message(), ids, depth-1)
				} else {
					v.List().Append(randomScalar(random, f, ids))
				}
			}
			m.Set(f, v)
		case f.Message() != nil:
			v := m.NewField(f)
			fillRandomly(random, v.Message(), ids, depth-1)
			m.Set(f, v)
		default:
			m.Set(f, randomScalar(random, f, ids))
		}
	}
}

func randomText(random *rand.Rand, ids []string) string {
	texts := append([]string{
		"", "q", "default", "job.type", "a\x00b", "\x00", "'; DROP", "😀", strings.Repeat("x", 300), "* * * * *", "@hourly", "UTC", "Europe/Berlin", "evt_", "type",
		"discard", "dead_letter", "nightly", "%", `\`, `"`, "w1", "-1", "null",
	}, ids...)
	return texts[random.IntN(len(texts))]
}

func randomScalar(random *rand.Rand, f protoreflect.FieldDescriptor, ids []string) protoreflect.Value {
	integers := []int64{0, 1, -1, 2, 100, -100, 999_999_999, -999_999_999, math.MaxInt32, math.MinInt32, 253_402_300_800, math.MaxInt64, math.MinInt64}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(random.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(random.IntN(12) - 2))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(integers[random.IntN(len(integers))]))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(integers[random.IntN(len(integers))])
	case protoreflect.DoubleKind:
		numbers := []float64{0, 1, -1, 0.5, 1e308, -1e308, 5e-324, math.NaN(), math.Inf(1), math.Inf(-1)}
		return protoreflect.ValueOfFloat64(numbers[random.IntN(len(numbers))])
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(randomText(random, ids))
	}
	panic(f.Kind())
}
