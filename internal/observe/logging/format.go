// Package logging owns the shape of log lines (docs/reference/observability.md, Logs), in both formats and for all callers,
// libraries included. It must never show secrets, or what clients send in job bodies: it removes both from errors.
package logging

import (
	"context"
	"io"
	"log/slog"
	"slices"
)

// LevelFatal is for a server that cannot start; LevelTrace is below debug.
const (
	LevelTrace = slog.Level(-8)
	LevelFatal = slog.Level(12)
)

// New returns a logger that writes one object per line (format "json") or readable text with the same fields.
// The level may be changed while the logger is used, if it is a *slog.LevelVar. One output serves all loggers that are derived
// from this one.
func New(w io.Writer, format string, level slog.Leveler) *slog.Logger {
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

// Only the top level is renamed: a client of the log may find a member time or level in a group.
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
