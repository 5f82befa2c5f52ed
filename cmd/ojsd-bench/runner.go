package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// errInvalid says that figures were measured but must not be used.
var errInvalid = errors.New("the figures are not valid: jobs were lost or delivered twice, or calls failed; see the lines with INVALID")

// scenario measures one thing, all its rounds, and reports the figures itself. An error of run is one that leaves no figure;
// figures with problems are reported and make the exit code 1.
type scenario struct {
	name          string
	needsDatabase bool
	run           func(context.Context, *runner) error
}

// scenarios in the order in which they run: the ones that fill the database come last.
var scenarios = []scenario{
	{"null", false, runNull},         // requests per second of a net/http server that does nothing
	{"enqueue", false, runEnqueue},   // single enqueues, each connection sends the next one after the answer
	{"unique", false, runUnique},     // single enqueues with a unique policy, some of them duplicates
	{"batch", false, runBatch},       // enqueues of 1 000 jobs a call
	{"drain", false, runDrain},       // workers empty a queue
	{"mixed", false, runMixed},       // producers and workers at once
	{"latency", false, runLatency},   // at a fixed rate: from enqueue to fetch, and to the event
	{"streams", false, runStreams},   // one event to many SSE subscribers
	{"webhooks", false, runWebhooks}, // one event to the endpoints of several subscriptions
	{"cost", true, runCost},          // statements, commits and WAL per job
	{"schedule", true, runSchedule},  // many jobs due later, and many at once
	{"crowd", true, runCrowd},        // one queue while many jobs wait in others, and after that
	{"backlog", false, runBacklog},   // drain while many jobs wait
	{"pinned", true, runPinned},      // backlog while an open transaction keeps dead rows from being removed
	{"workflow", false, runWorkflow}, // chains, groups and a large batch
	{"control", false, runControl},   // limits, bounds, fair queues, pauses, explain; each alone below
	{"control.blocked", false, alone(measureBlocked)},
	{"control.key_limit", false, alone(measureKeyLimit)},
	{"control.bounded", false, alone(measureBounded)},
	{"control.fair", false, alone(measureFair)},
	{"control.pause", false, alone(measurePause)},
	{"control.explain", false, alone(measureExplain)},
	{"sdk", false, runSDK},      // a worker of package ojs beside raw ones
	{"steady", true, runSteady}, // two nodes at a fixed rate, by the minute
}

// onlyByName are the scenarios that run only if they are named. They take long, or need more than the others.
var onlyByName = []string{"workflow", "control", "sdk", "steady"}

// family is the name of a scenario without that of its part.
func family(name string) string {
	name, _, _ = strings.Cut(name, ".")
	return name
}

// alone is a scenario of one figure.
func alone(measure func(context.Context, *runner) (figure, error)) func(context.Context, *runner) error {
	return func(ctx context.Context, r *runner) error { return r.repeat(ctx, measure) }
}

// scenarioNames lists what --scenario accepts, in running order.
func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// runner is one run of the program against one server. With --against there are two, which share the reporter and have a server
// each.
type runner struct {
	cfg     config
	name    string  // tells the two servers of --against apart
	other   *runner // the runner of --against; nil without it, and in that runner
	target  target
	private *privateServer // nil without --private
	db      *database      // nil without --database-url
	out     *reporter
}

