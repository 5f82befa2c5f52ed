package e2e_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/observe/logging"
)

func TestStop(t *testing.T) {
	t.Parallel()

	t.Run("EndsWaitingFetches", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		got := a.parked("q", `"wait_ms":20000`)
		start := time.Now()
		require.NoError(t, a.server.Stop())
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), 5*time.Second)
		_, err := net.Dial("tcp", a.server.Addr())
		require.Error(t, err)
		require.NoError(t, a.server.Stop()) // again does nothing
	})

	t.Run("LetsRequestsFinish", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		a := setup(t, func(c *app.Config) { c.DatabaseURL = url })
		release := lockJobs(t, url)
		pushed := make(chan reply, 1)
		go func() { pushed <- a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`) }()
		waitForLock(t, url)
		stopped := make(chan error, 1)
		go func() { stopped <- a.server.Stop() }()
		eventually(t, func() bool {
			conn, err := net.Dial("tcp", a.server.Addr())
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
		url := dbtest.URL(t)
		var log bytes.Buffer
		config := settings(url)
		config.ShutdownTimeout, config.Logger = 50*time.Millisecond, logging.New(&log, "json", slog.LevelWarn)
		s, err := app.Start(t.Context(), config)
		require.NoError(t, err)
		release := lockJobs(t, url)
		conn, err := net.Dial("tcp", s.Addr())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		_, err = fmt.Fprintf(conn, "GET /ojs/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		waitForLock(t, url)
		time.AfterFunc(200*time.Millisecond, release) // Stop waits for connections that are in use
		require.NoError(t, s.Stop())
		require.Contains(t, log.String(), "requests did not end in time")
	})
}
