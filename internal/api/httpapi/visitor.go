package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// allowedOrigin: browsers always send one, and a page of another site must not use what this one is trusted with.
// A request without Origin is not from a browser. CORS does not apply to WebSockets, so this check is the only one.
func (a *API) allowedOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return true
	}
	allowed := a.config.Server.CORSOrigins
	return slices.Contains(allowed, "*") || slices.ContainsFunc(allowed, func(o string) bool { return strings.EqualFold(o, origin) })
}

func foreignOrigin(r *http.Request) error {
	refused := spec.NewError(ojs.ErrPermissionDenied, "Pages of this origin may not use this server.",
		map[string]any{"origin": r.Header.Get("Origin")})
	refused.Hint = "Open the page from the server's own host, or add its origin to the server's setting OJS_CORS_ORIGINS."
	return refused
}

// checkVisitor protects a server without keys from the browsers of those who may reach it (docs/reference/http.md, Authentication): a page
// of another site could send requests, and one whose host name leads to this machine could read the answers.
func (a *API) checkVisitor(r *http.Request) error {
	if a.localOnly && !localHost(r.Host) {
		refused := spec.NewError(ojs.ErrPermissionDenied, "This server answers under the names of its own machine only.", map[string]any{"host": r.Host})
		refused.Hint = "Call it as localhost or 127.0.0.1; for other names set OJS_API_KEY, or OJS_ALLOW_UNAUTHENTICATED=true."
		return refused
	}
	// A preflight changes nothing, and is answered by CORS.
	if r.Method != http.MethodOptions && !a.allowedOrigin(r) {
		return foreignOrigin(r)
	}
	// Browsers send this header also where they leave out Origin. A link that somebody follows is no call of a page.
	if site := r.Header["Sec-Fetch-Site"]; site != nil && site[0] == "cross-site" && r.Header.Get("Origin") == "" &&
		r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		return foreignOrigin(r)
	}
	return nil
}

// localHost reports whether a Host header is a name of the machine itself, which no other machine can be reached by.
func localHost(host string) bool {
	if strings.HasPrefix(host, "127.0.0.1:") || strings.HasPrefix(host, "localhost:") { // nearly always
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.IsLoopback()
}
