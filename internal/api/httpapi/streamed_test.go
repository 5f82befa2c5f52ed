package httpapi

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// TestLargeAnswersAreStreamed: an answer of many jobs is not built whole, and reads the same.
func TestLargeAnswersAreStreamed(t *testing.T) {
	t.Parallel()
	jobs := make([]*job.Record, 100)
	for i := range jobs {
		jobs[i] = &job.Record{Type: "t", Queue: "q", State: "available", Args: []byte(`["` + strings.Repeat("x", 50_000) + `"]`)}
	}
	serve := func(t *testing.T, method string, jobs []*job.Record) (res *http.Response, body []byte, most int) {
		t.Helper()
		e := echo.New()
		e.Any("/", func(c echo.Context) error {
			return respondEach(c, http.StatusOK, shownBytes(jobs), func(b []byte, next flush) []byte {
				return appendJobs(b, jobs, shape{}, func(b []byte) []byte {
					most = max(most, len(b))
					return next(b)
				})
			})
		})
		server := httptest.NewServer(e)
		defer server.Close()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		require.NoError(t, err)
		res, err = server.Client().Do(req)
		require.NoError(t, err)
		body, err = io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res, body, most
	}

	res, body, most := serve(t, http.MethodGet, jobs)
	require.EqualValues(t, -1, res.ContentLength)
	require.Equal(t, appendJobs(nil, jobs, shape{}, whole), body)
	require.True(t, json.Valid(body))
	require.Greater(t, len(body), 5_000_000)
	require.Less(t, most, 200_000)
	require.InEpsilon(t, len(body), shownBytes(jobs), 0.1)

	res, body, _ = serve(t, http.MethodGet, jobs[:10])
	require.EqualValues(t, len(body), res.ContentLength)
	res, body, _ = serve(t, http.MethodHead, jobs)
	require.Empty(t, body)
	require.Greater(t, res.ContentLength, int64(5_000_000))
}

// A client must see that an answer is not whole, although its status was sent already.
func TestPanicCutsTheAnswerOff(t *testing.T) {
	t.Parallel()
	var logged strings.Builder
	a := &API{logger: slog.New(slog.NewTextHandler(&logged, nil))}
	e := echo.New()
	e.Pre(a.observed(e))
	e.GET("/begun", func(c echo.Context) error {
		_, _ = c.Response().Write([]byte(`{"jobs":[`))
		c.Response().Flush()
		panic("broken")
	})
	server := httptest.NewServer(e)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/begun", nil)
	require.NoError(t, err)
	res, err := server.Client().Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	_, err = io.ReadAll(res.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, res.Body.Close())
	server.Close()
	require.Equal(t, 1, strings.Count(logged.String(), "broken"))
}
