package grpcapi

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/ojs"
)

// object writes the JSON object that the HTTP twin of a call would have sent. What JSON cannot say is noted in err, the
// first problem of all; everything else is for package envelope to judge.
type object struct {
	b   []byte
	err *ojs.Error
}

func newObject() *object { return &object{b: []byte{'{'}} }

// close returns the text.
func (o *object) close() ([]byte, error) {
	if o.err != nil {
		return nil, o.err
	}
	return append(o.b, '}'), nil
}

func (o *object) refuse(kind ojs.ErrorKind, field, expected, received string) {
	if o.err == nil {
		o.err = ojs.ErrInvalidField(kind, field, expected, received, fmt.Sprintf("'%s' must be %s, got %s.", field, expected, received))
	}
}

func (o *object) name(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(append(append(o.b, '"'), name...), '"', ':')
}

// begin opens an object inside; end closes it.
func (o *object) begin(name string) {
	o.name(name)
	o.b = append(o.b, '{')
}

func (o *object) end() { o.b = append(o.b, '}') }

// text leaves out what is empty, which in proto3 is what was not sent.
func (o *object) text(name, value string) {
	if value != "" {
		o.name(name)
		o.b = appendText(o.b, value)
	}
}

func (o *object) texts(name string, values []string) {
	if len(values) == 0 {
		return
	}
	o.name(name)
	o.b = append(o.b, '[')
	for i, v := range values {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = appendText(o.b, v)
	}
	o.b = append(o.b, ']')
}

func (o *object) integer(name string, value int64) {
	if value != 0 {
		o.name(name)
		o.b = strconv.AppendInt(o.b, value, 10)
	}
}

func (o *object) boolean(name string, value bool) {
	if value {
		o.name(name)
		o.b = append(o.b, "true"...)
	}
}

// milliseconds writes a duration, rounded away from zero. A negative one is for the reader to refuse.
func (o *object) milliseconds(name, field string, d *durationpb.Duration) {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		return
	}
	if err := d.CheckValid(); err != nil {
		o.refuse(ojs.KindInvalidPayload, field, "a valid duration", strconv.FormatInt(d.GetSeconds(), 10)+" s")
		return
	}
	nanos := int64(d.GetNanos())
	ms, rest := nanos/1e6, nanos%1e6
	switch {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	o.integer(name, d.GetSeconds()*1000+ms)
}

// moment writes a timestamp.
func (o *object) moment(name string, t *timestamppb.Timestamp) {
	if t.GetSeconds() == 0 && t.GetNanos() == 0 {
		return
	}
	if err := t.CheckValid(); err != nil {
		o.refuse(ojs.KindInvalidPayload, name, "a timestamp from year 1 to 9999", strconv.FormatInt(t.GetSeconds(), 10)+" s")
		return
	}
	o.text(name, t.AsTime().Format(time.RFC3339Nano))
}

func (o *object) values(name string, kind ojs.ErrorKind, list []*structpb.Value) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, v := range list {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.value(name, kind, v)
	}
	o.b = append(o.b, ']')
}

func (o *object) structure(name string, kind ojs.ErrorKind, s *structpb.Struct) {
	if s != nil {
		o.name(name)
		o.members(name, kind, s)
	}
}

// value writes any value; one without a kind is null. field and kind are for what JSON cannot say.
func (o *object) value(field string, kind ojs.ErrorKind, v *structpb.Value) {
	switch v := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if math.IsNaN(v.NumberValue) || math.IsInf(v.NumberValue, 0) {
			o.refuse(kind, field, "free of numbers that are not finite", fmt.Sprint(v.NumberValue))
		}
		o.b = appendNumber(o.b, v.NumberValue)
	case *structpb.Value_StringValue:
		o.b = appendText(o.b, v.StringValue)
	case *structpb.Value_BoolValue:
		o.b = strconv.AppendBool(o.b, v.BoolValue)
	case *structpb.Value_StructValue:
		o.members(field, kind, v.StructValue)
	case *structpb.Value_ListValue:
		o.b = append(o.b, '[')
		for i, e := range v.ListValue.GetValues() {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			o.value(field, kind, e)
		}
		o.b = append(o.b, ']')
	default:
		o.b = append(o.b, "null"...)
	}
}

// members writes the members of a Struct by name, because a map has no order and equal requests should be stored alike.
func (o *object) members(field string, kind ojs.ErrorKind, s *structpb.Struct) {
	names := make([]string, 0, len(s.GetFields()))
	for name := range s.GetFields() {
		names = append(names, name)
	}
	slices.Sort(names)
	o.b = append(o.b, '{')
	for i, name := range names {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(appendText(o.b, name), ':')
		o.value(field, kind, s.Fields[name])
	}
	o.b = append(o.b, '}')
}

func appendText(b []byte, text string) []byte {
	b, _ = jsontext.AppendQuote(b, text) // what was decoded as a proto3 string is valid UTF-8
	return b
}

// appendNumber writes whole numbers as such as long as that is short, like JavaScript.
func appendNumber(b []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}
