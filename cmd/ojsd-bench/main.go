// Command ojsd-bench is a load generator. It drives a running server over HTTP the way producers and workers do,
// measures it, and checks every job: each acknowledged enqueue must be fetched exactly once, and its ack must succeed.
//
// scenarios.go has the table of scenarios and measures them; their bodies are in throughput.go, latency.go, subscribers.go,
// crowded.go, workflow.go and control.go. They share the simulated client (client.go, scan.go), the queue with its clients and
// the check of all jobs (load.go), the SQL (database.go) and the output (figure.go). private.go starts what --private measures.
//
// It usually shares the machine with the server and the database that it measures, so it must use little CPU: one
// goroutine and one connection per simulated client, request bodies built beforehand, and no JSON decoding beyond the
// members it needs. It imports no package of the server, because a bug there would then hide itself here, but for embedpg,
// which starts PostgreSQL for --private; package ojs is what scenario sdk measures.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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
		helpVars(),
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

// config is every flag of the program, and a few values that only tests change. Flags whose default depends on --short
// are zero until withDefaults sets them.
type config struct {
	URL         string `name:"url" default:"http://127.0.0.1:8080" help:"Base address of the server."`
	DatabaseURL string `name:"database-url" placeholder:"URL" help:"The server's own database. cost, schedule, crowd and pinned need it; latency uses it for LISTEN, backlog to fill the queue faster."`
	Private     bool   `help:"Start a private PostgreSQL and a server on it, measure that server, and remove both at the end."`
	OJSD        string `name:"ojsd" placeholder:"PATH" help:"The ojsd binary that --private starts. Default: the one in this program's folder, else the one in PATH."`

	Against string `name:"against" placeholder:"PATH" help:"A second ojsd binary, which is measured beside the first in the same rounds, in turn; the figures then have ratios, of the first to the second. Needs --private."`

	Scenarios []string `name:"scenario" sep:"," placeholder:"NAME" help:"Any of ${scenarios}. Default: all that the given access allows; cost not with --short, workflow, control, sdk and steady only by name."`
	Rounds    int      `default:"1" help:"How many times each figure is measured; the output shows median, min and max."`
	Short     bool     `help:"Use small sizes: for a quick look, not for figures to publish."`

	Conns        []int         `sep:"," default:"1,32,128" placeholder:"N" help:"Numbers of connections of enqueue (1,32,128)."`
	Workers      []int         `sep:"," default:"32,128" placeholder:"N" help:"Numbers of workers of drain, backlog and pinned (32,128)."`
	Mixed        []string      `sep:"," default:"4+8,16+32" placeholder:"P+W" help:"Numbers of producers and workers of mixed and cost (4+8,16+32)."`
	Jobs         int           `placeholder:"N" help:"Jobs of one measurement of drain, batch and sdk (50000; short 10000)."`
	Duration     time.Duration `placeholder:"TIME" help:"Length of one measurement of null, enqueue, unique, mixed, latency, streams, webhooks, workflow and steady (10s; short 3s)."`
	Rate         int           `default:"400" placeholder:"N" help:"Jobs per second of latency (400)."`
	SteadyRate   int           `name:"steady-rate" default:"300" placeholder:"N" help:"Jobs per second of steady (300); its length is --duration, reported by the minute."`
	Streams      int           `placeholder:"N" help:"SSE subscribers of streams (1000; short 50)."`
	StreamRate   int           `name:"stream-rate" placeholder:"N" help:"Events per second to each subscriber of streams (1000; short 200)."`
	Hooks        int           `placeholder:"N" help:"Subscriptions of webhooks (5; short 2)."`
	HookRate     int           `name:"hook-rate" placeholder:"N" help:"Events per second to each subscription of webhooks (200; short 50)."`
	WaitMS       int           `name:"wait-ms" default:"1000" placeholder:"MS" help:"wait_ms of the fetches of mixed, latency, streams and webhooks, 1 to 20000 (1000)."`
	PollInterval time.Duration `name:"poll" default:"5ms" placeholder:"TIME" help:"Pause of the event poller of latency after an empty page (5ms)."`
	Backlog      int           `default:"10000" placeholder:"N" help:"Jobs that stay waiting in backlog and pinned (10000)."`
	Crowd        int           `placeholder:"N" help:"Jobs that wait in other queues in crowd, and of others in control (200000; short 20000)."`
	Drain        int           `placeholder:"N" help:"Jobs of one measurement of backlog and pinned (20000; short 5000)."`
	Scheduled    int           `placeholder:"N" help:"Jobs of schedule that become due over the next hour (100000; short 10000)."`
	Burst        int           `placeholder:"N" help:"Jobs of schedule that become due at the same moment (50000; short 5000)."`
	ArgsBytes    int           `name:"args" default:"100" placeholder:"BYTES" help:"Size of a job's args (100)."`

	NullServer bool `hidden:"" help:"Be the server that scenario null measures, until stdin ends."`

	stdout, stderr io.Writer     // stdout gets one JSON line per figure, stderr the text for people
	executable     string        // this program, which also is the server of null
	mixes          []mix         // of Mixed
	stallTimeout   time.Duration // a missing job counts as lost when nothing has moved for so long
	pause          time.Duration // between filling a queue and measuring
	probe          time.Duration // length of each measurement of the machine
	statsDelay     time.Duration // PostgreSQL may keep the statistics of an idle session to itself for 10 s
}

// mix is one setting of the scenarios mixed and cost.
type mix struct{ producers, workers int }

func helpVars() kong.Vars { return kong.Vars{"scenarios": strings.Join(scenarioNames(), ", ")} }

// withDefaults fills in what the flags left open, and checks the result. It returns a copy; the flags as they were given are
// not needed any more.
func (c config) withDefaults() (config, error) {
	size := func(full, short int) int {
		if c.Short {
			return short
		}
		return full
	}
	c.Jobs = cmp.Or(c.Jobs, size(50_000, 10_000))
	c.Drain = cmp.Or(c.Drain, size(20_000, 5000))
	c.Scheduled = cmp.Or(c.Scheduled, size(100_000, 10_000))
	c.Burst = cmp.Or(c.Burst, size(50_000, 5000))
	c.Crowd = cmp.Or(c.Crowd, size(200_000, 20_000))
	c.Streams = cmp.Or(c.Streams, size(1000, 50))
	c.StreamRate = cmp.Or(c.StreamRate, size(1000, 200))
	c.Hooks = cmp.Or(c.Hooks, size(5, 2))
	c.HookRate = cmp.Or(c.HookRate, size(200, 50))
	c.Duration = cmp.Or(c.Duration, time.Duration(size(10, 3))*time.Second)
	c.pause = cmp.Or(c.pause, time.Duration(size(1000, 300))*time.Millisecond)
	c.stallTimeout = cmp.Or(c.stallTimeout, 3*time.Second)
	c.statsDelay = cmp.Or(c.statsDelay, 11*time.Second)
	c.probe = cmp.Or(c.probe, time.Second)

	sizes := append(slices.Concat(c.Conns, c.Workers), c.Rounds, c.Rate, c.SteadyRate, c.WaitMS, c.Backlog, c.ArgsBytes,
		c.Jobs, c.Drain, c.Scheduled, c.Burst, c.Crowd, c.Streams, c.StreamRate, c.Hooks, c.HookRate)
	switch {
	case slices.Min(sizes) < 1:
		return c, errors.New("counts and sizes must be at least 1")
	case c.Duration < 0 || c.PollInterval < 0:
		return c, errors.New("--duration and --poll must be positive")
	case c.Against != "" && !c.Private:
		return c, errors.New("--against needs --private")
	}
	for _, name := range c.Scenarios {
		if !slices.Contains(scenarioNames(), name) {
			return c, fmt.Errorf("unknown scenario %q; choose from %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	for _, text := range c.Mixed {
		left, right, _ := strings.Cut(text, "+")
		producers, errLeft := strconv.Atoi(left)
		workers, errRight := strconv.Atoi(right)
		if errLeft != nil || errRight != nil || producers < 1 || workers < 1 {
			return c, fmt.Errorf("--mixed %q: write producers+workers, such as 4+8", text)
		}
		c.mixes = append(c.mixes, mix{producers, workers})
	}
	return c, nil
}
