package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config says what to measure. The zero value of every field means its default; with Short the defaults are small.
type Config struct {
	// URL is the server's base address. Default http://127.0.0.1:8080.
	URL string
	// DatabaseURL is the server's own database. Optional; pinned and cost need it, latency uses it for LISTEN, backlog
	// to fill the queue faster.
	DatabaseURL string
	// Private starts Postgres and a server for the run instead, and sets URL and DatabaseURL. Needs Executable.
	Private bool
	// Executable is the ojsd binary, for the children: the private server, and the server of scenario null. Without it
	// the latter runs in this process.
	Executable string

	// Scenarios to run, by name. Default: all that the given access allows.
	Scenarios []string
	// Rounds measures each figure so often and reports median, min and max. Default 1.
	Rounds int
	// Short makes a quick round of all scenarios, for a look rather than for figures to publish.
	Short bool

	// Conns are the connection counts of enqueue. Default 1, 32, 128.
	Conns []int
	// Workers are the worker counts of drain, backlog and pinned. Default 32, 128.
	Workers []int
	// Mixed are producer+worker counts of mixed and cost, such as 4+8. Default 4+8, 16+32.
	Mixed []string
	// Jobs are preloaded for one drain, and enqueued by one batch measurement. Default 50 000, short 10 000.
	Jobs int
	// Duration of one measurement of null, enqueue, mixed, latency, streams and webhooks. Default 10 s, short 3 s.
	Duration time.Duration
	// Rate is the number of jobs per second of latency. Default 400.
	Rate int
	// Streams are the SSE subscribers of streams. Default 1 000, short 50.
	Streams int
	// StreamRate is the number of events per second that each of them gets. Default 1 000, short 200.
	StreamRate int
	// Hooks are the subscriptions of webhooks. Default 5, short 2.
	Hooks int
	// HookRate is the number of events per second that each of them gets. Default 200, short 50.
	HookRate int
	// WaitMS is the wait_ms of workers in mixed and latency, 1 to 20 000 ms. Default 1 000.
	WaitMS int
	// PollInterval is the pause of the event poller between two empty polls. Default 5 ms.
	PollInterval time.Duration
	// Backlog is how many jobs stay waiting during backlog and pinned. Default 10 000.
	Backlog int
	// Drain is how many jobs one measurement of backlog and pinned takes. Default 20 000, short 5 000.
	Drain int
	// Scheduled is how many jobs, spread over an hour, wait for their time during schedule. Default 100 000, short 10 000.
	Scheduled int
	// Burst is how many jobs become due in the same moment in schedule. Default 50 000, short 5 000.
	Burst int
	// ArgsBytes is about the size of a job's args. Default 100.
	ArgsBytes int

	// Stall is how long nothing may move before a missing job counts as lost. Default 3 s.
	Stall time.Duration
	// Settle is the pause between filling a queue and measuring. Default 1 s, short 300 ms.
	Settle time.Duration

	// statsDelay is how long Postgres may keep statistics of an idle session to itself: 10 s, and a bit.
	statsDelay time.Duration

	// Figures gets one JSON line per figure, Human one readable line. Default stdout and stderr.
	Figures, Human io.Writer
}

// maxEnqueues bounds one measurement by count, whatever its duration, so that memory and database stay bounded.
const maxEnqueues = 1_000_000

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.URL, "http://127.0.0.1:8080")
	setDefault(&c.Rounds, 1)
	setDefault(&c.Rate, 400)
	setDefault(&c.WaitMS, 1000)
	setDefault(&c.PollInterval, 5*time.Millisecond)
	setDefault(&c.Backlog, 10_000)
	setDefault(&c.ArgsBytes, 100)
	setDefault(&c.Stall, 3*time.Second)
	setDefault(&c.statsDelay, 11*time.Second)
	setDefault(&c.Figures, io.Writer(os.Stdout))
	setDefault(&c.Human, io.Writer(os.Stderr))
	if c.Short {
		c.defaultSizes(10_000, 3*time.Second, 5_000, 300*time.Millisecond)
		setDefault(&c.Scheduled, 10_000)
		setDefault(&c.Burst, 5_000)
		setDefault(&c.Streams, 50)
		setDefault(&c.StreamRate, 200)
		setDefault(&c.Hooks, 2)
		setDefault(&c.HookRate, 50)
	} else {
		c.defaultSizes(50_000, 10*time.Second, 20_000, time.Second)
		setDefault(&c.Scheduled, 100_000)
		setDefault(&c.Burst, 50_000)
		setDefault(&c.Streams, 1000)
		setDefault(&c.StreamRate, 1000)
		setDefault(&c.Hooks, 5)
		setDefault(&c.HookRate, 200)
	}
	if len(c.Conns) == 0 {
		c.Conns = []int{1, 32, 128}
	}
	if len(c.Workers) == 0 {
		c.Workers = []int{32, 128}
	}
	if len(c.Mixed) == 0 {
		c.Mixed = []string{"4+8", "16+32"}
	}
	return c, c.validate()
}

func (c *Config) defaultSizes(jobs int, duration time.Duration, drain int, settle time.Duration) {
	setDefault(&c.Jobs, jobs)
	setDefault(&c.Duration, duration)
	setDefault(&c.Drain, drain)
	setDefault(&c.Settle, settle)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) validate() error {
	sizes := append(slices.Concat(c.Conns, c.Workers),
		c.Rounds, c.Rate, c.WaitMS, c.Backlog, c.ArgsBytes, c.Jobs, c.Drain, c.Scheduled, c.Burst, c.Streams, c.StreamRate, c.Hooks, c.HookRate)
	if slices.Min(sizes) < 1 {
		return errors.New("counts and sizes must be at least 1")
	}
	if min(c.Duration, c.PollInterval, c.Stall, c.Settle) < 0 {
		return errors.New("durations must be positive")
	}
	if c.Private && c.Executable == "" {
		return errors.New("a private server needs the path of the ojsd binary")
	}
	for _, name := range c.Scenarios {
		if !slices.Contains(ScenarioNames(), name) {
			return fmt.Errorf("unknown scenario %q; there are %s", name, strings.Join(ScenarioNames(), ", "))
		}
	}
	_, err := c.mixes()
	return err
}

// mix is one setting of the mixed scenario.
type mix struct{ producers, workers int }

func (c Config) mixes() ([]mix, error) {
	var mixes []mix
	for _, text := range c.Mixed {
		left, right, _ := strings.Cut(text, "+")
		producers, errLeft := strconv.Atoi(left)
		workers, errRight := strconv.Atoi(right)
		if errLeft != nil || errRight != nil || producers < 1 || workers < 1 {
			return nil, fmt.Errorf("mixed %q: write producers+workers, such as 4+8", text)
		}
		mixes = append(mixes, mix{producers, workers})
	}
	return mixes, nil
}
