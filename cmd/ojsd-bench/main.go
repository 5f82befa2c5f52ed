// Command ojsd-bench is a load generator. It drives a running server over HTTP the way producers and workers do,
// measures it, and checks every job: each acknowledged enqueue must be fetched exactly once, and its ack must succeed.
//
// The program is made of scenarios (runner.go has their list), one file each: null, enqueue, unique, drain, mixed, latency,
// streams, webhooks, cost, schedule, crowd, backlog, pinned, workflow, control, sdk, steady. They share the simulated client (client.go, calls.go), the group of
// clients that work on one queue (load.go), the check of all jobs (jobs.go) and the output (figure.go).
//
// It usually shares the machine with the server and the database that it measures, so it must use little CPU: one
// goroutine and one connection per simulated client, request bodies built beforehand, and no JSON decoding beyond the
// members it needs. It imports no package of the server, because a bug there would then hide itself here, but for embedpg,
// which starts PostgreSQL for --private; package ojs is what scenario sdk measures.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() {
	// After the first signal the default is restored, so that a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process. It returns the exit code: 0 for success, 1 for an error or figures that are not
// valid, 2 for wrong flags.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cfg := config{stdout: stdout, stderr: stderr}
	exited := -1 // what --help wants to exit with
	parser, err := kong.New(&cfg,
		kong.Name("ojsd-bench"),
		kong.Description("Measures a running ojsd server. Figures go to stdout as JSON lines and to stderr as text."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }))
	if err != nil {
		panic(err) // a mistake in the struct tags of config
	}
	_, err = parser.Parse(args)
	switch {
	case exited >= 0:
		return exited
	case err != nil:
	case cfg.NullServer:
		err = serveNull(stdin, stdout)
	default:
		err = runScenarios(ctx, cfg)
	}
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "ojsd-bench:", err)
	if _, ok := errors.AsType[*kong.ParseError](err); ok {
		return 2
	}
	return 1
}
