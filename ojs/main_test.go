// Package ojs_test has the tests of the SDK. What a complete SDK needs, and where it is tested:
//
//	transport layer: base path, content type, errors   TestHTTPTransport, TestInjectedTransport
//	enqueue, enqueue batch, get, cancel                TestClient, TestRepeats
//	poll loop, handlers, ack and nack, heartbeats      TestWorkerOutcomes, TestWorkerFetches, TestFetchesWithReports, TestSnooze,
//	                                                   TestWorkerHeartbeats, TestWorkerReports
//	concurrency control                                TestWorkerConcurrency
//	graceful shutdown                                  TestWorkerStop, TestWorkerDirectives; by a signal: TestSDKExample of internal/e2e
//	enqueue middleware, execution middleware           TestEnqueueMiddleware, TestExecutionMiddleware, TestMiddlewareChain
//	chain, group, batch                                TestWorkflowDefinitions, TestWorkflows
//	structured errors                                  TestErrorKinds, TestHTTPTransport
//	unit tests, happy and error paths                  all of this package, against ojstest as the transport
//	against a real server                              TestSDKClient, TestSDKAdmin, TestSDKWorkerOutcomes, TestSDKWorkerLosesAJob,
//	                                                   TestSDKWorkerDirectives, TestSDKWorkerBooks, TestSDKExample; with processes that
//	                                                   are killed: TestSDKBooks of cmd/ojsd
package ojs_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitFor bounds waits for what another goroutine brings.
const waitFor = 2 * time.Minute

// silent drops what clients and workers log.
var silent = slog.New(slog.DiscardHandler)

// setup makes a server in memory and a client of it that waits little between tries.
func setup(t testing.TB, options ...ojstest.Option) (*ojstest.Server, *ojs.Client) {
	t.Helper()
	s := ojstest.New(options...)
	c, err := ojs.NewClient(ojs.Config{Transport: s, Logger: silent})
	require.NoError(t, err)
	return s, c
}

// start runs a worker until the test ends or stop is called, which returns what Run has returned.
func start(t testing.TB, w *ojs.Worker) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var result error
	ended := false
	stop = func() error {
		if !ended {
			cancel()
			select {
			case result = <-done:
			case <-time.After(waitFor):
				require.Fail(t, "the worker does not stop")
			}
			ended = true
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// eventually waits for what another goroutine brings.
func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for begin := time.Now(); !condition(); time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(begin), waitFor, "it did not happen")
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitFor):
		require.Fail(t, "nothing came")
		panic("unreachable")
	}
}

// email is what most jobs of these tests have as arguments.
type email struct {
	To string `json:"to"`
}

func (email) JobType() string { return "email.send" }
