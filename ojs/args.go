package ojs

import (
	"bytes"
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
	if raw, ok := into.(*json.RawMessage); ok {
		*raw = data
		return nil
	}
	v := reflect.ValueOf(into).Elem()
	for v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array, reflect.Interface:
		if v.Kind() != reflect.Slice || v.Type().Elem().Kind() != reflect.Uint8 { // bytes are a text in JSON
			return json.Unmarshal(data, into)
		}
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(data, &elements); err != nil {
		return err
	}
	fields, ok := tupleFields(v)
	if !ok {
		fields = []reflect.Value{v}
	}
	var failed error
	for i := range min(len(fields), len(elements)) {
		if err := json.Unmarshal(elements[i], fields[i].Addr().Interface()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("element %d: %w", i, err))
		}
	}
	return failed
}
