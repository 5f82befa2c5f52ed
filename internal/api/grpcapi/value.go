package grpcapi

import (
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/rawjson"
)

// valueOf is stored JSON as a message. Numbers become doubles; those beyond them the largest there is.
// Integers beyond 2^53 lose digits, as in every Struct.
// It recurses; the nesting of what is stored was bounded when it came in.
func valueOf(v jsontext.Value) *structpb.Value {
	switch v.Kind() {
	case 't', 'f':
		b, _ := rawjson.Bool(v)
		return structpb.NewBoolValue(b)
	case '"':
		text, _ := rawjson.Text(v)
		return structpb.NewStringValue(text)
	case '0':
		return structpb.NewNumberValue(number(v))
	case '{':
		return structpb.NewStructValue(structOf(v))
	case '[':
		return structpb.NewListValue(&structpb.ListValue{Values: valuesOf(v)})
	}
	return structpb.NewNullValue()
}

// protojson cannot show infinities, so the largest double stands for them.
func number(v jsontext.Value) float64 {
	f, _ := strconv.ParseFloat(string(v), 64) // infinite if it is out of range
	return min(max(f, -math.MaxFloat64), math.MaxFloat64)
}

func valuesOf(array jsontext.Value) []*structpb.Value {
	var list []*structpb.Value
	for e := range rawjson.Elements(array) {
		list = append(list, valueOf(e))
	}
	return list
}

// structOf wants an object.
// The members of equal names are merged to the last one, as HTTP has it.
func structOf(object jsontext.Value) *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for literal, value := range rawjson.Members(object) {
		s.Fields[string(rawjson.Name(literal))] = valueOf(value)
	}
	return s
}

// wrapped is a result: a Struct holds only objects, so anything else is its one member, value.
func wrapped(result jsontext.Value) *structpb.Struct {
	// No result and a result of null differ: the latter is value: null.
	if result == nil {
		return nil
	}
	if result[0] == '{' {
		return structOf(result)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"value": valueOf(result)}}
}

// It is nil for NULL and for infinite times, which protobuf cannot hold.
func momentOf(t pgtype.Timestamptz) *timestamppb.Timestamp {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return nil
	}
	return timestamppb.New(t.Time)
}

// The division cuts towards zero and the rest has the same sign, as protobuf asks.
func milliseconds(n int64) *durationpb.Duration {
	return &durationpb.Duration{Seconds: n / 1000, Nanos: int32(n % 1000 * int64(time.Millisecond))}
}

// narrow is the nearest int32.
// Fields of the message are int32 where the server stores int64.
func narrow(n int64) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }
