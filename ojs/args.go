package ojs

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// JobArgs are arguments that know the type of their job, for [Enqueue], [Register] and a [JobRequest] without a Type. The type is asked
// when a handler is registered and at each enqueue.
type JobArgs interface {
	// JobType is asked of the zero value, too. It must not depend on fields, and the zero value of a pointer type is nil.
	JobType() string
}

// JobOptions is what arguments may have in addition: the options of all jobs that are enqueued with them, such as their queue and their
// retry policy. Options of an enqueue come after them, and a field that is set in a [JobRequest] counts.
type JobOptions interface {
	JobOptions() []EnqueueOption
}

// Tuple is embedded in a struct whose exported fields are the elements of args, in their order:
//
//	type Resize struct {
//		ojs.Tuple
//		URL   string
//		Width int
//	} // ["https://…", 400]
//
// Elements that are missing leave their fields zero, and further ones are ignored, so that both sides can grow.
type Tuple struct{}

var tupleType = reflect.TypeFor[Tuple]()

// encodeArgs gives the JSON array for the arguments of a job; see Arguments in the package documentation.
// Raw JSON is sent as it is. A pointer is followed, so that a pointer to a Tuple is one too.
func encodeArgs(args any) (json.RawMessage, error) {
	if raw, ok := args.(json.RawMessage); ok {
		return wrapArgs(raw)
	}
	v := reflect.ValueOf(args)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if fields, ok := tupleFields(v); ok {
		elements := make([]any, len(fields))
		for i, f := range fields {
			elements[i] = f.Interface()
		}
		args = elements
	}
	data, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("encode args: %w", err)
	}
	return wrapArgs(data)
}

// wrapArgs makes an array of what is none. nil stands for no arguments.
func wrapArgs(data json.RawMessage) (json.RawMessage, error) {
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0 || string(data) == "null":
		return json.RawMessage("[]"), nil
	case data[0] == '[':
		return data, nil
	default:
		return append(append([]byte{'['}, data...), ']'), nil
	}
}

// tupleFields are the exported fields of a struct that embeds Tuple.
func tupleFields(v reflect.Value) (fields []reflect.Value, ok bool) {
	if v.Kind() != reflect.Struct {
		return nil, false
	}
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case f.Anonymous && f.Type == tupleType:
			ok = true
		case f.IsExported():
			fields = append(fields, v.Field(i))
		}
	}
	return fields, ok
}

// decodeArgs reads args into what a handler asks for: a pointer to a struct, a slice, a scalar, or json.RawMessage.
// Of an array that is too short the rest stays zero, and what an array has too much is passed over: workers and producers of
// different versions must understand each other. All elements that do not fit are reported, not only the first.
func decodeArgs(data json.RawMessage, into any) error {
	if raw, ok := into.(*json.RawMessage); ok && raw != nil {
		*raw = data
		return nil
	}
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return &json.InvalidUnmarshalError{Type: reflect.TypeOf(into)}
	}
	for v = v.Elem(); v.Kind() == reflect.Pointer; v = v.Elem() {
		v.Set(reflect.New(v.Type().Elem()))
	}
	if fields, ok := tupleFields(v); ok {
		return decodeElements(data, fields)
	}
	whole := func() error { return json.Unmarshal(data, v.Addr().Interface()) }
	element := func() error { return decodeElements(data, []reflect.Value{v}) }
	likely, other := element, whole
	if isList(v) {
		likely, other = whole, element
	}
	err := likely()
	if err == nil {
		return nil
	}
	// What a type with its own encoding looks like in Go does not tell whether it is an array in JSON, which encodeArgs sends as it is.
	if _, own := reflect.TypeAssert[json.Unmarshaler](v.Addr()); own {
		v.SetZero()
		if other() == nil {
			return nil
		}
		v.SetZero()
	}
	return err
}

// isList reports whether encoding/json reads an array into v. Bytes are a text in JSON, and so are the arrays that most packages for
// UUIDs have.
func isList(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		_, text := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr())
		return !text && (v.Kind() == reflect.Array || v.Type().Elem().Kind() != reflect.Uint8)
	}
	return v.Kind() == reflect.Interface
}

func decodeElements(data json.RawMessage, fields []reflect.Value) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(data, &elements); err != nil {
		return err
	}
	var failed error
	for i := range min(len(fields), len(elements)) {
		if err := json.Unmarshal(elements[i], fields[i].Addr().Interface()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("element %d: %w", i, err))
		}
	}
	return failed
}

// mustDecode panics if a type of arguments has a part that is sent as a text by its MarshalText, and cannot be read from one: each of its
// jobs would fail for good. Types are looked at and not tried out, because zero values need not be valid.
func mustDecode(args reflect.Type) {
	if path, part := unreadable(args, args.String(), map[reflect.Type]bool{}); part != nil {
		panic(fmt.Sprintf("ojs: jobs with %s as arguments would fail for good: %s has MarshalText and no UnmarshalText, "+
			"so that a worker cannot read %s: write an UnmarshalText, or use another type there", args, part, path))
	}
}

var (
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

// unreadable finds the first part of a type that encoding/json writes as a text and does not read from one; nil: there is none.
func unreadable(t reflect.Type, path string, seen map[reflect.Type]bool) (where string, part reflect.Type) {
	for t.Kind() == reflect.Pointer && !seen[t] {
		seen[t] = true
		t = t.Elem()
	}
	if seen[t] {
		return "", nil
	}
	seen[t] = true
	p := reflect.PointerTo(t)
	switch {
	case t.Implements(jsonMarshaler) || p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler):
		return "", nil // it knows what it reads
	case t.Implements(textMarshaler):
		if readsTexts(t) {
			return "", nil
		}
		return path, t
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return unreadable(t.Elem(), path, seen)
	case reflect.Map:
		key := t.Key()
		if key.Kind() != reflect.String && key.Implements(textMarshaler) && !reflect.PointerTo(key).Implements(textUnmarshaler) {
			return path, key
		}
		return unreadable(t.Elem(), path, seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if where, part = unreadable(f.Type, path+"."+f.Name, seen); part != nil {
				return where, part
			}
		}
	}
	return "", nil
}

// readsTexts reports whether encoding/json reads a text into a type without methods.
func readsTexts(t reflect.Type) bool {
	return t.Kind() == reflect.String || t.Kind() == reflect.Interface || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}
