package e2e_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestManifest covers docs/reference/http.md, Manifest and Official clients.
func TestManifest(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("DecodesIntoTheGoSDKsTypes", func(t *testing.T) {
		t.Parallel()
		var m struct {
			OJSVersion       string            `json:"ojs_version"`
			Implementation   map[string]string `json:"implementation"`
			ConformanceLevel int               `json:"conformance_level"`
			Protocols        []string          `json:"protocols"`
			Backend          string            `json:"backend"`
			Capabilities     map[string]bool   `json:"capabilities"`
			Extensions       []string          `json:"extensions"`
			Endpoints        map[string]string `json:"endpoints"`
		}
		require.NoError(t, json.Unmarshal([]byte(a.in(t).get("/ojs/manifest").is(200).body), &m))
		require.Equal(t, "1.0", m.OJSVersion)
		require.Equal(t, "postgres", m.Backend)
		require.Contains(t, m.Protocols, "http")
		require.Len(t, m.Implementation, 4)
		require.Equal(t, "1.2.3", m.Implementation["version"])
		for _, member := range []string{"name", "language", "homepage"} {
			require.NotEmpty(t, m.Implementation[member])
		}
		for _, name := range []string{"batch_enqueue", "cron_jobs", "dead_letter", "delayed_jobs", "fair_scheduling", "job_ttl", "priority_queues", "rate_limiting", "schema_validation", "unique_jobs", "workflows", "pause_resume", "bulk_operations", "events", "webhooks"} {
			require.Contains(t, m.Capabilities, name)
		}
		for _, name := range []string{"urn:ojs:ext:bulk-operations", "urn:ojs:ext:fair-scheduling", "urn:ojs:ext:payload-limits", "urn:ojsd:ext:long-polling", "urn:ojsd:ext:batch-ack", "urn:ojsd:ext:requeue-delay", "urn:ojsd:ext:retry-delay", "urn:ojsd:ext:dry-run"} {
			require.Contains(t, m.Extensions, name)
		}
		require.Equal(t, a.url+"/ojs/v1", m.Endpoints["base_url"])
		require.Equal(t, "/ojs/manifest", m.Endpoints["manifest"])
		require.Equal(t, "/ojs/v1/health", m.Endpoints["health"])
		require.Equal(t, "/ojs/v1/events/stream", m.Endpoints["events_stream"])
		require.Equal(t, "/ojs/v1/ws", m.Endpoints["websocket"])
		require.True(t, m.Capabilities["realtime"])
		require.Contains(t, m.Extensions, "urn:ojs:ext:realtime")
	})

	t.Run("ShowsTheVersionTwiceAndTheLimits", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).get("/ojs/manifest")
		require.Equal(t, "1.0", r.at("specversion"))
		require.Equal(t, "runtime", r.at("conformance_tier"))
		require.Equal(t, "1.0.0", r.at("test_suite_version"))
		for member, want := range map[string]string{
			"max_envelope_bytes": "1048576", "max_meta_bytes": "65536", "max_queue_name_bytes": "128", "max_job_type_bytes": "255", "max_batch_size": "10000",
			"supported_compression": `["gzip"]`, "external_references": "true", "chunking": "false", "per_queue_limits": "false",
		} {
			require.Equal(t, want, r.at("payload_limits."+member), member)
		}
		require.True(t, r.has("schema_validation"))
		require.Equal(t, "true", r.at("capabilities.unique_jobs"))
		require.Equal(t, "strong", r.at("unique_job_strength"))
		require.Equal(t, `["notify","poll","sse","websocket","webhook"]`, r.at("events.transports"))
	})

	t.Run("FollowsTheConfiguration", func(t *testing.T) {
		t.Parallel()
		b := setup(t, func(c *app.Config) {
			c.Server.PublicURL, c.Jobs.MaxJobBytes, c.Server.MaxBatchSize = &url.URL{Scheme: "https", Host: "jobs.example"}, 2_000_000, 1000
		})
		r := b.get("/ojs/manifest")
		require.Equal(t, "https://jobs.example/ojs/v1", r.at("endpoints.base_url"))
		require.Equal(t, "2000000", r.at("payload_limits.max_envelope_bytes"))
		require.Equal(t, "1000", r.at("payload_limits.max_batch_size"))
		b.post("/ojs/v1/jobs", `{"type":"t","args":["`+repeated('x', 1_900_000)+`"]}`).is(201)
		b.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{},`, 1001), ",")+`]}`).is(413)
		require.Equal(t, "https://"+strings.TrimPrefix(a.url, "http://")+"/ojs/v1", a.in(t).get("/ojs/manifest", "X-Forwarded-Proto: https").at("endpoints.base_url"))
	})
}

// TestHealth covers docs/reference/http.md, Health; docs/reference/observability.md, Health. Health without a database is tested in outage_test.go.
func TestHealth(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Detailed", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/ojs/v1/health", "/health"} {
			r := a.get(path).is(200)
			for member, want := range map[string]string{"version": "1.0", "server_version": "1.2.3", "backend.type": "postgres", "backend.connection": "connected"} {
				require.Equal(t, want, r.at(member))
			}
			require.Regexp(t, serverTime, r.at("timestamp"))
			for _, number := range []string{"uptime_seconds", "backend.latency_ms", "queues.total", "queues.active", "queues.paused"} {
				require.Regexp(t, `^\d+$`, r.at(number), number)
			}
			for _, component := range []string{"listener", "publisher", "scheduler"} {
				require.NotEmpty(t, r.at("components."+component))
			}
		}
		eventually(t, func() bool { return a.get("/health").at("status") == "ok" })
	})

	t.Run("Short", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/healthz", "/livez"} {
			require.Equal(t, `{"status":"ok"}`, a.get(path).is(200).body)
		}
		for _, path := range []string{"/ready", "/readyz"} {
			r := a.get(path).is(200)
			require.Equal(t, "ready", r.at("status"))
			require.Equal(t, "ok", r.at("checks.database"))
		}
	})
}
