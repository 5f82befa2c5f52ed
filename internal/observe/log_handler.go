package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"
)

// LevelFatal is for a server that cannot start; LevelTrace is below debug.
const (
	LevelTrace = slog.Level(-8)
	LevelFatal = slog.Level(12)
)

// NewLogger returns a logger that writes one object per line (format "json") or readable text with the same fields.
// The level may be changed while the logger is used, if it is a *slog.LevelVar. One output serves all loggers that are derived
// from this one.
func NewLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	h := &handler{out: &output{w: w}, level: level}
	if format == "text" {
		h.text = slog.NewTextHandler(h.out, &slog.HandlerOptions{Level: level, ReplaceAttr: renameFields})
	}
	return slog.New(h)
}

const (
	timeLayout = "2006-01-02T15:04:05.000Z"
	component  = "server"
)

// writeText gives text the line as a record. The members are copied, so that those of lines in JSON stay on the stack.
func writeText(ctx context.Context, text *slog.TextHandler, r *slog.Record, l *line) error {
	arranged := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	arranged.AddAttrs(slog.String("component", component), l.category)
	arranged.AddAttrs(slices.Clone(l.top)...)
	arranged.AddAttrs(slog.Attr{Key: "attributes", Value: slog.GroupValue(slices.Clone(l.rest)...)})
	return text.Handle(ctx, arranged)
}

// renameFields renames at the top level only: a client of the log may find a member time or level in a group.
func renameFields(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.String("timestamp", a.Value.Time().UTC().Format(timeLayout))
	case slog.MessageKey:
		a.Key = "message"
	case slog.LevelKey:
		level, _ := a.Value.Any().(slog.Level)
		name, number := severity(level)
		return slog.Attr{Value: slog.GroupValue( // an empty key puts the members beside the others
			slog.String("severity", name),
			slog.Int("severity_number", number))}
	}
	return a
}

// severity is the name and number of the highest named level at or below a level. The numbers are those of OpenTelemetry.
func severity(level slog.Level) (name string, number int) {
	switch {
	case level >= LevelFatal:
		return "FATAL", 21
	case level >= slog.LevelError:
		return "ERROR", 17
	case level >= slog.LevelWarn:
		return "WARN", 13
	case level >= slog.LevelInfo:
		return "INFO", 9
	case level >= slog.LevelDebug:
		return "DEBUG", 5
	}
	return "TRACE", 1
}

// handler arranges attributes (docs/reference/observability.md, Logs): the groups of that page stay at the top, an error
// becomes the group error, everything else moves into attributes. Lines of libraries get the same shape.
type handler struct {
	out    *output
	level  slog.Leveler
	text   *slog.TextHandler // writes to out; nil: lines are written in JSON
	attrs  []slog.Attr       // of the logger, groups applied
	groups []string          // opened on the logger, outermost first
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// WithAttrs clips the list before the append, because two loggers may be derived from one at the same time.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = append(slices.Clip(h.attrs), h.grouped(attrs)...)
	return &with
}

// WithGroup costs nothing: a group without members is not shown.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.groups = append(slices.Clip(h.groups), name)
	return &with
}

// grouped puts attributes into the groups that are open.
func (h *handler) grouped(attrs []slog.Attr) []slog.Attr {
	for _, v := range slices.Backward(h.groups) {
		attrs = []slog.Attr{{Key: v, Value: slog.GroupValue(attrs...)}}
	}
	return attrs
}

// Handle does not change the record, because slog shares it with other handlers.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var top, rest [4]slog.Attr
	l := line{top: top[:0], rest: rest[:0]}
	for _, a := range h.attrs {
		l.add(a)
	}
	if len(h.groups) == 0 {
		r.Attrs(func(a slog.Attr) bool {
			l.add(a)
			return true
		})
	} else {
		attrs := make([]slog.Attr, 0, r.NumAttrs())
		r.Attrs(func(a slog.Attr) bool {
			attrs = append(attrs, a)
			return true
		})
		for _, a := range h.grouped(attrs) {
			l.add(a)
		}
	}
	l.finish(ctx, r.Level)
	if h.text != nil {
		return writeText(ctx, h.text, &r, &l)
	}
	return h.out.writeJSON(&r, &l)
}

// line is the arranged attributes of a record, in the order in which they are written.
type line struct {
	category slog.Attr
	top      []slog.Attr // the groups ojs, error, request and trace
	rest     []slog.Attr // members of the group attributes
	traced   bool
}

