package server

import (
	"io"
	"log/slog"
	"strings"
)

// severityNumbers are those of contract 40 §13.
var severityNumbers = map[slog.Level]int{slog.LevelDebug: 5, slog.LevelInfo: 9, slog.LevelWarn: 13, slog.LevelError: 17}

// NewLogger writes one object per line (format "json") or readable text, with the field names of contract 40 §13.
func NewLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: renameFields})
	return slog.New(handler).With("component", "server")
}

func renameFields(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.String("timestamp", a.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
	case slog.MessageKey:
		a.Key = "message"
	case slog.LevelKey:
		level, _ := a.Value.Any().(slog.Level)
		return slog.Attr{Value: slog.GroupValue( // an empty key puts the members beside the others
			slog.String("severity", strings.ToUpper(level.String())),
			slog.Int("severity_number", severityNumbers[level]))}
	}
	return a
}
