package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ojsd/ojsd/internal/bench"
)

// benchCmd measures a running server. Sizes without a value take the defaults of internal/bench, which are small with
// --short; figures go to stdout as JSON lines and to stderr for people.
type benchCmd struct {
	URL         string `name:"url" default:"http://127.0.0.1:8080" help:"Address of the server."`
	Private     bool   `help:"Start a private Postgres and server for the run instead."`
	DatabaseURL string `name:"database-url" placeholder:"URL" help:"The server's own database: needed by pinned, cost and schedule, used by latency (LISTEN) and backlog."`

	Scenario []string `sep:"," placeholder:"NAME" help:"Any of null, enqueue, batch, drain, mixed, latency, streams, webhooks, cost, schedule, backlog, pinned. Default: all that the given access allows."`
	Rounds   int      `default:"1" help:"Measure everything so often; report median, min and max."`
	Short    bool     `help:"A quick round with small sizes."`

	Conns     []int         `sep:"," placeholder:"N" help:"Connections of enqueue (1,32,128)."`
	Workers   []int         `sep:"," placeholder:"N" help:"Workers of drain, backlog and pinned (32,128)."`
	Mixed     []string      `sep:"," placeholder:"P+W" help:"Producers and workers of mixed and cost (4+8,16+32)."`
	Jobs      int           `placeholder:"N" help:"Jobs of one drain or batch measurement (50000; short 10000)."`
	Duration  time.Duration `placeholder:"TIME" help:"Length of one measurement of null, enqueue, mixed, latency, streams and webhooks (10s; short 3s)."`
	Rate      int           `placeholder:"N" help:"Jobs per second of latency (400)."`
	Streams   int           `placeholder:"N" help:"SSE subscribers of streams (1000; short 50)."`
	StreamHz  int           `name:"stream-rate" placeholder:"N" help:"Events per second to each subscriber of streams (1000; short 200)."`
	Hooks     int           `placeholder:"N" help:"Subscriptions of webhooks (5; short 2)."`
	HookRate  int           `placeholder:"N" help:"Events per second to each subscription of webhooks (200; short 50)."`
	WaitMS    int           `name:"wait-ms" placeholder:"MS" help:"How long workers of mixed and latency wait for jobs (1000)."`
	Poll      time.Duration `placeholder:"TIME" help:"Pause of the event poller after an empty poll (5ms)."`
	Backlog   int           `placeholder:"N" help:"Jobs that stay waiting in backlog and pinned (10000)."`
	Drain     int           `placeholder:"N" help:"Jobs of one measurement of backlog and pinned (20000; short 5000)."`
	Scheduled int           `placeholder:"N" help:"Jobs that wait for a time within the next hour in schedule (100000; short 10000)."`
	Burst     int           `placeholder:"N" help:"Jobs that become due at once in schedule (50000; short 5000)."`
	Args      int           `placeholder:"BYTES" help:"Size of a job's args (100)."`

	NullServer bool `hidden:"" help:"Run the server that scenario null measures, until stdin ends."`
}

// Run takes signals itself, because a private server has to be stopped before the process ends.
func (c *benchCmd) Run() error {
	if c.NullServer {
		return bench.ServeNull(os.Stdin, os.Stdout)
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return bench.Run(ctx, c.config(executable))
}

func (c *benchCmd) config(executable string) bench.Config {
	return bench.Config{
		URL: c.URL, DatabaseURL: c.DatabaseURL, Private: c.Private, Executable: executable,
		Scenarios: c.Scenario, Rounds: c.Rounds, Short: c.Short,
		Conns: c.Conns, Workers: c.Workers, Mixed: c.Mixed, Jobs: c.Jobs, Duration: c.Duration,
		Rate: c.Rate, Streams: c.Streams, StreamRate: c.StreamHz, Hooks: c.Hooks, HookRate: c.HookRate, WaitMS: c.WaitMS, PollInterval: c.Poll,
		Backlog: c.Backlog, Drain: c.Drain, Scheduled: c.Scheduled, Burst: c.Burst, ArgsBytes: c.Args,
		Figures: os.Stdout, Human: os.Stderr,
	}
}
