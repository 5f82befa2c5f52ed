package job

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
)

// TraceContext is what the meta of a job says about its trace (docs/reference/observability.md, Trace context).
type TraceContext struct {
	Traceparent string // a valid W3C traceparent; "": none
	Tracestate  string // as sent, beside Traceparent
	Present     bool   // some member claims to be a trace context, valid or not: nothing may be added
}

// traceMembers are the members of meta that tell of traces; nil: absent.
type traceMembers struct {
	id, parent, state, otelParent, otelState jsontext.Value
}

func readTrace(meta []byte) (m traceMembers) {
	if len(meta) == 0 {
		return m
	}
	for literal, value := range jsonread.Members(meta) {
		switch string(jsonread.Name(literal)) {
		case "trace_id":
			m.id = value
		case "traceparent":
			m.parent = value
		case "tracestate":
			m.state = value
		case "ojs.otel.traceparent":
			m.otelParent = value
		case "ojs.otel.tracestate":
			m.otelState = value
		}
	}
	return m
}

// TraceContextOf reads the trace context of a job, the plain names before the others. meta must be valid JSON or nil.
// Tracestate is taken only from beside the traceparent that counts: the states of two traces must not be mixed.
func TraceContextOf(meta []byte) TraceContext {
	m := readTrace(meta)
	t := TraceContext{Present: m.parent != nil || m.state != nil || m.otelParent != nil || m.otelState != nil}
	if parent := validTraceparent(m.parent); parent != "" {
		t.Traceparent = parent
		t.Tracestate, _ = jsonread.Text(m.state)
	} else if parent := validTraceparent(m.otelParent); parent != "" {
		t.Traceparent = parent
		t.Tracestate, _ = jsonread.Text(m.otelState)
	}
	return t
}

// TraceID finds the trace id that a job with this meta carries (docs/reference/events.md, Trace id). meta must be valid JSON or nil.
// It is computed once, at enqueue, and stored; later events take it from the column.
func TraceID(meta []byte) string {
	m := readTrace(meta)
	// A text column holds it, and events repeat it: a text that does not fit there is no trace id.
	if text, _ := jsonread.Text(m.id); text != "" && len(text) <= 255 && !strings.Contains(text, "\x00") {
		return text
	}
	for _, v := range []jsontext.Value{m.parent, m.otelParent} {
		if parent := validTraceparent(v); parent != "" {
			return parent[3:35]
		}
	}
	return ""
}

// validTraceparent is false for a value that is no text.
func validTraceparent(v jsontext.Value) string {
	if text, _ := jsonread.Text(v); ValidTraceparent(text) {
		return text
	}
	return ""
}

// ValidTraceparent follows W3C Trace Context: version 00 exactly, a later one by what it has in common with it. The trace
// id is at 3:35, the span id at 36:52, the flags at 53:55. Ids of zeros only are invalid by that standard.
func ValidTraceparent(s string) bool {
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, trace, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	if !jsonread.AllIn(version+trace+span+flags, isHex) || version == "ff" || len(s) > 55 && (version == "00" || s[55] != '-') {
		return false
	}
	return strings.Trim(trace, "0") != "" && strings.Trim(span, "0") != ""
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }

// WithTraceContext adds a trace context to meta that has none; tracestate may be empty. The result is new.
// Callers ask Present first: half a context of the client is left as it is, valid or not.
func WithTraceContext(meta []byte, traceparent, tracestate string) []byte {
	b := make([]byte, 0, len(meta)+len(traceparent)+len(tracestate)+len(`{,"traceparent":"","tracestate":""}`))
	if len(meta) <= len(`{}`) {
		b = append(b, '{')
	} else {
		b = append(append(b, meta[:len(meta)-1]...), ',')
	}
	b, _ = jsontext.AppendQuote(append(b, `"traceparent":`...), traceparent)
	if tracestate != "" {
		b, _ = jsontext.AppendQuote(append(b, `,"tracestate":`...), tracestate)
	}
	return append(b, '}')
}

// CorrelationID is meta.correlation_id, for the log; "" if there is none. It is cut for the log only; meta keeps what was sent.
func CorrelationID(meta []byte) string { return Shorten(memberText(meta, "correlation_id"), 255) }

// memberText is the text of a member; "" if there is none. Most objects have no such member, so its name is looked for first.
// The test of bytes may pass in vain, for a value that contains the name, and never fails wrongly for names that clients write
// without escapes.
func memberText(object []byte, name string) (text string) {
	if bytes.Contains(object, []byte(name)) {
		text, _ = jsonread.Text(jsonread.Find(object, name))
	}
	return text
}

// traceOrigin keeps the traceparent that a job of a workflow was meant to have, if it follows the run of another job.
// It is set once: if a job follows several runs in turn, the first traceparent stays.
const traceOrigin = "ojs.workflow.trace_origin"

// WithWorkflowMeta gives the meta of a job what it lacks of its workflow's, and the trace context of the run that it follows; follows may
// be empty. It returns meta itself if nothing changes. Package workflow calls it for each job that it makes after the first ones, so that
// the trace goes on from the run that the job follows.
func WithWorkflowMeta(meta, workflow []byte, follows string) []byte {
	if len(workflow) == 0 && follows == "" {
		return meta
	}
	var merged unknowns
	merged.putAll(meta)
	// Without a new member the old text is returned, so that its bytes stay as the client sent them.
	kept := len(merged.list)
	var inherited []jsonread.Member
	if len(workflow) > 0 {
		for literal, value := range jsonread.Members(workflow) {
			if name := jsonread.Name(literal); inheritedMeta[string(name)] {
				inherited = append(inherited, jsonread.Member{Name: name, Literal: literal, Value: value})
			}
		}
	}
	for _, m := range missingMeta(inherited, func(name string) bool { _, has := merged.find([]byte(name)); return has }) {
		merged.put(m.Name, m.Literal, m.Value)
	}
	if follows != "" {
		// The trace context is that of the run which the job follows; the first one that it had is kept.
		if i, has := merged.find([]byte("traceparent")); has {
			if _, kept := merged.find([]byte(traceOrigin)); !kept {
				merged.put([]byte(traceOrigin), jsonread.Quote(traceOrigin), merged.list[i].Value)
			}
		}
		merged.put([]byte("traceparent"), jsonread.Quote("traceparent"), jsonread.Quote(follows))
	} else if len(merged.list) == kept {
		return meta
	}
	return merged.appendObject(nil)
}
