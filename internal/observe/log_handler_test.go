package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
)

// logged is one line in JSON.
func logged(t *testing.T, write func(l *slog.Logger)) map[string]any {
	t.Helper()
	var b bytes.Buffer
	write(NewLogger(&b, "json", LevelTrace))
	var line map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &line))
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`, line["timestamp"])
	require.Equal(t, "server", line["component"])
	return line
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]string{
		LevelTrace: "TRACE 1", slog.LevelDebug: "DEBUG 5", slog.LevelInfo: "INFO 9", slog.LevelWarn: "WARN 13", slog.LevelError: "ERROR 17",
		LevelFatal: "FATAL 21", slog.LevelInfo + 1: "INFO 9",
	} {
		line := logged(t, func(l *slog.Logger) { l.Log(t.Context(), level, "hello") })
		require.Equal(t, want, fmt.Sprint(line["severity"], " ", line["severity_number"]))
		require.Equal(t, "hello", line["message"])
		category := "system"
		if level >= slog.LevelError {
			category = "error"
		}
		require.Equal(t, category, line["category"])
		require.Len(t, line, 6)
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()

	t.Run("UnknownAttributesMove", func(t *testing.T) {
		t.Parallel()
		line := logged(t, func(l *slog.Logger) {
			l.With("queue", "q").WithGroup("deep").Warn("x", "n", 1, slog.Group("ojs", "job_id", "in a group"))
		})
		require.Equal(t, map[string]any{"queue": "q", "deep": map[string]any{"n": 1.0, "ojs": map[string]any{"job_id": "in a group"}}}, line["attributes"])
	})

	t.Run("DurationsSayTheirUnit", func(t *testing.T) {
		t.Parallel()
		line := logged(t, func(l *slog.Logger) { l.Info("x", "retry_in", 1500*time.Microsecond) })
		require.Equal(t, map[string]any{"retry_in_ms": 1.5}, line["attributes"])
	})

	t.Run("KnownGroupsStay", func(t *testing.T) {
		t.Parallel()
		line := logged(t, func(l *slog.Logger) {
			l.Info("x", slog.String("category", "http"), slog.Group("ojs", "job_id", "1"), slog.Group("trace", "trace_id", "2"),
				slog.Group("request", "id", "3"), slog.Group("attributes", "a", 4), slog.Int("b", 5))
		})
		require.Equal(t, "http", line["category"])
		require.Equal(t, map[string]any{"job_id": "1"}, line["ojs"])
		require.Equal(t, map[string]any{"trace_id": "2"}, line["trace"])
		require.Equal(t, map[string]any{"id": "3"}, line["request"])
		require.Equal(t, map[string]any{"a": 4.0, "b": 5.0}, line["attributes"])
	})

	t.Run("TraceComesFromTheContext", func(t *testing.T) {
		t.Parallel()
		ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
		line := logged(t, func(l *slog.Logger) { l.InfoContext(ctx, "x") })
		require.Equal(t, map[string]any{"trace_id": "01000000000000000000000000000000", "span_id": "0200000000000000"}, line["trace"])
		line = logged(t, func(l *slog.Logger) { l.InfoContext(ctx, "x", slog.Group("trace", "trace_id", "own")) })
		require.Equal(t, map[string]any{"trace_id": "own"}, line["trace"])
	})

	t.Run("TextHasTheSameFields", func(t *testing.T) {
		t.Parallel()
		var b bytes.Buffer
		NewLogger(&b, "text", slog.LevelInfo).Info("hello world", "n", 1, slog.Group("request", "id", "r"), "error", errors.New("e"))
		require.Regexp(t, `^timestamp=\S+Z severity=INFO severity_number=9 message="hello world" component=server category=system request.id=r error.type=\S+ error.message=e attributes.n=1\n$`, b.String())
	})

	t.Run("NothingIsLost", func(t *testing.T) {
		t.Parallel()
		var b bytes.Buffer
		require.NoError(t, slogtest.TestHandler(NewLogger(&b, "json", slog.LevelInfo).Handler(), func() []map[string]any {
			var lines []map[string]any
			for text := range bytes.SplitSeq(bytes.TrimSpace(b.Bytes()), []byte{'\n'}) {
				var line map[string]any
				require.NoError(t, json.Unmarshal(text, &line))
				for name, other := range map[string]string{slog.TimeKey: "timestamp", slog.LevelKey: "severity", slog.MessageKey: "message"} {
					if value, ok := line[other]; ok {
						line[name] = value
					}
				}
				if rest, ok := line["attributes"].(map[string]any); ok { // where it expects them to be
					maps.Copy(line, rest)
				}
				lines = append(lines, line)
			}
			return lines
		}))
	})
}

// TestValues compares values with those of slog's handler for JSON.
func TestValues(t *testing.T) {
	t.Parallel()
	decoded := func(text []byte) any {
		var line map[string]any
		require.NoError(t, json.Unmarshal(text, &line), string(text))
		if attributes, ok := line["attributes"].(map[string]any); ok {
			return attributes["v"]
		}
		return line["v"]
	}
	for _, v := range []any{
		"", "\x00\"\\\n\u2028<>&ü\U0001f600", strings.Repeat("x", 2*maxKept), "invalid \xff UTF-8", 0, int64(math.MinInt64), uint64(math.MaxUint64), 1.5, 1e300, math.NaN(), math.Inf(1), true, nil,
		[]string{"a", "<b>"}, map[string]int{"n": 1}, []byte("bytes"), struct{ A, b int }{1, 2}, make(chan int), errors.New("an \"error\""), &json.SyntaxError{Offset: 3},
		json.RawMessage(`{"raw":[1]}`), json.RawMessage(`{"broken`), time.Date(2026, 11, 23, 1, 2, 3, 4, time.UTC), netip.MustParseAddr("::1"), slog.StringValue("a value"), valuer{},
		slog.GroupValue(slog.Group("empty"), slog.Group("g", slog.Int("n", 1), slog.Duration("d", time.Second)), slog.Attr{}, slog.Group("", slog.Bool("inline", true)), slog.String("", "no name")),
	} {
		var ours, theirs bytes.Buffer
		NewLogger(&ours, "json", slog.LevelInfo).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&theirs, nil)).Info("x", "v", v)
		require.Equal(t, decoded(theirs.Bytes()), decoded(ours.Bytes()), "%T", v)
	}
}

