package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestAuthentication covers docs/reference/http.md, Authentication.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two two"} })

	t.Run("AcceptsEachKey", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, value := range []string{"Bearer one", "bearer one", "BEARER one", "Bearer two two", "Bearer  one"} {
			a.get("/ojs/v1/jobs", "Authorization: "+value).is(200)
		}
	})

	t.Run("RefusesOthers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, value := range []string{"", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Bearer two", "Basic one", "one", "Bearer one two two", "Token one"} {
			r := a.get("/ojs/v1/jobs", "Authorization: "+value).fails(401, "unauthenticated", "unauthenticated")
			require.Equal(t, "Bearer", r.header.Get("WWW-Authenticate"))
			require.Equal(t, "false", r.at("error.retryable"))
		}
		a.get("/ojs/v1/jobs").is(401)
	})

	t.Run("GuardsEveryOtherRoute", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/", "/nowhere", "/ojs/v1/jobs/x", "/ojs/v1/events", "/ojs/v1/queues/q/stats", "/ojs/v1/admin/reset", "/v1/jobs", "/ojs%2Fmanifest/x", "/ojs/manifest/", "//ojs/manifest"} {
			a.get(path).is(401)
			a.post(path, "{}").is(401)
		}
	})

	t.Run("LeavesHealthAndManifestOpen", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/ojs/manifest", "/ojs/v1/health", "/health", "/healthz", "/livez", "/ready", "/readyz", "/v1/health", "/metrics"} {
			a.get(path).is(200)
		}
	})

	t.Run("NamesTheKeyAsTheActor", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		const key = "Authorization: Bearer one"
		id := a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`, key).is(201).at("job.id")
		a.del("/ojs/v1/jobs/"+id+"?cancelled_by=somebody", key, "X-OJS-Actor: somebody").is(200)
		cancelled := func() reply { return a.get("/ojs/v1/events?types=job.cancelled&job_id="+id, key).is(200) }
		eventually(t, func() bool { return cancelled().count("events") == 1 })
		require.Equal(t, "key:7692c3ad", cancelled().at("events.0.data.cancelled_by"))
	})

	t.Run("BoundsUnknownKeys", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two"} })
		a.get("/ojs/v1/jobs", "Authorization: Bearer one").is(200)
		for i := range 20 {
			a.get("/ojs/v1/jobs", fmt.Sprintf("Authorization: Bearer guess-%d", i)).is(401)
		}
		for _, key := range []string{"guess-20", "two"} {
			r := a.get("/ojs/v1/jobs", "Authorization: Bearer "+key).fails(429, "rate_limited", "rate_limited")
			require.Equal(t, r.at("error.details.retry_after_seconds"), r.header.Get("Retry-After"))
			require.Empty(t, r.header.Get("WWW-Authenticate"))
		}
		a.get("/ojs/v1/jobs", "Authorization: Bearer one").is(200)
		a.get("/ojs/v1/jobs", "Authorization: Bearer guess-0").is(401)
		a.get("/ojs/v1/jobs").is(401)
		a.get("/ojs/v1/health", "Authorization: Bearer guess-21").is(200)
	})

	t.Run("IsOffWithoutKeys", func(t *testing.T) {
		t.Parallel()
		setup(t).get("/ojs/v1/jobs", "Authorization: Bearer whatever").is(200)
	})
}
