package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
)

// TestVisitors covers docs/reference/http.md, Authentication: what a server without keys refuses to browsers.
func TestVisitors(t *testing.T) {
	t.Parallel()
	send := func(a *API, method, host string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://"+host+"/ojs/v1/middleware", http.NoBody)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, r)
		return w
	}
	for name, c := range map[string]struct {
		listen  string
		all     bool
		cors    []string
		keys    []string
		method  string
		host    string
		headers []string
		refused bool
	}{
		"NoBrowser":               {listen: "127.0.0.1:8080", host: "localhost:8080"},
		"OwnPage":                 {listen: "127.0.0.1:8080", host: "localhost:8080", headers: []string{"Origin: http://localhost:8080", "Sec-Fetch-Site: same-origin"}},
		"OwnPageByAddress":        {listen: "[::1]:8080", host: "[::1]:8080", headers: []string{"Origin: http://[::1]:8080"}},
		"Subdomain":               {listen: "localhost:8080", host: "app.localhost:8080"},
		"ForeignOrigin":           {listen: "127.0.0.1:8080", host: "localhost:8080", headers: []string{"Origin: https://evil.example"}, refused: true},
		"ForeignOriginReads":      {listen: "127.0.0.1:8080", method: "GET", host: "localhost:8080", headers: []string{"Origin: https://evil.example"}, refused: true},
		"AnotherPort":             {listen: "127.0.0.1:8080", host: "localhost:8080", headers: []string{"Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"}, refused: true},
		"OriginOfASandbox":        {listen: "127.0.0.1:8080", host: "localhost:8080", headers: []string{"Origin: null"}, refused: true},
		"WithoutOrigin":           {listen: "127.0.0.1:8080", host: "localhost:8080", headers: []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"}, refused: true},
		"Link":                    {listen: "127.0.0.1:8080", method: "GET", host: "localhost:8080", headers: []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}},
		"ConfiguredOrigin":        {listen: "127.0.0.1:8080", cors: []string{"https://ui.example"}, host: "localhost:8080", headers: []string{"Origin: https://UI.example", "Sec-Fetch-Site: cross-site"}},
		"AnyOrigin":               {listen: "127.0.0.1:8080", cors: []string{"*"}, host: "localhost:8080", headers: []string{"Origin: https://evil.example"}},
		"HostThatLeadsHere":       {listen: "127.0.0.1:8080", method: "GET", host: "evil.example:8080", headers: []string{"Origin: http://evil.example:8080"}, refused: true},
		"HostThatLooksLocal":      {listen: "127.0.0.1:8080", method: "GET", host: "localhost.evil.example", refused: true},
		"HostBehindAProxy":        {listen: "127.0.0.1:8080", all: true, host: "jobs.example"},
		"OpenToAll":               {listen: ":8080", all: true, host: "jobs.example"},
		"OpenToAllForeignOrigin":  {listen: ":8080", all: true, host: "jobs.example", headers: []string{"Origin: https://evil.example"}, refused: true},
		"WithKeysTheKeyDecides":   {listen: "127.0.0.1:8080", keys: []string{"a-key-of-a-client"}, host: "jobs.example", headers: []string{"Authorization: Bearer a-key-of-a-client", "Origin: https://evil.example"}},
		"PreflightOfAnotherHost":  {listen: "127.0.0.1:8080", method: "OPTIONS", host: "evil.example", refused: true},
		"PreflightOfAForeignPage": {listen: "127.0.0.1:8080", method: "OPTIONS", host: "localhost:8080", headers: []string{"Origin: https://evil.example", "Access-Control-Request-Method: POST"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := config.Default()
			conf.Server.Listen, conf.Server.AllowAll, conf.Server.CORSOrigins, conf.Server.APIKeys = c.listen, c.all, c.cors, c.keys
			a := New(conf, Deps{Logger: slog.New(slog.DiscardHandler), Health: healthOf(0, "ok"), Streams: api.NewStreams(conf.Realtime)})
			if c.method == "" {
				c.method = "POST" // 405 of this route
			}
			w := send(a, c.method, c.host, c.headers...)
			require.Equal(t, c.refused, w.Code == http.StatusForbidden, "%d %s", w.Code, w.Body)
			if c.refused {
				require.Equal(t, "permission_denied", gjson.Get(w.Body.String(), "error.code").Str, w.Body)
			}
		})
	}
}