type valuer struct{}

func (valuer) LogValue() slog.Value { return slog.GroupValue(slog.String("resolved", "yes")) }

func TestErrors(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: `invalid input syntax for type bigint: "my secret"`, Detail: "more secrets"}
	for _, err := range []error{refused, fmt.Errorf("push: %w", refused), errors.Join(errors.New("first"), fmt.Errorf("second: %w", refused))} {
		line := logged(t, func(l *slog.Logger) { l.Error("x", "error", err) })
		text := fmt.Sprint(line["error"])
		require.NotContains(t, text, "secret")
		require.Contains(t, text, "invalid input syntax for type bigint: (hidden) (SQLSTATE 22P02)")
	}
	require.Equal(t, "*pgconn.PgError", ErrorType(fmt.Errorf("push: %w", refused)))
	constraint := &pgconn.PgError{Severity: "ERROR", Code: "23505", Message: `duplicate key value violates unique constraint "jobs_pkey"`}
	require.Contains(t, ErrorMessage(constraint), `"jobs_pkey"`, "only data exceptions quote values")
	require.Equal(t, "*errors.errorString", ErrorType(errors.Join(errors.New("first"), refused)))

	line := logged(t, func(l *slog.Logger) { l.Error("x", "error", "only text") })
	require.Equal(t, map[string]any{"type": "error", "message": "only text"}, line["error"])
}

func BenchmarkHandler(b *testing.B) {
	l := NewLogger(discard{}, "json", slog.LevelInfo)
	b.ReportAllocs()
	for b.Loop() {
		l.LogAttrs(context.Background(), slog.LevelInfo, "job enqueued", slog.String("category", "worker"),
			slog.Group("ojs", slog.String("job_id", "1"), slog.String("queue", "default")), slog.Group("attributes", slog.Int("n", 1)))
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// writes records each write.
type writes struct {
	mu  sync.Mutex
	all []string
}

func (w *writes) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, string(b))
	return len(b), nil
}

func TestHold(t *testing.T) {
	t.Parallel()

	t.Run("WritesTheLinesAtOnce", func(t *testing.T) {
		t.Parallel()
		var w writes
		logger := NewLogger(&w, "json", slog.LevelInfo)
		logger.Info("before")
		release := HoldLines(logger)
		nested := HoldLines(logger.With("a", 1))
		logger.Info("one")
		nested()
		logger.Info("two")
		require.Len(t, w.all, 1)
		release()
		logger.Info("after")
		require.Len(t, w.all, 3)
		require.Equal(t, 2, strings.Count(w.all[1], "\n"))
		require.Contains(t, w.all[1], `"message":"one"`)
		require.Contains(t, w.all[1], `"message":"two"`)
	})

	t.Run("KeepsLittleBack", func(t *testing.T) {
		t.Parallel()
		var w writes
		logger := NewLogger(&w, "text", slog.LevelInfo)
		defer HoldLines(logger)()
		for range 100 {
			logger.Info(strings.Repeat("x", 1000))
		}
		require.Len(t, w.all, 1)
	})

	t.Run("LeavesOtherLoggersAlone", func(t *testing.T) {
		t.Parallel()
		var w writes
		logger := slog.New(slog.NewTextHandler(&w, nil))
		defer HoldLines(logger)()
		logger.Info("line")
		require.Len(t, w.all, 1)
	})
}
