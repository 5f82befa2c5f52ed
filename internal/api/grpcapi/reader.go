package grpcapi

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// reader reads messages into the types that the domains work with. err is the first thing that a message says and those types
// cannot hold, such as a number that is not finite.
// After an error the result is of no use, but reading goes on, so that callers look at err once, at the end.
type reader struct{ err *ojs.Error }

// The first problem counts; HTTP lists all, which the decoders of the domains do for what they check.
func (r *reader) refuse(kind ojs.ErrorKind, field, expected, received string) {
	if r.err == nil {
		r.err = spec.InvalidField(kind, field, expected, received, fmt.Sprintf("'%s' must be %s, got %s.", field, expected, received))
	}
}

// milliseconds rounds a duration away from zero. A negative one is for the rules to refuse.
// Away from zero, so that a duration of a microsecond does not become "not given".
func (r *reader) milliseconds(field string, d *durationpb.Duration) int64 {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		return 0
	}
	if err := d.CheckValid(); err != nil {
		r.refuse(ojs.ErrInvalidPayload, field, "a valid duration", strconv.FormatInt(d.GetSeconds(), 10)+" s")
		return 0
	}
	// CheckValid has made sure that both parts have the same sign.
	nanos := int64(d.GetNanos())
	ms, rest := nanos/1e6, nanos%1e6
	switch {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	// A valid duration has at most 10 000 years, so it cannot overflow.
	return d.GetSeconds()*1000 + ms
}

// moment is nil for a timestamp that was not sent.
// The zero timestamp is 1970 and counts as not sent.
func (r *reader) moment(field string, t *timestamppb.Timestamp) *time.Time {
	if t.GetSeconds() == 0 && t.GetNanos() == 0 {
		return nil
	}
	if err := t.CheckValid(); err != nil {
		r.refuse(ojs.ErrInvalidPayload, field, "a timestamp from year 1 to 9999", strconv.FormatInt(t.GetSeconds(), 10)+" s")
		return nil
	}
	at := t.AsTime()
	return &at
}

// array encodes values as they are stored.
func (r *reader) array(field string, kind ojs.ErrorKind, list []*structpb.Value) []byte {
	return r.appendArray(nil, field, kind, list)
}

// object encodes a Struct as it is stored; nil if it was not sent.
func (r *reader) object(field string, kind ojs.ErrorKind, s *structpb.Struct) []byte {
	if s == nil {
		return nil
	}
	return r.appendObject(nil, field, kind, s)
}

func (r *reader) appendArray(b []byte, field string, kind ojs.ErrorKind, list []*structpb.Value) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.appendValue(b, field, kind, v)
	}
	return append(b, ']')
}

// appendValue appends any value; one without a kind is null. field and kind are for what JSON cannot hold.
// It recurses; protobuf itself bounds the nesting of a message that it decodes.
func (r *reader) appendValue(b []byte, field string, kind ojs.ErrorKind, v *structpb.Value) []byte {
	switch v := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if math.IsNaN(v.NumberValue) || math.IsInf(v.NumberValue, 0) {
			r.refuse(kind, field, "free of numbers that are not finite", fmt.Sprint(v.NumberValue))
			return append(b, "null"...)
		}
		// A whole number is stored without a fraction, as HTTP clients send it.
		return rawjson.AppendNumber(b, v.NumberValue)
	case *structpb.Value_StringValue:
		return appendText(b, v.StringValue)
	case *structpb.Value_BoolValue:
		return strconv.AppendBool(b, v.BoolValue)
	case *structpb.Value_StructValue:
		return r.appendObject(b, field, kind, v.StructValue)
	case *structpb.Value_ListValue:
		return r.appendArray(b, field, kind, v.ListValue.GetValues())
	default:
		return append(b, "null"...)
	}
}

// appendObject appends the members of a Struct by name, because a map has no order and equal requests should be stored alike.
func (r *reader) appendObject(b []byte, field string, kind ojs.ErrorKind, s *structpb.Struct) []byte {
	b = append(b, '{')
	// The hash of an idempotency key and a unique key by args depend on it.
	for i, name := range slices.Sorted(maps.Keys(s.GetFields())) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, name), ':')
		b = r.appendValue(b, field, kind, s.Fields[name])
	}
	return append(b, '}')
}

func appendText(b []byte, text string) []byte {
	b, _ = jsontext.AppendQuote(b, text) // what was decoded as a proto3 string is valid UTF-8
	return b
}
