package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// handleError answers any error (docs/reference/errors.md, Body). It returns what it has shown, nil if an answer had begun.
// It is the only place that writes an error. It may be called once for each request, by observed; echo calls it for nothing
// else.
func (a *API) handleError(err error, c echo.Context) (*ojs.Error, api.Cause) {
	shown, cause := api.Shown(c.Request().Context(), a.routeError(err, c))
	// A half-written answer or a stream cannot turn into an error. The cause still decides how the request is logged.
	if c.Response().Committed {
		return nil, cause
	}
	h := c.Response().Header()
	shown.RequestID = h.Get("X-Request-Id")
	status := api.StatusOf(shown).HTTP
	if status == http.StatusUnauthorized {
		h.Set(echo.HeaderWWWAuthenticate, "Bearer")
	}
	// Handlers that know a better pause have set the header before.
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && h.Get("Retry-After") == "" {
		h.Set("Retry-After", strconv.Itoa(api.RetryAfter(shown)))
	}
	body := shownError{Error: shown}
	if shown.Type == string(ojs.ErrQueueFull) {
		body.queueFull = newQueueFull(h, shown)
	}
	if shown.Type == string(ojs.ErrBatchSize) {
		body.MaxBatchSize, _ = shown.Details["max_batch_size"].(int)
	}
	text, mErr := marshal(map[string]any{"error": body})
	if mErr != nil { // details hold only what was decoded from JSON
		text = []byte(`{"error":{"code":"internal_error","type":"internal_error","message":"The error could not be shown.","retryable":true}}`)
	}
	_ = send(c, status, text) // fails only if the connection is closed
	return shown, cause
}

// marshal is json.Marshal that leaves <, > and & as they are, for people who read the messages.
// The encoder escapes them by default, for answers inside of HTML pages; these have nosniff and a type of their own.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// shownError repeats a batch limit where bulk clients look for it.
// Members beside details exist only where a client of the specification reads them there.
type shownError struct {
	*ojs.Error
	MaxBatchSize int `json:"max_batch_size,omitempty"`
	*queueFull
}

// routeError turns what the router reports into errors of ours.
// Anything else that echo reports is unexpected and becomes internal_error.
func (a *API) routeError(err error, c echo.Context) error {
	var he *echo.HTTPError
	if _, ours := errors.AsType[*ojs.Error](err); ours || !errors.As(err, &he) {
		return err
	}
	switch he.Code {
	case http.StatusNotFound:
		// The path is that which prepare has rewritten, without the query, so no token of a query is shown.
		method, path := c.Request().Method, c.Request().URL.Path
		if method == http.MethodHead { // its headers are those of GET
			method = http.MethodGet
		}
		return spec.NoRoute(method, path, nearest(a.table, method, path))
	case http.StatusMethodNotAllowed:
		allow := c.Response().Header().Get(echo.HeaderAllow)
		return spec.MethodNotAllowed(c.Request().Method, c.Request().URL.Path, strings.Split(allow, ", "))
	}
	return err
}
