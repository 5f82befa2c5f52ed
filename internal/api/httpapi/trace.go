package httpapi

import (
	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// trace puts the trace context of a request, and its span if there is one, where the store finds them.
func (a *API) trace(c echo.Context) tracing.Request {
	r := c.Request()
	ctx := tracing.Receive(r.Context(), r.Header["Traceparent"], r.Header["Tracestate"])
	ctx, span := a.tracer.Request(ctx, r.Method)
	if ctx != r.Context() {
		c.SetRequest(r.WithContext(ctx))
	}
	return span
}

// endSpan ends the span of a request. Like the log it tells nothing of its URL beyond the route.
func (a *API) endSpan(c echo.Context, span tracing.Request, end *ended) {
	if !span.Recording() {
		return
	}
	o := tracing.Outcome{
		Name:   end.method + " " + end.route,
		Failed: end.status >= 500 || end.err != nil && isPanic(end.err), OK: end.status < 400,
		Attrs: []attribute.KeyValue{
			attribute.String("http.request.method", end.method), attribute.String("http.route", end.route),
			attribute.Int("http.response.status_code", end.status), attribute.String("ojs.backend.type", "postgres"),
			attribute.String("ojs.request.id", c.Response().Header().Get("X-Request-Id")),
		},
	}
	if end.shown != nil {
		o.ErrorType, o.ErrorMessage = end.shown.Type, end.shown.Message
	}
	span.End(o)
}
