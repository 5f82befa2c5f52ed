// Package e2e_test drives whole nodes over HTTP, gRPC, event streams and webhooks, on a real Postgres. Tests that need the
// binary, because they kill it or read its output, are in cmd/ojsd.
//
// setup starts a node. Helpers are in node_test.go (nodes), http_test.go (requests and replies), jobs_test.go (calls about jobs and
// workers), grpc_test.go, stream_test.go (SSE and WebSocket), webhook_receiver_test.go, database_test.go (SQL) and
// telemetry_test.go (logs, metrics, traces).
package e2e_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestMain runs twice as many tests at a time as there are processors, because most of them wait. A goroutine of toxiproxy may
// wait for ever for one that a removed toxic has ended.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	dbtest.Main(m, goleak.IgnoreTopFunction("github.com/Shopify/toxiproxy/v2/toxics.(*NoopToxic).Pipe"))
}
