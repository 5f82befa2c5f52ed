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

// node is a running node and a client of its HTTP interface.
type node struct {
	t      testing.TB
	app    *app.Node
	client *http.Client
	url    string

	database string // its URL
	session  *session
}

// settings are the defaults, with a database, free ports and without gRPC. Streams are neither kept alive nor closed for a client
// that is late, because a busy machine makes every client late.
func settings(databaseURL string) app.Config {
	c := app.Config{Config: config.Default(), Logger: silent, Version: "1.2.3"}
	c.Database.URL, c.Server.Listen, c.GRPC.Listen = databaseURL, "127.0.0.1:0", "off"
	c.Realtime.KeepAlive, c.Realtime.WriteTimeout = time.Hour, time.Hour
	return c
}

// setup starts a node on a new database, unless a change names one, and stops it at the end of the test.
func setup(t testing.TB, change ...func(*app.Config)) *node {
	t.Helper()
	c := settings("")
	// A connection costs PostgreSQL a process that plans each statement anew, and the tests start hundreds of nodes: with eight
	// connections a third more processor time than with three.
	c.Database.MaxConns, c.Tests.EnableReset = 3, true
	for _, f := range change {
		f(&c)
	}
	if c.Database.URL == "" {
		c.Database.URL = dbtest.URL(t)
	}
	s, err := app.Start(t.Context(), c)
	require.NoError(t, err)
	transport, own := &http.Transport{MaxIdleConnsPerHost: 64}, &session{}
	t.Cleanup(func() {
		own.close()
		transport.CloseIdleConnections()
		require.NoError(t, s.Stop())
	})
	return &node{t, s, &http.Client{Transport: transport}, "http://" + s.Addr(), c.Database.URL, own}
}

// connections bounds the pool of a node.
func connections(n int) func(*app.Config) {
	return func(c *app.Config) { c.Database.MaxConns = n }
}

// in is the same node for a subtest.
func (a *node) in(t testing.TB) *node {
	b := *a
	b.t = t
	return &b
}

// another starts one more node on the same database.
func (a *node) another(change ...func(*app.Config)) *node {
	a.t.Helper()
	return setup(a.t, append([]func(*app.Config){on(a.database)}, change...)...)
}

// nodes are two nodes on one new database.
func nodes(t testing.TB, change ...func(*app.Config)) (one, two *node) {
	t.Helper()
	one = setup(t, change...)
	return one, one.another(change...)
}

// on names the database.
func on(url string) func(*app.Config) {
	return func(c *app.Config) { c.Database.URL = url }
}

// rarePolls has the node look for due times of other nodes only every hour, so that what becomes due in time shows that a
// timer was set for it.
func rarePolls(c *app.Config) { c.Jobs.DuePollInterval = time.Hour }

// slowStatements gives statements on thousands of jobs the time that they may take on a busy machine.
func slowStatements(c *app.Config) { c.Database.StatementTimeout = waitFor }

// patientStop has a stop wait for ten minutes, so that a test in which it waits for requests at all does not pass.
func patientStop(c *app.Config) { c.Server.ShutdownTimeout = 10 * time.Minute }

// silent drops what a node logs.
var silent = slog.New(slog.DiscardHandler)

// waitFor bounds each wait of a test. A wait costs it only if the test fails, so it leaves room for a busy machine.
const waitFor = 2 * time.Minute

// beforeItsTime is less than the 20 s that fetches and waits for results in these tests may take, and much more than they
// take if something ends them.
const beforeItsTime = 15 * time.Second

// eventually waits for what another goroutine or the server's timers bring.
func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for start := time.Now(); !condition(); time.Sleep(5 * time.Millisecond) {
		require.Less(t, time.Since(start), waitFor, "it did not happen")
	}
}

// ready waits until the node is ready: on a busy machine a look at the database may take longer than the second that it has.
func (a *node) ready() {
	a.t.Helper()
	eventually(a.t, func() bool { return a.get("/readyz").status == http.StatusOK })
}

// deadAfter is the silence after which a worker is dead.
func deadAfter(d time.Duration) func(*app.Config) {
	return func(c *app.Config) { c.Workers.DeadAfter = d }
}

// freshGauges reads the gauges anew for each scrape.
func freshGauges(c *app.Config) { c.Metrics.GaugeInterval = time.Millisecond }
