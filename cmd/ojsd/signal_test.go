package main

import (
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/testdir"
)

// A hangup changes nothing, and a planned stop leaves no line at ERROR, although load balancers ask a node that is not ready any more.
func TestSignals(t *testing.T) {
	t.Parallel()
	n := newNode(t, dbtest.URL(t), "OJS_SHUTDOWN_DELAY=1s", "OJS_LOGGING_LEVEL=info")
	n.args = n.args[:len(n.args)-2] // the level
	n.start()
	require.NoError(t, n.cmd.Process.Signal(syscall.SIGHUP))
	n.is(http.StatusCreated, "POST", "/ojs/v1/jobs", `{"type":"t","args":[]}`)
	require.NoError(t, n.cmd.Process.Signal(syscall.SIGTERM))
	n.answers("/readyz", http.StatusServiceUnavailable)
	require.NoError(t, n.cmd.Wait())
	log := n.log.String()
	require.Contains(t, log, "SIGHUP is ignored")
	require.Contains(t, log, "server stopped")
	require.NotContains(t, log, `"severity":"ERROR"`)
	for line := range strings.Lines(log) {
		// A healthy node warns of nothing but its settings, and of a machine that stood still.
		warns := strings.Contains(line, `"severity":"WARN"`) && !strings.Contains(line, "OJS_") && !strings.Contains(line, "lasted_ms")
		require.False(t, warns, line)
	}
}

// The private PostgreSQL of a development server must not outlive it.
func TestHangupStopsDev(t *testing.T) {
	t.Parallel()
	// Under nohup the tests ignore the signal, and the server would inherit that. What a process catches, its children do not ignore.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	dir, err := testdir.Make("ojsd-dev-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	n := newNode(t, "", "DATABASE_URL=")
	n.args = []string{"dev", "--data-dir=" + dir, "--listen", strings.TrimPrefix(n.base, "http://")}
	n.start()
	require.NoError(t, n.cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, n.cmd.Wait())
	require.NoFileExists(t, dir+"/pgdata/postmaster.pid")
}
