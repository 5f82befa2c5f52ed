package logging

import (
	"context"
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"
)

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

// The list is clipped before the append, because two loggers may be derived from one at the same time.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = append(slices.Clip(h.attrs), h.grouped(attrs)...)
	return &with
}

// A group without members is not shown, so it costs nothing to open one.
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

// The record is not changed, because slog shares it with other handlers.
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

// A group without a name is taken apart, as slog demands.
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
			l.top = append(l.top, slog.Group("trace", slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String())))
		}
	}
}
