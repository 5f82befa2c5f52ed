// Package golden_test records what clients see: it sends every route of the HTTP interface and every RPC a table of requests, and
// compares each exchange with a file in testdata/golden, one per route or RPC. A difference is a change for clients, wanted or not.
//
// http_routes_test.go and grpc_rpcs_test.go declare each route and RPC once: a good request, and its members with their kinds.
// http_cases_test.go and grpc_cases_test.go make the cases from that by rule: each member missing, null, of each other type, out of
// range, too long, twice; bodies that are no JSON; unknown and malformed ids; another tenant's; two errors at once. fixtures_test.go makes what requests
// name ($active is a new job that runs), normalize_test.go replaces what differs from run to run, file_test.go writes and compares.
//
//	make goldens                                  # rewrite the files and list those that differ; then: git diff internal/e2e/golden
//	go test ./internal/e2e/golden                 # compare
//	go test ./internal/e2e/golden -run 'HTTP/GET_ojs_v1_jobs$' -update
package golden_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/ojsd/ojsd/internal/dbtest"
)

var update = flag.Bool("update", false, "rewrite the goldens instead of comparing with them")

// TestMain runs twice as many routes at a time as there are processors, because most of them wait for the database.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	dbtest.Main(m)
}
