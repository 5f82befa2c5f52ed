package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// call runs the program and returns its exit code and output.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(context.Background(), args, &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("Help", func(t *testing.T) {
		t.Parallel()
		code, stdout, _ := call(t, "--help")
		require.Zero(t, code)
		require.Contains(t, stdout, "migrate")
		require.NotContains(t, stdout, "healthcheck")
		for _, args := range [][]string{{"-h"}, {"help"}} {
			code, other, stderr := call(t, args...)
			require.Zero(t, code, stderr)
			require.Equal(t, stdout, other)
		}
		_, want, _ := call(t, "migrate", "up", "--help")
		code, stdout, stderr := call(t, "help", "migrate", "up")
		require.Zero(t, code, stderr)
		require.Equal(t, want, stdout)
		require.Contains(t, stdout, "Apply all migrations")
		code, _, stderr = call(t, "help", "nonsense")
		require.NotZero(t, code)
		require.Contains(t, stderr, "nonsense")
	})

	t.Run("RejectsWrongCalls", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"nonsense"}, {"version", "--nonsense"}, {"config", "--logging-level=loud"}, {"config", "--format=xml"}, {"serve"}} {
			code, _, stderr := call(t, args...)
			require.Equal(t, 2, code, args)
			require.Contains(t, stderr, "ojsd: ", args)
		}
	})

	t.Run("NamesEverySettingThatIsWrong", func(t *testing.T) {
		t.Parallel()
		code, _, stderr := call(t, "serve", "--jobs-timeout=soon", "--metrics-require-auth=perhaps", "--events-max-count=-1")
		require.Equal(t, 2, code)
		require.Equal(t, []string{
			`ojsd: --jobs-timeout must be a duration from 1ms to 36500d, such as 30s, 15m or 7d; it is "soon"`,
			`ojsd: --events-max-count must be a whole number from 0 to 1000000000000; it is "-1"`,
			`ojsd: --metrics-require-auth must be true or false; it is "perhaps"`,
		}, strings.Split(stderr, "\n")[:3])
		require.Contains(t, stderr, "ojsd: no database")
	})

	t.Run("ReportsErrors", func(t *testing.T) {
		t.Parallel()
		code, _, stderr := call(t, "migrate", "up", "--database-url=postgres://nobody@127.0.0.1:1/none")
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "connect to the database")
	})
}

func TestVersion(t *testing.T) {
	t.Parallel()
	code, stdout, _ := call(t, "version")
	require.Zero(t, code)
	require.Regexp(t, `^ojsd \S+ \(commit \S+, go1\S+\)\n$`, stdout)
	code, flag, stderr := call(t, "--version")
	require.Zero(t, code, stderr)
	require.Equal(t, stdout, flag)

	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"},
	}}
	require.Equal(t, "v1.2.3", buildVersion(info))
	require.Equal(t, "0123456789ab+", commit(info))
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := "--database-url=" + dbtest.EmptyURL(t)

	_, stdout, stderr := call(t, "migrate", "status", url)
	require.Contains(t, stdout, "00001_jobs.sql")
	require.NotContains(t, stdout, "applied", stderr)

	code, stdout, stderr := call(t, "migrate", "up", url)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "up 00001_jobs.sql")
	require.NotContains(t, stdout, "nothing to do")
	_, stdout, _ = call(t, "migrate", "up", url)
	require.Contains(t, stdout, "nothing to do")
	_, stdout, _ = call(t, "migrate", "status", url)
	require.NotContains(t, stdout, "pending")
	require.Regexp(t, `00001_jobs\.sql +applied +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\n`, stdout)

	for range strings.Count(stdout, "applied") {
		code, stdout, stderr = call(t, "migrate", "down", url)
		require.Zero(t, code, stderr)
	}
	require.Contains(t, stdout, "down 00001_jobs.sql")
	conn, err := pgx.Connect(t.Context(), strings.TrimPrefix(url, "--database-url="))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE TABLE ojs.events ()`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	code, stdout, stderr = call(t, "migrate", "up", url)
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "up 00001_jobs.sql", "what came before the one that failed")
	require.NotContains(t, stdout, "nothing to do")
	require.Contains(t, stderr, "version:2")
	_, stdout, _ = call(t, "migrate", "down", url)
	require.Contains(t, stdout, "down 00001_jobs.sql")
	code, _, stderr = call(t, "migrate", "down", url)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "nothing to roll back")
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	status, path := make(chan int, 1), make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path <- r.URL.Path
		w.WriteHeader(<-status)
	}))
	t.Cleanup(server.Close)
	listen := "--listen=" + server.Listener.Addr().String()

	status <- http.StatusOK
	code, _, stderr := call(t, "healthcheck", listen)
	require.Zero(t, code, stderr)
	require.Equal(t, "/healthz", <-path)
	status <- http.StatusServiceUnavailable
	code, _, _ = call(t, "healthcheck", "--ready", listen)
	require.Equal(t, 1, code)
	require.Equal(t, "/readyz", <-path)
	code, _, _ = call(t, "healthcheck", "--listen=127.0.0.1:1")
	require.Equal(t, 1, code)
	server.Close()
	secure := httptest.NewTLSServer(server.Config.Handler)
	t.Cleanup(secure.Close)
	status <- http.StatusOK
	code, _, stderr = call(t, "healthcheck", "--listen="+secure.Listener.Addr().String(), "--tls-cert=c", "--tls-key=k")
	require.Zero(t, code, stderr)
	require.Equal(t, "/healthz", <-path)

	for listen, want := range map[string]string{
		":8080": "127.0.0.1:8080", "0.0.0.0:1": "127.0.0.1:1", "[::]:2": "[::1]:2", "10.0.0.1:3": "10.0.0.1:3", "host:4": "host:4",
	} {
		address, err := dialAddress(listen)
		require.NoError(t, err)
		require.Equal(t, want, address)
	}
}

// TestRunHidesValues: an error names the setting with the wrong key or URL and does not show its value.
func TestRunHidesValues(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	for name, value := range map[string]string{
		"OJS_WEBHOOKS_ENCRYPTION_KEY": good + ",c2hvcnQ=", "OJS_WEBHOOKS_PROXY_URL": "http://u:PASSWORD%PW@h",
		"DATABASE_URL": "postgres://u:PASSWORD%PW@h/x", "DATABASE_LISTEN_URL": "postgres://u:PASSWORD@h:port/x", "OJS_API_KEY": "PASSWORD,,",
		"OJS_PUBLIC_URL": "PASSWORD",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			var out, errs bytes.Buffer
			require.Equal(t, 2, run(t.Context(), []string{"serve", "--listen", "127.0.0.1:0"}, &out, &errs))
			output := out.String() + errs.String()
			require.NotContains(t, output, good)
			require.NotContains(t, output, "PASSWORD")
			require.Contains(t, output, "ojsd: "+name+" must be ")
		})
	}
}
