package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// mediaPython contains the text application/json for a client that looks for it (docs/reference/http.md, Official clients).
const (
	mediaOJS    = "application/openjobspec+json"
	mediaJSON   = "application/json"
	mediaPython = mediaOJS + `; alias="application/json"`
)

// Header values that never change are shared, so that a response costs no allocation for them.
// They must never be changed in place.
var (
	valueVersion = []string{"1.0"}
	valueNosniff = []string{"nosniff"}
	valueNoStore = []string{"no-store"}
	valueOJS     = []string{mediaOJS}
	valueJSON    = []string{mediaJSON}
	valuePython  = []string{mediaPython}
)

// prepare sets what every response carries, whatever becomes of the request (docs/reference/http.md, Response headers).
// It writes the header map directly, with keys in canonical form, which Set would compute for each request.
func (a *API) prepare(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, h := c.Request(), c.Response().Header()
		h["Ojs-Version"] = valueVersion
		h["X-Ojs-Version"] = valueVersion
		h["X-Content-Type-Options"] = valueNosniff
		h["Cache-Control"] = valueNoStore
		h["Content-Type"] = a.contentType(r)
		// It must be there before any other stage can fail, because errors show it.
		h["X-Request-Id"] = []string{api.RequestID(r.Header.Get("X-Request-Id"))}

		// Both forms of the path are kept in step, because the router reads RawPath where there is one and all others read
		// Path.
		if r.URL.RawPath != "" {
			r.URL.RawPath = decodeSegments(r.URL.RawPath)
		}
		// /v1 is an alias for reading only. Other methods there are 404, so that nothing is changed under a path that may go
		// away.
		if strings.HasPrefix(r.URL.Path, "/v1/") && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			r.URL.Path = "/ojs" + r.URL.Path
			if r.URL.RawPath != "" {
				r.URL.RawPath = "/ojs" + r.URL.RawPath
			}
		}
		return next(c)
	}
}

var slashInSegment = strings.NewReplacer("%", "%25", "/", "%2F")

// decodeSegments decodes a raw path except for slashes inside a segment. The router compares and returns the raw path if
// there is one, so a single escape anywhere would otherwise hide the route from it; param undoes the rest.
// The percent sign is escaped again, so that param can tell %2F that was in the segment from an escape that was decoded.
func decodeSegments(raw string) string {
	segments := strings.Split(raw, "/")
	for i, segment := range segments {
		// Each segment is decoded by itself, so that %2F does not become a separator.
		if text, err := url.PathUnescape(segment); err == nil { // net/http has checked it
			segments[i] = slashInSegment.Replace(text)
		}
	}
	return strings.Join(segments, "/")
}

// param is a segment of the path, decoded.
// Handlers must use it and never c.Param, except to compare with a literal.
func param(c echo.Context, name string) string {
	text := c.Param(name)
	if c.Request().URL.RawPath != "" {
		if decoded, err := url.PathUnescape(text); err == nil { // decodeSegments has written it
			return decoded
		}
	}
	return text
}

// contentType follows Accept only between the two names of the same JSON; it never refuses.
// Both names stand for the same bytes, so the choice has no effect beyond the header.
func (a *API) contentType(r *http.Request) []string {
	if accept := r.Header["Accept"]; names(accept, mediaJSON) && !names(accept, mediaOJS) {
		return valueJSON
	}
	if strings.HasPrefix(r.UserAgent(), "python-httpx/") {
		return valuePython
	}
	return valueOJS
}

// names reports whether an Accept header names the media type itself; a range such as */* does not.
func names(accept []string, media string) bool {
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			if isMedia(item, media) {
				return true
			}
		}
	}
	return false
}

// isMedia compares a media type with a value that may have parameters.
func isMedia(value, media string) bool {
	name, _, _ := strings.Cut(value, ";")
	return strings.EqualFold(strings.TrimSpace(name), media)
}

// admit checks credentials and the spec version, before routing (docs/reference/http.md, Check order).
// The checks are in the order key, version, tenant. It rewrites the request: handlers find the producer in its context, and
// no token in its URL.
func (a *API) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		// /metrics may be open although keys are configured: scrapers often cannot send one.
		if public(r.URL.Path) || r.URL.Path == "/metrics" && !a.config.MetricsAuth {
			return next(c)
		}
		// Before the check, because the key may stand in the query. It also takes the token out of the URL when no keys are
		// configured.
		a.takeQueryToken(r)
		if len(a.keys) > 0 {
			principal, ok := a.keys.Bearer(r.Header.Get("Authorization"))
			if !ok {
				c.Response().Header().Set(echo.HeaderWWWAuthenticate, "Bearer")
				return spec.Unauthenticated()
			}
			// The producer is checked against the configuration of queues when a job is stored.
			c.SetRequest(r.WithContext(queue.WithProducer(r.Context(), principal)))
		}
		// An empty value is refused; only an absent header is fine.
		if v, present := r.Header["Ojs-Version"]; present && !job.ValidVersion(v[0]) {
			return spec.Version("OJS-Version", v[0])
		}
		// Checked here once, so that API.tenant can ignore the error later.
		if _, err := a.config.Tenancy.Caller(r.Header[tenantHeader]); err != nil {
			return err
		}
		return next(c)
	}
}

// These paths need neither key nor version, so that probes and discovery work with nothing configured.
func public(path string) bool {
	switch path {
	case "/ojs/manifest", "/ojs/v1/health", "/health", "/ready", "/readyz", "/healthz", "/livez":
		return true
	}
	return false
}

// caller is who sent the request.
// It reads the key again rather than carry it along: few calls need it.
func (a *API) caller(r *http.Request) api.Caller {
	principal, _ := a.keys.Bearer(r.Header.Get("Authorization"))
	return api.Caller{Principal: principal, Tenant: a.tenant(r), Address: r.RemoteAddr}
}

// actor names in events who did something: the key, else the header, else the query parameter, else what the body claims.
// What a client claims is not proven; only a key is.
func (a *API) actor(c echo.Context, parameter string, claimed ...string) string {
	names := append([]string{c.Request().Header.Get("X-OJS-Actor"), c.QueryParam(parameter)}, claimed...)
	return a.caller(c.Request()).Actor(names...)
}
