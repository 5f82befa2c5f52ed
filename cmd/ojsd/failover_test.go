package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestFailover stops a primary at once under load, and promotes its hot standby. A node that knows both goes on by itself; one that
// knows the standby alone is not ready before. Every job that was acknowledged is there, once.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := dbtest.Cluster(t)
	standby := dbtest.Standby(t, primary)
	promoted := standby.URL(dbtest.ClusterDatabase)
	both := startNode(t, bothHosts(t, primary.URL(dbtest.ClusterDatabase), promoted))
	one := newNode(t, promoted, "OJS_TENANCY=off") // which it cannot store yet
	one.launch()
	one.answers("/readyz", http.StatusServiceUnavailable)
	one.until(func() bool {
		status, answer := one.call("GET", "/readyz", "")
		return status == 503 && answer.Get("checks.database").String() == "read_only"
	})
	require.Equal(t, "read_only", one.is(503, "GET", "/health", "").Get("backend.connection").String())
	one.is(503, "POST", "/ojs/v1/jobs", `{"type":"t","args":[]}`)

	const enough = 20
	c := newCrashTest(t, 0)
	c.nodes = []*serverProcess{both}
	acknowledged := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.stored)
	}
	producing, stop := context.WithCancel(t.Context())
	defer stop()
	var producers sync.WaitGroup
	for n := range 4 {
		producers.Go(func() { c.produce(producing, t.Context(), n) })
	}
	both.until(func() bool { return acknowledged() >= enough })
	require.NoError(t, primary.Kill())
	before := acknowledged()
	promote(t, promoted)
	both.until(func() bool { return acknowledged() >= before+enough })
	one.answers("/readyz", http.StatusOK)
	stop()
	producers.Wait()

	for id := range c.stored {
		one.is(200, "GET", "/ojs/v1/jobs/"+id, "")
	}
	require.Equal(t, len(c.stored), c.countLive(promoted))
	both.answers("/readyz", http.StatusOK)
	t.Logf("%d jobs acknowledged, %d of them before the failover", len(c.stored), before)
	id := one.is(201, "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"last"}`).Get("job.id").String()
	require.Equal(t, id, both.is(200, "POST", "/ojs/v1/workers/fetch", `{"queues":["last"],"wait_ms":20000}`).Get("jobs.0.id").String())
	one.is(200, "POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`)
	for _, node := range []*serverProcess{one, both} {
		node.until(func() bool {
			return len(node.is(200, "GET", "/ojs/v1/events?job_id="+id, "").Get("events").Array()) == 3
		})
	}
	conn, err := pgx.Connect(t.Context(), promoted)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var epochs int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM ojs.event_epochs").Scan(&epochs))
	require.Equal(t, 1, epochs, "the log of the standby is another one than that of the primary")
}

// bothHosts is the URL of a database that is on one host or on the other.
func bothHosts(t *testing.T, one, other string) string {
	t.Helper()
	u, err := url.Parse(one)
	require.NoError(t, err)
	v, err := url.Parse(other)
	require.NoError(t, err)
	return strings.Replace(one, u.Host, u.Host+","+v.Host, 1) + "&target_session_attrs=read-write"
}

// promote makes a standby a primary.
func promote(t *testing.T, standby string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), standby)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var done bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_promote()").Scan(&done))
	require.True(t, done)
}
