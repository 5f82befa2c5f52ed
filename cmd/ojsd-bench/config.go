package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// config is every flag of the program, and a few values that only tests change. Flags whose default depends on --short
// are zero until withDefaults sets them.
type config struct {
	URL         string `name:"url" default:"http://127.0.0.1:8080" help:"Base address of the server."`
	DatabaseURL string `name:"database-url" placeholder:"URL" help:"The server's own database. cost, schedule, crowd and pinned need it; latency uses it for LISTEN, backlog to fill the queue faster."`
	Private     bool   `help:"Start a private PostgreSQL and a server on it, measure that server, and remove both at the end."`
	OJSD        string `name:"ojsd" placeholder:"PATH" help:"The ojsd binary that --private starts. Default: the one in this program's folder, else the one in PATH."`

	Against string `name:"against" placeholder:"PATH" help:"A second ojsd binary, which is measured beside the first in the same rounds, in turn; the figures then have ratios, of the first to the second. Needs --private."`

	Scenarios []string `name:"scenario" sep:"," placeholder:"NAME" help:"Any of null, enqueue, unique, batch, drain, mixed, latency, streams, webhooks, cost, schedule, crowd, backlog, pinned, workflow, control, control.blocked, control.key_limit, control.bounded, control.fair, control.pause, control.explain, sdk, steady. Default: all that the given access allows; cost not with --short, workflow, control, sdk and steady only by name."`
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
	stallTimeout   time.Duration // a missing job counts as lost when nothing has moved for so long
	pause          time.Duration // between filling a queue and measuring
	probe          time.Duration // length of each measurement of the machine
	statsDelay     time.Duration // PostgreSQL may keep the statistics of an idle session to itself for 10 s
}

// maxEnqueues limits one measurement by count, whatever its duration, so that memory and database stay bounded.
const maxEnqueues = 1_000_000

// withDefaults fills in what the flags left open, and checks the result. It returns a copy; the flags as they were given are
// not needed any more.
func (c config) withDefaults() (config, error) {
	type sizes struct {
		jobs, drain, scheduled, burst, crowd int
		streams, streamRate, hooks, hookRate int
		duration, pause                      time.Duration
	}
	size := sizes{50_000, 20_000, 100_000, 50_000, 200_000, 1000, 1000, 5, 200, 10 * time.Second, time.Second}
	if c.Short {
		size = sizes{10_000, 5_000, 10_000, 5_000, 20_000, 50, 200, 2, 50, 3 * time.Second, 300 * time.Millisecond}
	}
	setDefault(&c.Jobs, size.jobs)
	setDefault(&c.Drain, size.drain)
	setDefault(&c.Scheduled, size.scheduled)
	setDefault(&c.Burst, size.burst)
	setDefault(&c.Crowd, size.crowd)
	setDefault(&c.Streams, size.streams)
	setDefault(&c.StreamRate, size.streamRate)
	setDefault(&c.Hooks, size.hooks)
	setDefault(&c.HookRate, size.hookRate)
	setDefault(&c.Duration, size.duration)
	setDefault(&c.pause, size.pause)
	setDefault(&c.stallTimeout, 3*time.Second)
	setDefault(&c.statsDelay, 11*time.Second)
	setDefault(&c.probe, time.Second)
	return c, c.validate()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Zero never means a default here: withDefaults has filled those in.
func (c config) validate() error {
	sizes := append(slices.Concat(c.Conns, c.Workers),
		c.Rounds, c.Rate, c.SteadyRate, c.WaitMS, c.Backlog, c.ArgsBytes, c.Jobs, c.Drain, c.Scheduled, c.Burst, c.Crowd, c.Streams, c.StreamRate, c.Hooks, c.HookRate)
	if slices.Min(sizes) < 1 {
		return errors.New("counts and sizes must be at least 1")
	}
	if c.Duration < 0 || c.PollInterval < 0 {
		return errors.New("--duration and --poll must be positive")
	}
	if c.Against != "" && !c.Private {
		return errors.New("--against needs --private")
	}
	for _, name := range c.Scenarios {
		if !slices.Contains(scenarioNames(), name) {
			return fmt.Errorf("unknown scenario %q; choose from %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	_, err := c.mixes()
	return err
}

// mix is one setting of scenario mixed.
type mix struct{ producers, workers int }

func (c config) mixes() ([]mix, error) {
	var mixes []mix
	for _, text := range c.Mixed {
		left, right, _ := strings.Cut(text, "+")
		producers, errLeft := strconv.Atoi(left)
		workers, errRight := strconv.Atoi(right)
		if errLeft != nil || errRight != nil || producers < 1 || workers < 1 {
			return nil, fmt.Errorf("--mixed %q: write producers+workers, such as 4+8", text)
		}
		mixes = append(mixes, mix{producers, workers})
	}
	return mixes, nil
}
