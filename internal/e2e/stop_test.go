package e2e_test

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

const minimalJob = `{"type":"t","args":[]}`

func TestStop(t *testing.T) {
	t.Parallel()

	t.Run("EndsWaitingFetches", func(t *testing.T) {
		t.Parallel()
		a := setup(t, patientStop)
		got := a.parked("q", `"wait_ms":20000`)
		start := time.Now()
		require.NoError(t, a.app.Stop())
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), beforeItsTime)
		_, err := net.Dial("tcp", a.app.Addr())
		require.Error(t, err)
		require.NoError(t, a.app.Stop()) // again does nothing
	})

	t.Run("ServesOnWhileReadinessFails", func(t *testing.T) {
		t.Parallel()
		const delay = 5 * time.Second // a busy machine must have sent its requests by then
		a := setup(t, func(c *app.Config) { c.Server.ShutdownDelay = delay })
		a.ready()
		stopped := make(chan error, 1)
		start := time.Now()
		go func() { stopped <- a.app.Stop() }()
		eventually(t, func() bool { return a.get("/readyz").status == 503 })
		require.Less(t, time.Since(start), delay)
		a.post("/ojs/v1/jobs", minimalJob).is(201)
		a.get("/readyz").is(503)
		require.NoError(t, <-stopped)
		require.GreaterOrEqual(t, time.Since(start), delay)
		_, err := net.Dial("tcp", a.app.Addr())
		require.Error(t, err)
	})

	t.Run("LetsRequestsFinish", func(t *testing.T) {
		t.Parallel()
		a := setup(t, connections(8))
		release := a.lockJobs()
		pushed := make(chan reply, 1)
		go func() { pushed <- a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`) }()
		a.waitForEnqueue()
		stopped := make(chan error, 1)
		go func() { stopped <- a.app.Stop() }()
		eventually(t, func() bool {
			conn, err := net.Dial("tcp", a.app.Addr())
			if err == nil {
				_ = conn.Close()
			}
			return err != nil
		})
		release()
		(<-pushed).is(201)
		require.NoError(t, <-stopped)
	})

	t.Run("CutsOffRequestsThatDoNotEnd", func(t *testing.T) {
		t.Parallel()
		a, log := setupLogged(t, slog.LevelWarn, connections(8), func(c *app.Config) { c.Server.ShutdownTimeout = 50 * time.Millisecond })
		release := a.lockJobs()
		conn, err := net.Dial("tcp", a.app.Addr())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		_, err = fmt.Fprintf(conn, "POST /ojs/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(minimalJob), minimalJob)
		require.NoError(t, err)
		a.waitForEnqueue()
		stopped := make(chan error, 1)
		go func() { stopped <- a.app.Stop() }()
		eventually(t, func() bool { return strings.Contains(log.String(), "requests did not end within OJS_SHUTDOWN_TIMEOUT") })
		release() // a stop waits for the connections to the database that are in use
		require.NoError(t, <-stopped)
	})
}
