package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/ojs"
)

// handleError answers any error in the shape of contract 10 §2. What is not an *ojs.Error is shown as internal_error; the
// access log has it whole. It returns what it has shown, nil if an answer had begun.
func (a *API) handleError(err error, c echo.Context) *ojs.Error {
	if c.Response().Committed {
		return nil
	}
	wire := a.wireError(err, c)
	h := c.Response().Header()
	wire.RequestID = h.Get("X-Request-Id")
	switch wire.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	}
	shown := shownError{Error: wire}
	if wire.Type == string(ojs.KindBatchSize) {
		shown.MaxBatchSize, _ = wire.Details["max_batch_size"].(int)
	}
	body, mErr := json.Marshal(map[string]any{"error": shown})
	if mErr != nil { // details hold only what was decoded from JSON
		body = []byte(`{"error":{"code":"internal_error","type":"internal_error","message":"The error could not be shown.","retryable":true}}`)
	}
	_ = send(c, wire.Status, body) // the connection is gone
	return wire
}

// shownError repeats a batch limit where bulk clients look for it (contract 10 §6.2).
type shownError struct {
	*ojs.Error
	MaxBatchSize int `json:"max_batch_size,omitempty"`
}

// hungUp reports whether a request failed because nobody waits for its answer any more.
func hungUp(err error, c echo.Context) bool {
	return errors.Is(err, context.Canceled) && c.Request().Context().Err() != nil
}

func (a *API) wireError(err error, c echo.Context) *ojs.Error {
	var wire *ojs.Error
	if errors.As(err, &wire) {
		shown := *wire // the original may be shared
		return &shown
	}
	var he *echo.HTTPError
	if errors.As(err, &he) {
		switch he.Code {
		case http.StatusNotFound:
			return ojs.ErrNotFound("route", c.Request().URL.Path)
		case http.StatusMethodNotAllowed:
			allow := c.Response().Header().Get(echo.HeaderAllow)
			return ojs.ErrMethodNotAllowed(c.Request().Method, c.Request().URL.Path, strings.Split(allow, ", "))
		}
	}
	if hungUp(err, c) {
		return ojs.ErrUnavailable()
	}
	return ojs.ErrInternal()
}

// itemError is the error member of one item of a bulk answer: the same object without request_id.
func (a *API) itemError(c echo.Context, err error) *ojs.Error {
	wire := a.wireError(err, c)
	if wire.Status >= 500 {
		a.logItem(c, wire, err)
	}
	return wire
}
