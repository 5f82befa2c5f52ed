package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// observedAPI notes what requestDone is told.
func observedAPI(keys ...string) (a *API, seen *[]string) {
	a = newAPI(io.Discard)
	a.keys = hashKeys(keys)
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
		a.health.reset = func(ctx context.Context) error { return ctx.Err() }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/ojs/v1/admin/reset", nil).WithContext(ctx))
		a.health.reset = func(context.Context) error { panic(http.ErrAbortHandler) }
		require.Panics(t, func() { call(a.Handler(), "POST", "/ojs/v1/admin/reset", "") })
		require.Equal(t, []string{"POST /ojs/v1/admin/reset 499", "POST /ojs/v1/admin/reset 499"}, *seen)
	})
}
