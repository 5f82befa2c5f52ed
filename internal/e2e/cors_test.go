package e2e_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestCORS covers docs/reference/http.md, CORS.
func TestCORS(t *testing.T) {
	t.Parallel()
	const origin = "Origin: https://ui.example"
	a := setup(t, func(c *app.Config) {
		c.Server.CORSOrigins, c.Server.APIKeys = []string{"https://ui.example", "https://other.example"}, []string{"secret"}
	})

	t.Run("AnswersPreflight", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).do("OPTIONS", "/ojs/v1/jobs", nil, origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization").is(204)
		require.Equal(t, "https://ui.example", r.header.Get("Access-Control-Allow-Origin"))
		require.Equal(t, "86400", r.header.Get("Access-Control-Max-Age"))
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			require.Contains(t, r.header.Get("Access-Control-Allow-Methods"), method)
		}
		for _, name := range []string{"Content-Type", "Accept", "Authorization", "X-Request-Id", "OJS-Version", "Idempotency-Key", "X-OJS-Tenant"} {
			require.Contains(t, r.header.Get("Access-Control-Allow-Headers"), name)
		}
	})

	t.Run("ExposesHeaders", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, r := range []reply{
			a.get("/ojs/v1/jobs", origin, "Authorization: Bearer secret").is(200), a.get("/ojs/v1/jobs", origin).is(401), a.get("/ojs/manifest", origin).is(200),
		} {
			require.Equal(t, "https://ui.example", r.header.Get("Access-Control-Allow-Origin"))
			require.Contains(t, r.header.Values("Vary"), "Origin")
			for _, name := range []string{"X-Request-Id", "OJS-Version", "Location", "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
				require.Contains(t, r.header.Get("Access-Control-Expose-Headers"), name)
			}
		}
	})

	t.Run("KeepsOtherReasonsToVary", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).get("/ojs/v1/queues/q/stats", origin, "Authorization: Bearer secret").is(200)
		require.ElementsMatch(t, []string{"Origin", "OJS-Version"}, r.header.Values("Vary"))
	})

	t.Run("KnowsOnlyListedOrigins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, strange := range []string{"https://evil.example", "http://ui.example", "https://ui.example.evil", "null"} {
			require.Empty(t, a.get("/ojs/manifest", "Origin: "+strange).header.Get("Access-Control-Allow-Origin"))
			r := a.do("OPTIONS", "/ojs/v1/jobs", nil, "Origin: "+strange, "Access-Control-Request-Method: POST").is(204)
			require.Empty(t, r.header.Get("Access-Control-Allow-Origin"))
		}
	})

	t.Run("IsOffByDefault", func(t *testing.T) {
		t.Parallel()
		r := setup(t).get("/ojs/manifest", origin)
		for name := range r.header {
			require.False(t, strings.HasPrefix(name, "Access-Control-"), name)
		}
	})
}
