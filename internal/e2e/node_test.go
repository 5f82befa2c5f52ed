package e2e_test

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// api is a running node and a client of it.
type api struct {
	t      testing.TB
	server *app.Node
	client *http.Client
	url    string

	database string // its URL
}

// settings are those of a server for which nothing is set but its database and addresses of its own, without gRPC.
func settings(databaseURL string) app.Config {
	c := app.FromConfig(config.Default(), silent, "1.2.3")
	c.DatabaseURL, c.Listen, c.GRPC.Enabled, c.GRPC.Listen = databaseURL, "127.0.0.1:0", false, "127.0.0.1:0"
	return c
}

// setup starts a node on a database of the test's own and stops it at its end.
func setup(t testing.TB, change ...func(*app.Config)) *api {
	t.Helper()
	config := settings(dbtest.URL(t))
	config.DatabaseMaxConns, config.TestReset = 8, true
	for _, c := range change {
		c(&config)
	}
	s, err := app.Start(t.Context(), config)
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, s.Stop())
	})
	return &api{t, s, &http.Client{Transport: transport}, "http://" + s.Addr(), config.DatabaseURL}
}

// in is the same node for a subtest.
func (a *api) in(t testing.TB) *api {
	b := *a
	b.t = t
	return &b
}

// nodes are two servers on one database.
func nodes(t *testing.T, change ...func(*app.Config)) (one, two *api) {
	t.Helper()
	target := dbtest.URL(t)
	change = append(change, func(c *app.Config) { c.DatabaseURL = target })
	return setup(t, change...), setup(t, change...)
}

var silent = slog.New(slog.DiscardHandler)

// waitFor bounds each wait of a test. A wait costs it only if the test fails, so it leaves room for a busy machine.
const waitFor = time.Minute

// eventually waits for what another goroutine or the server's timers bring.
func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for start := time.Now(); !condition(); time.Sleep(5 * time.Millisecond) {
		require.Less(t, time.Since(start), waitFor, "it did not happen")
	}
}

func deadAfter(d time.Duration) func(*app.Config) {
	return func(c *app.Config) { c.WorkerDeadAfter = d }
}

// quick makes gauges fresh at each scrape.
func quick(c *app.Config) { c.Metrics.GaugeInterval = time.Millisecond }
