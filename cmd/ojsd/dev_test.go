package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/testdir"
)

// runUntilReady runs a server subcommand and interrupts it as soon as it answers. It returns what it wrote to stderr.
func runUntilReady(t *testing.T, args ...string) string {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	listen := freeAddress(t)
	var stdout, stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append(args, "--listen="+listen, "--grpc-listen=127.0.0.1:0"), &stdout, &stderr)
	}()
	ready := func() bool {
		exit, _, _ := call(t, "healthcheck", "--ready", "--listen="+listen)
		return exit == 0
	}
	require.Eventually(t, ready, 2*time.Minute, 50*time.Millisecond)
	interrupt()
	select {
	case exit := <-code:
		require.Zero(t, exit, stderr.String())
	case <-time.After(2 * time.Minute):
		require.Fail(t, "the program does not end")
	}
	return stderr.String()
}

func TestDev(t *testing.T) {
	t.Setenv("DATABASE_URL", "")

	t.Run("RunsAndStopsItsOwnPostgres", func(t *testing.T) {
		dir, err := testdir.Make("ojsd-dev-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		for range 2 { // the second start finds the data of the first
			stderr := runUntilReady(t, "dev", "--data-dir="+dir)
			require.Contains(t, stderr, "psql 'postgres://postgres@127.0.0.1:")
			before, banner, found := strings.Cut(stderr, "\n\nojsd ") // an empty line before the banner
			require.True(t, found, stderr)
			require.NotContains(t, before, "severity=INFO")
			banner, after, found := strings.Cut(banner, "\n\n")
			require.True(t, found, stderr)
			require.LessOrEqual(t, strings.Count(banner, "\n"), 9)
			addresses := regexp.MustCompile(`HTTP +http://(\S+)\n +gRPC +(\S+)\n`).FindStringSubmatch(banner)
			require.Len(t, addresses, 3, banner)
			require.Contains(t, banner, "http://"+addresses[1]+"/ojs/v1/jobs")
			require.NotEqual(t, addresses[1], addresses[2])
			require.Contains(t, after, "severity=INFO", "the log goes on as usual")
			require.NoFileExists(t, filepath.Join(dir, "pgdata", "postmaster.pid"))
		}
	})

	t.Run("StartsNothingWithDatabaseURL", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		t.Setenv("DATABASE_URL", dbtest.EmptyURL(t))
		stderr := runUntilReady(t, "dev", "--data-dir="+dir, "--logging-level=info", "--api-key=pa55word")
		require.Contains(t, stderr, `psql "$DATABASE_URL"`)
		require.Contains(t, stderr, "Authorization: Bearer KEY")
		require.NotContains(t, stderr, "pa55word")
		require.Regexp(t, `(?s)severity=INFO.*ojsd .* is running`, stderr, "a level that was asked for holds at once")
		require.NoDirExists(t, dir)
	})
}

func TestServe(t *testing.T) {
	url := dbtest.EmptyURL(t)
	code, _, stderr := call(t, "serve", "--database-url="+url)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "OJS_LISTEN=:8080 is open to the network", "there is no key")
	code, _, stderr = call(t, "serve", "--database-url="+url, "--listen="+freeAddress(t), "--grpc-listen=off")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "ojsd migrate up", "the schema is missing")
	runUntilReady(t, "serve", "--migrate", "--database-url="+url)
	runUntilReady(t, "serve", "--database-url="+url)
}
