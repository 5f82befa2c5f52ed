// Package bench is the load generator behind `ojsd bench`. It drives a running server over HTTP the way producers and
// workers do, measures it, and checks every job: an acknowledged enqueue is fetched exactly once and its ack succeeds.
//
// It shares the machine with the server and the database it measures, so it has to be lean: one goroutine and one
// connection per simulated client, request bodies built beforehand, no JSON decoding beyond the members it needs. It
// never uses the packages of the server: a bug there must not hide itself here. The few SQL statements (database.go)
// are the only ones outside queries/, because they look at the database from outside, as a user's session would.
package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// ErrFailed says that figures were measured but must not be used: jobs were lost, delivered twice, or calls failed.
var ErrFailed = errors.New("the run is not valid: jobs were lost or delivered twice, or calls failed; see above")

// scenario measures one thing, all its rounds, and reports the figures itself.
type scenario struct {
	name          string
	about         string
	needsDatabase bool
	run           func(context.Context, *runner) error
}

// scenarios in the order in which they run: the ones that fill the database come last.
var scenarios = []scenario{
	{"null", "requests per second of a Go net/http server that does nothing", false, runNull},
	{"enqueue", "single enqueues, closed loop", false, runEnqueue},
	{"batch", "enqueues of 1 000 jobs a call", false, runBatch},
	{"drain", "workers empty a queue", false, runDrain},
	{"mixed", "producers and workers at once", false, runMixed},
	{"latency", "at a fixed rate: enqueue to fetch, and to the event", false, runLatency},
	{"streams", "an event to many SSE subscribers at once", false, runStreams},
	{"webhooks", "an event to the endpoints of several subscriptions", false, runWebhooks},
	{"cost", "statements, commits and WAL per job", true, runCost},
	{"schedule", "many jobs due later, and many at once", true, runSchedule},
	{"backlog", "drain with many jobs waiting", false, runBacklog},
	{"pinned", "backlog, with xmin pinned by an open transaction", true, runPinned},
}

// ScenarioNames lists what Config.Scenarios may name, in running order.
func ScenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// runner is one run of the program against one server.
type runner struct {
	cfg    Config
	target target
	db     *database // nil without Config.DatabaseURL
	out    *reporter
}

// Run measures the chosen scenarios and prints their figures. It returns ErrFailed if a check found something, and
// goes on with the next scenario then, because one lost job makes the other figures no less interesting.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	out := newReporter(cfg.Figures, cfg.Human)
	if cfg.Private {
		stack, err := startStack(ctx, cfg.Executable)
		if err != nil {
			return fmt.Errorf("start private server: %w", err)
		}
		defer stack.stop()
		cfg.URL, cfg.DatabaseURL = stack.url, stack.databaseURL
	}
	r := &runner{cfg: cfg, out: out}
	if r.target, err = parseTarget(cfg.URL); err != nil {
		return err
	}
	if cfg.DatabaseURL != "" {
		if r.db, err = openDatabase(ctx, cfg.DatabaseURL); err != nil {
			return err
		}
		defer r.db.close()
	}
	return r.runAll(ctx)
}

func (r *runner) runAll(ctx context.Context) error {
	chosen, err := r.chosen()
	if err != nil {
		return err
	}
	if err := r.introduce(ctx, chosen); err != nil {
		return err
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
		problems = append(problems, ErrFailed)
	}
	return errors.Join(problems...)
}

// chosen resolves Config.Scenarios. Without any, all run that can: some need the database. A short run leaves out cost,
// which spends half a minute a figure waiting for statistics.
func (r *runner) chosen() ([]scenario, error) {
	var chosen []scenario
	for _, s := range scenarios {
		named := slices.Contains(r.cfg.Scenarios, s.name)
		if named && s.needsDatabase && r.db == nil {
			return nil, fmt.Errorf("scenario %s needs a connection to the server's database: give --database-url", s.name)
		}
		byDefault := len(r.cfg.Scenarios) == 0 && (!s.needsDatabase || r.db != nil) && (s.name != "cost" || !r.cfg.Short)
		if named || byDefault {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// introduce says what is measured where, and warms up: without it the first scenario pays for the server's first
// plans, connections and heap growth.
func (r *runner) introduce(ctx context.Context, chosen []scenario) error {
	var names []string
	for _, s := range chosen {
		names = append(names, s.name)
	}
	r.out.say("ojsd bench: %s, %s/%s, %d CPUs, %s, scenarios %s, %d round(s)", r.cfg.URL,
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), strings.Join(names, ","), r.cfg.Rounds)
	if r.db != nil {
		settings, err := r.db.settings(ctx)
		if err != nil {
			return err
		}
		r.out.say("database: %s", settings)
		if strings.Contains(settings, "fsync=off") {
			r.out.say("WARNING: fsync=off: no commit waits for the disk; these are not figures to publish")
		}
	}
	if slices.Equal(names, []string{"null"}) {
		return nil
	}
	return r.warmUp(ctx)
}

func (r *runner) warmUp(ctx context.Context) error {
	l := r.newLoad("warmup")
	for _, ackAll := range []bool{false, true} {
		if err := l.preload(ctx, min(2*batchSize, r.cfg.Jobs)); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
		if _, err := l.drain(ctx, drainPlan{jobs: min(2*batchSize, r.cfg.Jobs), workers: 8, count: 10, ackAll: ackAll}); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	if err := l.settle(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	if err := ctx.Err(); err != nil { // what it left undone is no fault of the server
		return fmt.Errorf("warm up: %w", err)
	}
	if problems := l.problems(); len(problems) > 0 {
		return fmt.Errorf("warm up: %s", strings.Join(problems, "; "))
	}
	return nil
}

// repeat runs a measurement once per round and reports the median.
func (r *runner) repeat(ctx context.Context, round func(context.Context) (Figure, error)) error {
	var figures []Figure
	for range r.cfg.Rounds {
		f, err := round(ctx)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		figures = append(figures, f)
	}
	return r.out.report(summarize(figures))
}

// pause lets work that the server does behind its answers (publishing events) finish before something is measured.
func (r *runner) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(r.cfg.Settle):
	}
}
