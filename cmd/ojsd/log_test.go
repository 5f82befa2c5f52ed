package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestLogOfAStart covers docs/reference/observability.md, Logs: FATAL if the server cannot start, and a summary of the settings
// without secrets.
func TestLogOfAStart(t *testing.T) {
	t.Parallel()

	t.Run("FatalIfItCannotStart", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{
			{"--database-url=postgres://joe:pa55word@127.0.0.1:1/none"}, {"--database-url=host=127.0.0.1 port=1 user=joe password=pa55word"},
			{"--database-url=" + dbtest.EmptyURL(t), "--api-key=pa55word"},
			{"--database-url=" + dbtest.EmptyURL(t), "--webhooks-ca-file=/nowhere/ca.pem"},
		} {
			code, _, stderr := call(t, append([]string{"serve"}, args...)...)
			require.Equal(t, 1, code)
			require.NotContains(t, stderr, "pa55word")
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			var fatal struct {
				Severity string
				Number   int `json:"severity_number"`
				Error    struct{ Type, Message string }
			}
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &fatal), stderr)
			require.Equal(t, "FATAL", fatal.Severity)
			require.Equal(t, 21, fatal.Number)
			require.NotEmpty(t, fatal.Error.Message)
		}
	})

	t.Run("SummaryWithoutSecrets", func(t *testing.T) {
		t.Parallel()
		stderr := runUntilReady(t, "serve", "--migrate", "--database-url="+dbtest.EmptyURL(t), "--api-key=pa55word", "--jobs-max-size=2MiB",
			"--public-url=http://joe:pa55word@example.com/x?y=pa55word", "--jobs-timeout=1800s")
		require.NotContains(t, stderr, "pa55word")
		var first struct {
			Message    string
			Attributes map[string]string
		}
		require.NoError(t, json.Unmarshal([]byte(strings.Split(stderr, "\n")[0]), &first), stderr)
		require.Equal(t, "settings that differ from the defaults", first.Message)
		for name, want := range map[string]string{
			"OJS_API_KEY": "(set)", "OJS_JOBS_MAX_SIZE": "2MiB", "OJS_PUBLIC_URL": "http://example.com/x", "OJS_MIGRATE": "true",
		} {
			require.Equal(t, want, first.Attributes[name], name)
		}
		require.Contains(t, first.Attributes["DATABASE_URL"], "postgres://")
		require.NotContains(t, first.Attributes, "OJS_JOBS_TIMEOUT", "the default in other words")
		require.NotContains(t, first.Attributes, "OJS_LOGGING_LEVEL")
	})
}

// TestUnknownVariablesAreReported: the log names a mistyped variable and the setting that is nearest.
func TestUnknownVariablesAreReported(t *testing.T) {
	t.Setenv("OJS_JOB_TIMEOUT", "pa55word")
	stderr := runUntilReady(t, "serve", "--migrate", "--database-url="+dbtest.EmptyURL(t))
	require.Contains(t, stderr, `"severity":"WARN"`)
	require.Contains(t, stderr, "OJS_JOB_TIMEOUT has no effect; the nearest setting is OJS_JOBS_TIMEOUT")
	require.NotContains(t, stderr, "pa55word")
}

// TestTracesAreExported: with the variables of OpenTelemetry set, traces arrive, the last ones with the stop.
func TestTracesAreExported(t *testing.T) { // not parallel: the environment is everybody's
	var mu sync.Mutex
	var got strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got.WriteString(r.URL.Path + " " + string(body))
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team=mail")
	runUntilReady(t, "serve", "--migrate", "--database-url="+dbtest.EmptyURL(t), "--events-service-name=billing")
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"/v1/traces ", "GET /readyz", "service.name", "billing", "team"} {
		require.Contains(t, got.String(), want)
	}
	instances := map[string]string{}
	for _, m := range regexp.MustCompile(`(?s)/v1/(traces|metrics) .*?service\.instance\.id\x12.\n.(\d+)`).FindAllStringSubmatch(got.String(), -1) {
		instances[m[1]] = m[2]
	}
	require.NotEmpty(t, instances["traces"])
	require.Equal(t, instances["traces"], instances["metrics"], "one process is one instance")
}

// TestTracesThatCannotBeExported: an endpoint that does not exist does not keep the server from starting and stopping.
func TestTracesThatCannotBeExported(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://joe:pa55word@127.0.0.1:1")
	stderr := runUntilReady(t, "serve", "--migrate", "--database-url="+dbtest.EmptyURL(t))
	require.Contains(t, stderr, "telemetry was not exported")
	require.NotContains(t, stderr, "pa55word")
}
