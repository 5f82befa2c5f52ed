package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/logging"
	"github.com/ojsd/ojsd/ojs"
)

// logRequest writes the line of contract 40 §13 for a request: never its URL, headers or body. Of a refusal only the kind
// is told, because its text may quote what the client sent.
func (a *API) logRequest(c echo.Context, end *ended) {
	level, message := severity(end)
	ctx := c.Request().Context()
	if !a.logger.Enabled(ctx, level) {
		return
	}
	attrs := [3]slog.Attr{slog.String("category", "http"), a.requestAttr(c, end)}
	n := 2
	switch {
	case end.err == nil:
	case end.shown != nil && level < slog.LevelWarn:
		attrs[n], n = slog.Group("error", slog.String("type", end.shown.Type)), n+1
	default:
		attrs[n], n = failureAttr(end.shown, end.err), n+1
	}
	a.logger.LogAttrs(ctx, level, message, attrs[:n]...)
}

// severity: what a client did wrong is its business, what we did wrong is ours.
func severity(end *ended) (slog.Level, string) {
	switch {
	case end.err != nil && isPanic(end.err):
		return slog.LevelError, "request panicked"
	case end.status == statusHungUp:
		return slog.LevelDebug, "client hung up"
	case end.err != nil && end.shown == nil:
		return slog.LevelWarn, "answer was cut short"
	case end.status >= http.StatusInternalServerError:
		return slog.LevelError, "request failed"
	case end.status >= http.StatusBadRequest:
		return slog.LevelInfo, "request refused"
	}
	return slog.LevelDebug, "request served"
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*panicked](err)
	return ok
}

func (a *API) requestAttr(c echo.Context, end *ended) slog.Attr {
	return slog.Group("request",
		slog.String("id", c.Response().Header().Get("X-Request-Id")),
		slog.String("method", end.method),
		slog.String("route", end.route),
		slog.Int("status", end.status),
		slog.Float64("duration_ms", float64(end.took.Microseconds())/1000),
		slog.String("remote", c.Request().RemoteAddr))
}

// failureAttr tells of an error of ours, which the client was shown as something else.
func failureAttr(shown *ojs.Error, err error) slog.Attr {
	kind := logging.TypeOf(err)
	if shown != nil {
		kind = shown.Type
	}
	attrs := []any{slog.String("type", kind), slog.String("message", logging.Message(err))}
	if p, ok := errors.AsType[*panicked](err); ok {
		attrs = append(attrs, slog.String("backtrace", logging.Cut(string(p.stack))))
	}
	return slog.Group("error", attrs...)
}

// logItem tells of one item of a bulk call that failed by our fault, while the call as a whole may succeed.
func (a *API) logItem(c echo.Context, wire *ojs.Error, err error) {
	ctx := c.Request().Context()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return
	}
	a.logger.LogAttrs(ctx, slog.LevelError, "item of a request failed", slog.String("category", "error"),
		slog.Group("request", slog.String("id", c.Response().Header().Get("X-Request-Id")), slog.String("route", c.Path())),
		failureAttr(wire, err))
}
