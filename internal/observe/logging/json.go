package logging

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// buffers are used again by the lines of all outputs.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept bounds the buffers that are kept for the next line, in bytes.
const maxKept = 16 << 10

// writeJSON writes a line as one JSON object. slog's handler for JSON took 1.7 of the 2.9 µs that the line of a completed job cost, because
// it asks ReplaceAttr, which the names of the first members need, about each attribute; this takes 0.6.
func (o *output) writeJSON(r *slog.Record, l *line) error {
	buffer, _ := buffers.Get().(*[]byte)
	b := appendLine((*buffer)[:0], r, l)
	_, err := o.Write(b)
	if cap(b) <= maxKept {
		*buffer = b
		buffers.Put(buffer)
	}
	return err
}

func appendLine(b []byte, r *slog.Record, l *line) []byte {
	b = append(b, '{')
	if !r.Time.IsZero() { // slog demands that a zero time is left out
		b = append(b, `"timestamp":"`...)
		b = r.Time.UTC().AppendFormat(b, timeLayout)
		b = append(b, `",`...)
	}
	name, number := severity(r.Level)
	b = append(b, `"severity":"`...)
	b = append(b, name...)
	b = append(b, `","severity_number":`...)
	b = strconv.AppendInt(b, int64(number), 10)
	b = append(b, `,"message":`...)
	b = appendString(b, r.Message)
	b = append(b, `,"component":"`+component+`"`...)
	b = appendMember(b, l.category)
	for _, a := range l.top {
		b = appendMember(b, a)
	}
	b = appendGroup(b, "attributes", l.rest)
	return append(b, "}\n"...)
}

func appendMember(b []byte, a slog.Attr) []byte {
	v := a.Value.Resolve()
	switch {
	case v.Kind() == slog.KindGroup:
		return appendGroup(b, a.Key, v.Group())
	case a.Key == "" && v.Kind() == slog.KindAny && v.Any() == nil: // slog demands that an empty attribute is left out
		return b
	}
	return appendValue(appendKey(b, a.Key), v)
}

// appendGroup leaves out a group without members, and takes one without a name apart, as slog demands.
func appendGroup(b []byte, name string, members []slog.Attr) []byte {
	before := len(b)
	if name != "" {
		b = append(appendKey(b, name), '{')
	}
	start := len(b)
	for _, a := range members {
		b = appendMember(b, a)
	}
	switch {
	case len(b) == start:
		return b[:before]
	case name == "":
		return b
	}
	return append(b, '}')
}

func appendKey(b []byte, key string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(appendString(b, key), ':')
}

func appendValue(b []byte, v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindString:
		return appendString(b, v.String())
	case slog.KindInt64:
		return strconv.AppendInt(b, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(b, v.Uint64(), 10)
	case slog.KindBool:
		return strconv.AppendBool(b, v.Bool())
	}
	return appendAny(b, v.Any())
}

// appendAny shows an error by its text, and everything else as encoding/json does. What that refuses is shown as the reason.
func appendAny(b []byte, value any) []byte {
	if err, ok := value.(error); ok {
		if _, marshals := value.(json.Marshaler); !marshals {
			return appendString(b, err.Error())
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return appendString(b, "!ERROR:"+err.Error())
	}
	return append(b, bytes.TrimSuffix(text.Bytes(), []byte{'\n'})...)
}

// appendString replaces bytes that are not UTF-8 by U+FFFD; the error says only that there were some.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