// add takes a group without a name apart, as slog demands.
func (l *line) add(a slog.Attr) {
	a.Value = a.Value.Resolve()
	group := a.Value.Kind() == slog.KindGroup
	switch {
	case a.Key == "" && group:
		for _, member := range a.Value.Group() {
			l.add(member)
		}
	// Of several categories the last one counts: that of the call wins over that of the logger.
	case a.Key == "category" && !group:
		l.category = a
	case (a.Key == "error" || a.Key == "err") && !group:
		l.top = append(l.top, errorAttr(a.Value))
	// Its members become members of the group that the line has anyway.
	case a.Key == "attributes" && group:
		if len(l.rest) == 0 {
			l.rest = slices.Clip(a.Value.Group()) // a later append must not write into the caller's slice
		} else {
			l.rest = append(slices.Clip(l.rest), a.Value.Group()...)
		}
	case group && (a.Key == "ojs" || a.Key == "error" || a.Key == "request"):
		l.top = append(l.top, a)
	case group && a.Key == "trace":
		l.traced = true
		l.top = append(l.top, a)
	// A duration in nanoseconds would need its unit; the name of the key gets it instead.
	case a.Value.Kind() == slog.KindDuration: // the key names the unit
		l.rest = append(l.rest, slog.Float64(a.Key+"_ms", float64(a.Value.Duration().Microseconds())/1000))
	// slog demands that an empty attribute is left out.
	case !a.Equal(slog.Attr{}):
		l.rest = merge(l.rest, a)
	}
}

// merge adds an attribute and joins groups of the same name: a logger repeats its open groups in each call.
// Neither list nor its groups are changed in place: they may be those of the logger, which other goroutines use.
func merge(list []slog.Attr, a slog.Attr) []slog.Attr {
	if a.Value.Kind() == slog.KindGroup {
		for i, other := range list {
			if other.Key == a.Key && other.Value.Kind() == slog.KindGroup {
				members := slices.Clone(other.Value.Group())
				for _, member := range a.Value.Group() {
					members = merge(members, member)
				}
				list = slices.Clone(list)
				list[i].Value = slog.GroupValue(members...)
				return list
			}
		}
	}
	return append(list, a)
}

// finish completes the line. A line without a trace gets that of its context. Without a category, as from libraries, a line is of
// the system, or an error by its level.
func (l *line) finish(ctx context.Context, level slog.Level) {
	if l.category.Key == "" {
		l.category = slog.String("category", "system")
		if level >= slog.LevelError {
			l.category = slog.String("category", "error")
		}
	}
	if !l.traced {
		if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
			l.top = append(l.top, slog.Group("trace", slog.String("trace_id", sc.TraceID().String()),
				slog.String("span_id", sc.SpanID().String())))
		}
	}
}

// buffers are used again by the lines of all outputs.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept bounds the buffers that are kept for the next line, in bytes.
const maxKept = 16 << 10

// writeJSON writes a line as one JSON object. slog's handler for JSON took 1.7 of the 2.9 µs that the line of a completed job cost, because
// it asks ReplaceAttr, which the names of the first members need, about each attribute; this takes 0.6.
func (o *output) writeJSON(r *slog.Record, l *line) error {
	buffer, _ := buffers.Get().(*[]byte)
	b := (*buffer)[:0]
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
	b = append(appendGroup(b, "attributes", l.rest), "}\n"...)
	_, err := o.Write(b)
	if cap(b) <= maxKept {
		*buffer = b
		buffers.Put(buffer)
	}
	return err
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

// appendValue shows an error by its text, and what is no plain value as encoding/json does. What that refuses is shown as the reason.
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
	value := v.Any()
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

// maxHeld bounds what an output keeps back, in bytes. More is written at once although a hold lasts, so that memory stays
// bounded when a commit has thousands of lines.
const maxHeld = 64 << 10

// output writes lines. While it is held it collects them, for one write instead of one per line: with two lines per job the
// writes alone took a tenth of the server's processor time.
type output struct {
	w io.Writer

	mu sync.Mutex
	// holds counts the callers of Hold that have not released yet, on any goroutine. waiting has the lines of all of them, and
	// its memory is used again.
	holds   int
	waiting []byte
}

// Write may keep lines back, which a crash loses. They are kept for the time of one hold only.
func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holds == 0 {
		return o.w.Write(line)
	}
	o.waiting = append(o.waiting, line...)
	if len(o.waiting) < maxHeld {
		return len(line), nil
	}
	return len(line), o.flush()
}

// flush is for callers that have locked o.mu.
func (o *output) flush() error {
	if len(o.waiting) == 0 {
		return nil
	}
	_, err := o.w.Write(o.waiting)
	o.waiting = o.waiting[:0]
	return err
}

// release writes if it ends the last of several holds.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds--
	if o.holds == 0 {
		_ = o.flush() // slog drops the errors of its writer, too
	}
}

// HoldLines has a logger of NewLogger write the lines until release at once. Lines of others may wait with them, so it is for
// microseconds. Any other logger is not affected.
func HoldLines(logger *slog.Logger) (release func()) {
	h, ok := logger.Handler().(*handler)
	if !ok {
		return func() {}
	}
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.holds++
	return h.out.release
}
