package httpapi

import (
	"net/http"
	"runtime/debug"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/ojs"
)

const (
	routeUnknown = "unknown" // the route of all requests that have none: raw paths would make labels without number
	methodOther  = "_OTHER"  // the same for methods, as OpenTelemetry calls it
	statusHungUp = 499       // nobody read the answer: no failure of ours, but no success either
)

// ended is a request that is over.
type ended struct {
	method, route string // each one of few
	status        int
	took          time.Duration
	err           error
	shown         *ojs.Error // what the client was told of err; nil: nothing
}

// observed is around everything else: it answers errors and panics, and reports each request when it has ended, streams
// at their end.
func (a *API) observed(e *echo.Echo) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			start := time.Now()
			span := a.trace(c)
			defer func() {
				p := recover()
				if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this
					a.report(c, span, ended{status: statusHungUp, route: routeOf(e, c), took: time.Since(start)})
					panic(p)
				}
				if p != nil {
					err = &panicked{value: p, stack: debug.Stack()}
				}
				end := a.settle(c, err)
				err = nil
				end.route, end.took = routeOf(e, c), time.Since(start)
				a.report(c, span, end)
			}()
			return next(c)
		}
	}
}

// settle answers an error, and says how the request ended.
func (a *API) settle(c echo.Context, err error) ended {
	end := ended{err: err}
	if err != nil {
		end.shown = a.handleError(err, c)
	}
	end.status = c.Response().Status
	if err != nil && hungUp(err, c) {
		end.status = statusHungUp
	}
	return end
}

func (a *API) report(c echo.Context, span tracing.Request, end ended) {
	end.method = methodLabel(c.Request().Method)
	a.logRequest(c, &end)
	a.endSpan(c, span, &end)
	if a.requestDone != nil {
		a.requestDone(end.method, end.route, end.status, end.took)
	}
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
