// Package ojs_test has the tests of the SDK. What a complete SDK needs, and where it is tested:
//
//	transport layer: base path, content type, errors   TestHTTPTransport, TestInjectedTransport, TestSent, TestHeaders
//	enqueue, enqueue batch, get, cancel                TestClient, TestRepeats, TestEnqueueBody, TestEnqueueOptions
//	poll loop, handlers, ack and nack, heartbeats      TestWorkerOutcomes, TestWorkerFetches, TestFetchesWithReports, TestSnooze,
//	                                                   TestWorkerHeartbeats, TestWorkerReports
//	concurrency control                                TestWorkerConcurrency
//	graceful shutdown                                  TestWorkerStop, TestWorkerDirectives; by a signal: TestSDKGuide of internal/e2e
//	enqueue middleware, execution middleware           TestEnqueueMiddleware, TestExecutionMiddleware, TestMiddlewareChain
//	event emitter on client and worker                 TestWorkerEvents, TestClientEvents
//	chain, group, batch                                TestWorkflowDefinitions, TestWorkflows
//	structured errors                                  TestErrorKinds, TestHTTPTransport
//	unit tests, happy and error paths                  all of this package, against fakeserver as the transport
//	the lines of Go in the guides for SDKs             package userguide
//	against a real server                              TestSDKClient, TestSDKAdmin, TestSDKWorkerOutcomes, TestSDKWorkerLosesAJob,
//	                                                   TestSDKWorkerDirectives, TestSDKWorkerBooks, TestSDKExample; with processes that
//	                                                   are killed: TestSDKBooks of cmd/ojsd
package ojs_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// TestMain fails if goroutines of the SDK are left when all tests have ended.
func TestMain(m *testing.M) {
	code := m.Run()
	for begin := time.Now(); code == 0; time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		others := 0
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			if strings.Contains(stack, "ojsd/ojs") && !strings.Contains(stack, "TestMain") {
				others++
			}
		}
		if others == 0 {
			break
		}
		if time.Since(begin) > 10*time.Second {
			fmt.Fprintf(os.Stderr, "%d goroutines are left:\n%s\n", others, stacks)
			code = 1
		}
	}
	os.Exit(code)
}

// waitFor bounds waits for what another goroutine brings.
const waitFor = 2 * time.Minute

// silent drops what clients and workers log.
var silent = slog.New(slog.DiscardHandler)

// server is a server in memory, with assertions.
type server struct{ *fakeserver.Server }

// setup makes a server in memory and a client of it that logs nothing.
func setup(t testing.TB, options ...fakeserver.Option) (server, *ojs.Client) {
	t.Helper()
	s := server{fakeserver.New(options...)}
	c, err := ojs.NewClient(ojs.Config{Transport: s, Logger: silent})
	require.NoError(t, err)
	return s, c
}

func (s server) list(jobType string, matches []ojstest.Match) []*ojs.Job {
	return s.Jobs(func(j *ojs.Job) bool {
		return j.Type == jobType && !slices.ContainsFunc(matches, func(m ojstest.Match) bool { return !m(j) })
	})
}

func (s server) RequireEnqueued(t testing.TB, jobType string, matches ...ojstest.Match) *ojs.Job {
	t.Helper()
	list := s.list(jobType, matches)
	require.Len(t, list, 1, jobType)
	return list[0]
}

func (s server) RequireNotEnqueued(t testing.TB, jobType string, matches ...ojstest.Match) {
	t.Helper()
	require.Empty(t, s.list(jobType, matches), jobType)
}

func (s server) RequireState(t testing.TB, id string, state ojs.JobState) *ojs.Job {
	t.Helper()
	j := s.Job(id)
	require.Equal(t, state, j.State, "job ", id, " of type ", j.Type)
	return j
}

// Drain runs a worker until no job is available or active.
func (s server) Drain(t testing.TB, w *ojs.Worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- w.Start(ctx)
	}()
	s.AwaitIdle(ctx)
	require.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded, "jobs were left")
	cancel()
	require.NoError(t, <-done)
}

// start runs a worker until the test ends or stop is called, which returns what Start has returned.
func start(t testing.TB, w *ojs.Worker) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
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