// runScenarios measures the chosen scenarios and prints their figures. When a check fails it goes on with the next
// scenario, because one lost job does not make the other figures useless, and returns errInvalid at the end.
func runScenarios(ctx context.Context, cfg config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.executable == "" {
		if cfg.executable, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	r := &runner{cfg: cfg, out: &reporter{figures: cfg.stdout, text: cfg.stderr}}
	defer r.close()
	if err := r.connect(ctx, cfg.OJSD); err != nil {
		return err
	}
	if cfg.Against != "" {
		r.name = "this"
		r.other = &runner{cfg: cfg, out: r.out, name: "against"}
		defer r.other.close()
		if err := r.other.connect(ctx, cfg.Against); err != nil {
			return err
		}
	}
	return r.runAll(ctx)
}

func (r *runner) runAll(ctx context.Context) error {
	chosen, err := r.chosen()
	if err != nil {
		return err
	}
	if err := r.printHeader(ctx, chosen); err != nil {
		return err
	}
	if needsServer := func(s scenario) bool { return s.name != "null" }; slices.ContainsFunc(chosen, needsServer) {
		if err := r.onSides(func(r *runner) error { return r.warmUp(ctx) }); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	var problems []error
	for _, s := range chosen {
		if err := s.run(ctx, r); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", s.name, err))
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", s.name, context.Cause(ctx))
		}
	}
	if r.out.invalid {
		problems = append(problems, errInvalid)
	}
	return errors.Join(problems...)
}

// chosen returns the scenarios to run. Without --scenario these are all that can run: some need the database. A short
// run leaves out cost, which waits half a minute for statistics at each figure.
func (r *runner) chosen() ([]scenario, error) {
	var chosen []scenario
	for _, s := range scenarios {
		named := slices.Contains(r.cfg.Scenarios, s.name)
		if named && s.needsDatabase && r.db == nil {
			return nil, fmt.Errorf("scenario %s needs the server's database: give --database-url", s.name)
		}
		byDefault := len(r.cfg.Scenarios) == 0 && (!s.needsDatabase || r.db != nil) && !slices.Contains(onlyByName, family(s.name)) && (s.name != "cost" || !r.cfg.Short)
		if named || byDefault {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// printHeader prints what is measured, and where.
func (r *runner) printHeader(ctx context.Context, chosen []scenario) error {
	var names []string
	for _, s := range chosen {
		names = append(names, s.name)
	}
	r.out.printf("ojsd-bench: %s, %s/%s, %d CPUs, %s, scenarios %s, %d round(s)", r.cfg.URL,
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), strings.Join(names, ","), r.cfg.Rounds)
	if err := r.printMachine(ctx); err != nil {
		return err
	}
	if r.db == nil {
		return nil
	}
	settings, err := r.db.settings(ctx)
	if err != nil {
		return err
	}
	r.out.printf("database: %s", settings)
	if strings.Contains(settings, "fsync=off") {
		r.out.printf("WARNING: fsync=off: commits do not wait for the disk; do not publish these figures")
	}
	return nil
}

// printMachine prints what this machine can do at all, to compare figures of different machines and days with.
// Both bound what a server can reach, so figures are compared only beside them.
func (r *runner) printMachine(ctx context.Context) error {
	sync, err := syncTime(os.TempDir(), r.cfg.probe)
	if err != nil {
		return fmt.Errorf("measure the disk: %w", err)
	}
	address, stop, err := startNullServer(r.cfg.executable)
	if err != nil {
		return fmt.Errorf("start the server of scenario null: %w", err)
	}
	defer stop()
	side := *r
	side.cfg.Duration = r.cfg.probe
	null, err := side.measureNull(ctx, address, nullConns[0])
	if err != nil {
		return err
	}
	r.out.printf("machine: a synchronous write of 8 KiB to %s takes %s (median), a server that does nothing answers %s requests/s on %d connections",
		os.TempDir(), sync.Round(time.Microsecond), numberText(null.Metrics[0].Value), nullConns[0])
	return nil
}

// warmUp enqueues and drains two batches untimed. Without it the first scenario would include the server's first query
// plans, its new connections and the growth of its heap. A server that cannot do even this is not measured: the run ends with
// an error.
func (r *runner) warmUp(ctx context.Context) error {
	l := r.newLoad("warmup")
	jobs := min(2*batchSize, r.cfg.Jobs)
	for _, style := range []ackStyle{ackSingle, ackBatch, ackFetch} {
		if err := l.preload(ctx, jobs); err != nil {
			return err
		}
		if _, err := l.drain(ctx, drainPlan{jobs: jobs, workers: 8, count: 10, ack: style}); err != nil {
			return err
		}
	}
	if err := l.emptyQueue(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // jobs are missing because the run was interrupted
		return err
	}
	if problems := l.problems(); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// pause waits before a measurement, so that work which the server does after its answers (publishing events) is not
// part of it.
func (r *runner) pause(ctx context.Context) { sleep(ctx, r.cfg.pause) }

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
