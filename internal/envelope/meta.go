package envelope

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// metaSources gives the objects to merge into meta, strongest first: top-level meta, then the order of contract 10 §5.1.
func (d *decoder) metaSources() []jsontext.Value {
	list := d.metas[:0]
	for _, g := range [...]given{
		{d.top.values[metaAttr], metaAttr, false}, {d.opt.values[metadataAttr], metadataAttr, true},
		{d.opt.values[metaAttr], metaAttr, true}, {d.top.values[metadataAttr], metadataAttr, false},
	} {
		switch {
		case g.value == nil:
		case g.value[0] != '{':
			d.refuse(ojs.KindInvalidMetadata, g, "an object")
		case d.tooDeep(g.value):
			d.refuse(ojs.KindInvalidMetadata, g, shallow(d.lim))
		default:
			list = append(list, g.value)
		}
	}
	return list
}

// appendMeta appends the merged meta, compact; nothing if it is empty. A lone source is kept as it is, repetitions of a
// name included.
func appendMeta(dst []byte, sources []jsontext.Value) []byte {
	switch len(sources) {
	case 0:
		return dst
	case 1:
		return dropEmpty(rawjson.AppendCompact(dst, sources[0]), len(dst))
	}
	var merged unknowns
	for _, source := range sources {
		for literal, value := range rawjson.Members(source) {
			merged.put(rawjson.Name(literal), literal, value)
		}
		merged.lift()
	}
	start := len(dst)
	dst = append(dst, '{')
	for _, m := range merged.list {
		dst = appendMember(dst, m.literal, m.value)
	}
	return dropEmpty(append(dst, '}'), start)
}

func dropEmpty(b []byte, start int) []byte {
	if string(b[start:]) == "{}" {
		return b[:start]
	}
	return b
}

// appendMember appends a member to an object that has been opened.
func appendMember(dst []byte, literal, value jsontext.Value) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(append(dst, literal...), ':')
	return rawjson.AppendCompact(dst, value)
}

// TraceID finds the trace id that a job with this meta carries (contract 40 §3.4). meta must be valid JSON or nil.
func TraceID(meta []byte) string {
	if len(meta) == 0 {
		return ""
	}
	var own, parent, otel jsontext.Value
	for literal, value := range rawjson.Members(meta) {
		switch string(rawjson.Name(literal)) {
		case "trace_id":
			own = value
		case "traceparent":
			parent = value
		case "ojs.otel.traceparent":
			otel = value
		}
	}
	// A text column holds it, and events repeat it: a text that does not fit there is no trace id.
	if text, _ := rawjson.Text(own); text != "" && len(text) <= 255 && !strings.Contains(text, "\x00") {
		return text
	}
	if id := traceparentID(parent); id != "" {
		return id
	}
	return traceparentID(otel)
}

// traceparentID gives the trace-id field of a valid W3C traceparent, else "".
func traceparentID(v jsontext.Value) string {
	s, _ := rawjson.Text(v)
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return ""
	}
	version, trace, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	if !allIn(version+trace+span+flags, isHex) || version == "ff" || len(s) > 55 && (version == "00" || s[55] != '-') {
		return ""
	}
	if strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return ""
	}
	return trace
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
