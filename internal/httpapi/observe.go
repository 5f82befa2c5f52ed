package httpapi

import (
	"net/http"
	"runtime/debug"
	"time"

	"github.com/labstack/echo/v4"
)

const (
	routeUnknown = "unknown" // the route of all requests that have none: raw paths would make labels without number
	methodOther  = "_OTHER"  // the same for methods, as OpenTelemetry calls it
	statusHungUp = 499       // nobody read the answer: no failure of ours, but no success either
)

// observed is around everything else: it answers errors and panics, and reports each request when it has ended, streams
// at their end.
func (a *API) observed(e *echo.Echo) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			start := time.Now()
			defer func() {
				p := recover()
				if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this
					a.ended(e, c, statusHungUp, start)
					panic(p)
				}
				if p != nil {
					err = &panicked{value: p, stack: debug.Stack()}
				}
				status := a.settle(c, err)
				err = nil
				a.ended(e, c, status, start)
			}()
			return next(c)
		}
	}
}

// settle answers an error and returns the status of the answer.
func (a *API) settle(c echo.Context, err error) int {
	if err == nil {
		return c.Response().Status
	}
	a.handleError(err, c)
	if hungUp(err, c) {
		return statusHungUp
	}
	return c.Response().Status
}

// ended reports a request.
func (a *API) ended(e *echo.Echo, c echo.Context, status int, start time.Time) {
	if a.requestDone == nil {
		return
	}
	a.requestDone(methodLabel(c.Request().Method), routeOf(e, c), status, time.Since(start))
}

// routeOf is the template of a request's route. What was refused before it was routed is routed now.
func routeOf(e *echo.Echo, c echo.Context) string {
	if c.Path() == "" {
		r := c.Request()
		e.Router().Find(r.Method, echo.GetPath(r), c)
	}
	if path := c.Path(); path != "" {
		return path
	}
	return routeUnknown
}

func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return methodOther
}
