package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// observedAPI notes what requestDone is told.
func observedAPI(keys ...string) (a *API, seen *[]string) {
	a = newAPI(io.Discard)
	a.keys = api.NewKeys(keys)
	seen = new([]string)
	a.requestDone = func(method, route string, status int, took time.Duration) {
		if took <= 0 {
			status = -1
		}
		*seen = append(*seen, fmt.Sprintf("%s %s %d", method, route, status))
	}
	return a, seen
}

func TestObserved(t *testing.T) {
	t.Parallel()

	t.Run("ReportsTemplateMethodAndStatus", func(t *testing.T) {
		t.Parallel()
		a, seen := observedAPI()
		h := a.Handler()
		for _, request := range []struct{ method, path, want string }{
			{"GET", "/healthz", "GET /healthz 200"},
			{"HEAD", "/livez?x=1", "HEAD /livez 200"},
			{"GET", "/nowhere/at/all", "GET unknown 404"},
			{"BREW", "/nowhere", "_OTHER unknown 404"},
			{"BREW", "/healthz", "_OTHER /healthz 405"},
			{"GET", "/ojs/v1/jobs/no-id", "GET /ojs/v1/jobs/:id 404"},
			{"GET", "/v1/jobs/no-id", "GET /ojs/v1/jobs/:id 404"},
			{"GET", "/ojs/v1/jobs/a%2Fb", "GET /ojs/v1/jobs/:id 404"},
			{"GET", "/ojs/v1/jobs/bulk", "GET /ojs/v1/jobs/:id 405"},
			{"POST", "/ojs/v1/jobs", "POST /ojs/v1/jobs 500"},               // without a store, it panics
			{"POST", "/ojs/v1/admin/reset", "POST /ojs/v1/admin/reset 500"}, // fails
		} {
			body := ""
			if request.path == "/ojs/v1/jobs" {
				body = `{"type":"t","args":[]}`
			}
			w := call(h, request.method, request.path, body)
			require.NotEmpty(t, w.Result().Header.Get("X-Request-Id"))
			require.Equal(t, request.want, (*seen)[len(*seen)-1])
		}
		require.Len(t, *seen, 11, "each once")
	})

	t.Run("RoutesWhatIsRefusedBefore", func(t *testing.T) {
		t.Parallel()
		a, seen := observedAPI("key")
		h := a.Handler()
		call(h, "GET", "/ojs/v1/jobs/1", "")
		call(h, "GET", "/nowhere", "")
		require.Equal(t, []string{"GET /ojs/v1/jobs/:id 401", "GET unknown 401"}, *seen)
	})

	t.Run("ClientThatHangsUpIsNoFailure", func(t *testing.T) {
		t.Parallel()
		a, seen := observedAPI()
		a.reset = func(ctx context.Context) error { return ctx.Err() }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/ojs/v1/admin/reset", nil).WithContext(ctx))
		a.reset = func(context.Context) error { panic(http.ErrAbortHandler) }
		require.Panics(t, func() { call(a.Handler(), "POST", "/ojs/v1/admin/reset", "") })
		require.Equal(t, []string{"POST /ojs/v1/admin/reset 499", "POST /ojs/v1/admin/reset 499"}, *seen)
	})
}

// docs/reference/observability.md, Tracing: failures of ours are ERROR, and tell no more than the client was told.
func TestSpanOfAFailure(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	a := newAPI(io.Discard)
	a.tracer = tracing.New(tracing.Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	h := a.Handler()
	call(h, "POST", "/ojs/v1/admin/reset", "")
	call(h, "POST", "/ojs/v1/jobs", `{"type":"t","args":[]}`) // panics
	require.Len(t, exporter.GetSpans(), 2)
	for _, s := range exporter.GetSpans() {
		require.Equal(t, codes.Error, s.Status.Code)
		text := fmt.Sprint(s.Attributes, s.Status)
		require.Contains(t, text, "error.type")
		require.Contains(t, text, "internal_error")
		require.Contains(t, text, "error.message")
		require.NotContains(t, text, "secret detail")
		require.NotContains(t, text, "nil pointer")
	}
}

// docs/reference/observability.md, Tracing: the attributes of requests.
func TestSpanOfARequest(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	a := newAPI(io.Discard)
	a.tracer = tracing.New(tracing.Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	h := a.Handler()
	for _, request := range []struct {
		method, path string
		want         []string
	}{
		{"GET", "/healthz", []string{"GET /healthz", "GET", "/healthz", "200"}},
		{"DELETE", "/ojs/v1/jobs/no-id", []string{"DELETE /ojs/v1/jobs/:id", "DELETE", "/ojs/v1/jobs/:id", "404"}},
		{"BREW", "/nowhere", []string{"_OTHER unknown", "_OTHER", "unknown", "404"}},
	} {
		exporter.Reset()
		w := call(h, request.method, request.path, "")
		spans := exporter.GetSpans()
		require.Len(t, spans, 1)
		values := map[string]string{}
		for _, a := range spans[0].Attributes {
			values[string(a.Key)] = a.Value.String()
		}
		require.Equal(t, request.want, []string{spans[0].Name, values["http.request.method"], values["http.route"], values["http.response.status_code"]})
		require.Equal(t, w.Result().Header.Get("X-Request-Id"), values["ojs.request.id"])
	}
}

// docs/reference/observability.md, Health: every response of every route, whatever becomes of it. Without a store most of them panic.
func TestRequestIDOnEveryRoute(t *testing.T) {
	t.Parallel()
	a, seen := observedAPI()
	e := a.echo()
	a.mount(e, a.routes())
	routes := e.Routes()
	require.Greater(t, len(routes), 60)
	for _, route := range routes {
		path := strings.NewReplacer(":id", "019c0a11-1c02-7b11-9c22-0a1b2c3d4e5f", ":name", "x", ":type", "x", ":version", "1", ":uri", "x", ":key", "x").Replace(route.Path)
		require.NotContains(t, path, ":", "a parameter that this test does not know")
		r := httptest.NewRequest(route.Method, path, strings.NewReader("{}"))
		r.Header.Set("X-Request-ID", "mine-1")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		require.Equal(t, []string{"mine-1"}, w.Result().Header.Values("X-Request-Id"), path)
		require.True(t, strings.HasPrefix((*seen)[len(*seen)-1], route.Method+" "+route.Path+" "), (*seen)[len(*seen)-1])

		r.Header.Set("X-Request-ID", "not valid")
		w = httptest.NewRecorder()
		e.ServeHTTP(w, r)
		require.Regexp(t, `^req_[0-9a-f]{8}-[0-9a-f]{4}-7`, w.Result().Header.Get("X-Request-Id"), path)
	}
}
