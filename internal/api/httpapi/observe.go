package httpapi

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// 499 is what proxies call a client that closed its request; no client sees it.
const (
	methodOther  = "_OTHER" // any method that HTTP does not define, as OpenTelemetry calls it
	statusHungUp = 499      // nobody read the answer: neither a failure of the server nor a success
)

// observed is around everything else: it answers errors and panics, and reports each request when it has ended, streams
// at their end.
// It returns nil to echo in any case but an aborted handler: the error is answered, and echo would answer it again.
func (a *API) observed(e *echo.Echo) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			start, r := time.Now(), c.Request()
			// The context of the request gets the trace context, and its span if there is one, before everything else, so that every span
			// and log line of the request belongs to the trace, those of refusals, too. Without a trace the request is not copied.
			ctx := tracing.Receive(r.Context(), r.Header["Traceparent"], r.Header["Tracestate"])
			ctx, span := a.tracer.Request(ctx, r.Method)
			if ctx != r.Context() {
				c.SetRequest(r.WithContext(ctx))
			}
			// The deferred function sees the panic of a handler; recover works nowhere else.
			defer func() {
				p := recover()
				// This panic asks net/http to drop the connection without an answer, so it must reach it.
				if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this
					a.report(e, c, span, start, outcome{status: statusHungUp, Ended: api.Ended{Ending: api.HungUp}})
					panic(p)
				}
				if p != nil {
					err = api.NewPanic(p)
				}
				begun := c.Response().Committed // answered commits it, too
				end := a.answered(c, err)
				// The error is answered; echo would answer it again.
				err = nil
				a.report(e, c, span, start, end)
				// The answer is cut off. Without this its chunks would end as if it were whole.
				if p != nil && begun {
					panic(http.ErrAbortHandler)
				}
			}()
			return next(c)
		}
	}
}

// outcome is how a request ended, with its status.
// status may be 499, which was never sent.
type outcome struct {
	api.Ended
	status int
}

// answered answers an error, if there is one, and says how the request ended.
// The cases are in the order of importance. A panic after the answer has begun is a panic, and a client that is gone is not a
// failure of the server, whatever error its absence has caused.
func (a *API) answered(c echo.Context, err error) outcome {
	end := outcome{Ended: api.Ended{Err: err}}
	cause := api.CauseClient
	if err != nil {
		end.Shown, cause = a.handleError(err, c)
	}
	end.status = c.Response().Status
	if cause == api.CauseHungUp {
		end.status = statusHungUp
	}
	switch {
	case api.IsPanic(err):
		end.Ending = api.Panicked
	// No failure: whatever the handler returned, nobody has read it.
	case end.status == statusHungUp:
		end.Ending = api.HungUp
	// handleError shows nothing if the answer had begun.
	case err != nil && end.Shown == nil:
		end.Ending = api.CutShort
	case c.Get(expectedKey) == true:
		end.Ending = api.Served
	case end.status >= http.StatusInternalServerError:
		end.Ending = api.Failed
	case end.status >= http.StatusBadRequest:
		end.Ending = api.Refused
	}
	return end
}

// report runs once for each request: for a stream when the stream has ended, so a duration may be hours.
func (a *API) report(e *echo.Echo, c echo.Context, span tracing.Request, start time.Time, end outcome) {
	end.RequestID, end.Remote = c.Response().Header().Get("X-Request-Id"), c.Request().RemoteAddr
	end.Method, end.Route = methodOther, routeOf(e, c)
	// One of few words: a client may send any as a method.
	switch method := c.Request().Method; method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		end.Method = method
	}
	end.Took, end.Status, end.OK = time.Since(start), slog.IntValue(end.status), end.status < http.StatusBadRequest
	end.Log(c.Request().Context(), a.logger)
	// The attributes are made only for spans that somebody collects.
	if span.Recording() {
		end.EndSpan(span, end.Method+" "+end.Route,
			attribute.String("http.request.method", end.Method), attribute.String("http.route", end.Route),
			attribute.Int("http.response.status_code", end.status))
	}
	if a.requestDone != nil {
		a.requestDone(end.Method, end.Route, end.status, end.Took)
	}
}

// routeOf is the template of a request's route. What was refused before it was routed is routed now.
// Requests without a key are refused before routing, and their log line should name the route, too. The label must never be
// made of the path itself: paths are without number, and hold ids.
func routeOf(e *echo.Echo, c echo.Context) string {
	if c.Path() == "" {
		r := c.Request()
		e.Router().Find(r.Method, echo.GetPath(r), c)
	}
	if path := c.Path(); path != "" {
		return path
	}
	return api.RouteUnknown
}
