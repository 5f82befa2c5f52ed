package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
)

// withReset are the default settings with POST /ojs/v1/admin/reset.
func withReset() config.Config {
	c := config.Default()
	c.Tests.EnableReset = true
	return c
}

// newAPI has no store, so that whatever needs one panics. End-to-end tests are in package server.
func newAPI(log io.Writer) *API {
	return New(withReset(), Deps{
		Logger:  slog.New(slog.NewTextHandler(log, nil)),
		Health:  healthOf(0, "ok"),
		Streams: api.NewStreams(config.Default().Realtime),
		Reset:   func(context.Context) error { return errors.New("secret detail") },
		Domains: api.Domains{JobLimits: job.Limits{MaxJobBytes: 1 << 20}},
	})
}

// An empty page of workflows may have a cursor: none of those that were looked at matched.
func TestEmptyPageOfWorkflows(t *testing.T) {
	t.Parallel()
	id := job.NewID()
	require.JSONEq(t, `{"workflows":[],"items":[],"total":0,"pagination":{"total":0,"limit":10,"offset":0,"page":1,"per_page":10,"has_more":true,"next_cursor":"`+spec.FormatID(id)+`"}}`,
		string(showWorkflowPage(page{limit: 10}, workflow.Page{Next: &id}).append(nil)))
	require.Contains(t, string(showWorkflowPage(page{limit: 10}, workflow.Page{}).append(nil)), `"has_more":false}`)
}

// healthOf is that of a node whose database answers after latency.
func healthOf(latency time.Duration, listener string) *api.Health {
	return api.NewHealth("1.2.3", func(context.Context) api.Look { return api.Look{Now: time.Now(), Latency: latency} },
		func() map[string]string { return map[string]string{"listener": listener} })
}

func call(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

func requireInternalError(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	require.Equal(t, http.StatusInternalServerError, w.Code)
	for name, want := range map[string]string{
		"Content-Type": mediaOJS, "OJS-Version": "1.0", "X-OJS-Version": "1.0", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
	} {
		require.Equal(t, []string{want}, w.Result().Header.Values(name))
	}
	var body struct {
		Error struct {
			Code, Type, Message, Hint string
			Retryable                 bool
			DocsURL                   string `json:"docs_url"`
			RequestID                 string `json:"request_id"`
		}
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	require.Equal(t, "internal_error", body.Error.Code)
	require.Equal(t, "internal_error", body.Error.Type)
	require.True(t, body.Error.Retryable)
	require.Equal(t, "https://openjobspec.org/errors/BACKEND_ERROR", body.Error.DocsURL)
	require.Equal(t, w.Result().Header.Get("X-Request-Id"), body.Error.RequestID)
	require.NotContains(t, w.Body.String(), "secret")
	require.NotContains(t, w.Body.String(), "nil pointer")
}

func TestHandler(t *testing.T) {
	t.Parallel()

	t.Run("PanicIsInternalError", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		h := newAPI(&log).Handler()
		for range 2 { // a pooled context must be as good as new
			requireInternalError(t, call(h, "POST", "/ojs/v1/jobs", `{"type":"t","args":[]}`))
		}
		require.Contains(t, log.String(), "nil pointer")
		require.Contains(t, log.String(), "jobs.go")
		require.Equal(t, http.StatusOK, call(h, "GET", "/healthz", "").Code)
	})

	t.Run("UnknownErrorIsInternalErrorAndLoggedWhole", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		requireInternalError(t, call(newAPI(&log).Handler(), "POST", "/ojs/v1/admin/reset", ""))
		require.Contains(t, log.String(), "secret detail")
		require.Contains(t, log.String(), "level=ERROR")
	})

	t.Run("ClientThatHangsUpIsNoFailure", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		a := newAPI(&log)
		a.reset = func(ctx context.Context) error { return fmt.Errorf("reset: %w", ctx.Err()) }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/ojs/v1/admin/reset", nil).WithContext(ctx))
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Empty(t, log.String())
	})

	t.Run("AbortIsPassedOn", func(t *testing.T) {
		t.Parallel()
		a := newAPI(io.Discard)
		a.reset = func(context.Context) error { panic(http.ErrAbortHandler) }
		h := a.Handler()
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { call(h, "POST", "/ojs/v1/admin/reset", "") })
	})

	t.Run("DrainingIsNotReadyButHealthy", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		a := newAPI(&log)
		h := a.Handler()
		require.Equal(t, http.StatusOK, call(h, "GET", "/readyz", "").Code)
		a.health.SetDraining()
		for _, path := range []string{"/readyz", "/ready"} {
			w := call(h, "GET", path, "")
			require.Equal(t, http.StatusServiceUnavailable, w.Code)
			require.Equal(t, "1", w.Result().Header.Get("Retry-After"))
			require.JSONEq(t, `{"status":"not_ready","checks":{"database":"ok","migrations":"ok","draining":"yes","listener":"ok"}}`, w.Body.String())
		}
		for _, path := range []string{"/ojs/v1/health", "/health", "/healthz", "/livez"} {
			require.Equal(t, http.StatusOK, call(h, "GET", path, "").Code)
		}
		require.Empty(t, log.String(), "a planned stop is no failure")
		a.health = api.NewHealth("1.2.3", func(context.Context) api.Look { return api.Look{Err: errors.New("no database")} }, func() map[string]string { return nil })
		a.health.SetDraining()
		require.Equal(t, http.StatusServiceUnavailable, call(h, "GET", "/readyz", "").Code)
		require.Contains(t, log.String(), "level=ERROR")
	})

	t.Run("DegradedComponentDegradesHealth", func(t *testing.T) {
		t.Parallel()
		a := newAPI(io.Discard)
		a.health = healthOf(501*time.Millisecond, "degraded")
		w := call(a.Handler(), "GET", "/health", "")
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), `"status":"degraded","type":"postgres"`)
		require.Contains(t, w.Body.String(), `"status":"degraded","timestamp"`)
	})
}

func TestReadUpTo(t *testing.T) {
	t.Parallel()

	t.Run("GivesAllOrOneByteMore", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			size, limit, capacity := rapid.IntRange(0, 5000).Draw(t, "size"), rapid.IntRange(0, 5000).Draw(t, "limit"), rapid.IntRange(0, 5000).Draw(t, "capacity")
			text := bytes.Repeat([]byte("x"), size)
			got, err := readUpTo(bytes.NewReader(text), limit, make([]byte, 0, capacity), anyCapacity)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, text[:min(size, limit+1)]) {
				t.Fatalf("got %d bytes", len(got))
			}
		})
	})

	t.Run("PassesErrorsOn", func(t *testing.T) {
		t.Parallel()
		broken := io.MultiReader(strings.NewReader("abc"), brokenReader{})
		_, err := readUpTo(broken, 10, nil, anyCapacity)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		got, err := readUpTo(broken, 2, nil, anyCapacity)
		require.Error(t, err)
		require.Empty(t, got)
	})
}

func anyCapacity(int) error { return nil }

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestDecodeSegments(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"/a/b": "/a/b", "/%61/b": "/a/b", "/a%2Fb": "/a%2Fb", "/a%2fb": "/a%2Fb", "/a%252Fb": "/a%252Fb", "/%2F/%25": "/%2F/%25", "/%C3%A4": "/ä", "//": "//",
	} {
		require.Equal(t, want, decodeSegments(raw), raw)
	}
}

func TestAppendClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-1<<37, 1<<39).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")).UTC()
		if want, got := at.Format(spec.TimeFormat), string(appendClock(nil, at)); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}
