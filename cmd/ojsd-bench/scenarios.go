package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// errInvalid says that figures were measured but must not be used.
var errInvalid = errors.New("the figures are not valid: jobs were lost or delivered twice, or calls failed; see the lines with INVALID")

// scenario is what --scenario names. It has figures, which are measured one after the other, or it runs by itself, because
// something has to happen between its figures. An error leaves no figure; figures with problems are reported and make the exit
// code 1.
type scenario struct {
	name          string
	needsDatabase bool
	onlyByName    bool // it takes long, or needs more than the others
	figures       func(config) []measurement
	run           func(context.Context, *runner) error
}

// scenarios in the order in which they run: the ones that fill the database come last.
var scenarios = []scenario{
	{name: "null", figures: nullFigures},                           // requests per second of a net/http server that does nothing
	{name: "enqueue", figures: enqueueFigures},                     // single enqueues, each connection sends the next one after the answer
	{name: "unique", figures: uniqueFigures},                       // single enqueues with a unique policy, some of them duplicates
	{name: "batch", figures: batchFigures},                         // enqueues of 1 000 jobs a call
	{name: "drain", figures: drainFigures},                         // workers empty a queue
	{name: "mixed", figures: mixedFigures},                         // producers and workers at once
	{name: "latency", figures: latencyFigures},                     // at a fixed rate: from enqueue to fetch, and to the event
	{name: "streams", figures: streamFigures},                      // one event to many SSE subscribers
	{name: "webhooks", figures: webhookFigures},                    // one event to the endpoints of several subscriptions
	{name: "cost", needsDatabase: true, figures: costFigures},      // statements, commits and WAL per job
	{name: "schedule", needsDatabase: true, run: runSchedule},      // many jobs due later, and many at once
	{name: "crowd", needsDatabase: true, run: runCrowd},            // one queue while many jobs wait in others, and after that
	{name: "backlog", run: runBacklog},                             // drain while many jobs wait
	{name: "pinned", needsDatabase: true, run: runPinned},          // backlog while an open transaction keeps dead rows from being removed
	{name: "workflow", onlyByName: true, figures: workflowFigures}, // chains, groups and a large batch
	{name: "control", onlyByName: true, figures: controlFigures},   // limits, bounds, fair queues, pauses, explain; each alone below
	{name: "control.blocked", onlyByName: true, figures: controlFigures},
	{name: "control.key_limit", onlyByName: true, figures: controlFigures},
	{name: "control.bounded", onlyByName: true, figures: controlFigures},
	{name: "control.fair", onlyByName: true, figures: controlFigures},
	{name: "control.pause", onlyByName: true, figures: controlFigures},
	{name: "control.explain", onlyByName: true, figures: controlFigures},
	{name: "sdk", onlyByName: true, figures: sdkFigures},                    // a worker of package ojs beside raw ones
	{name: "steady", needsDatabase: true, onlyByName: true, run: runSteady}, // two nodes at a fixed rate, by the minute
}

// scenarioNames lists what --scenario accepts, in running order.
func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// measurement is a figure that is measured once per round, on a queue of its own. body returns its metrics, the number of jobs,
// and the problems that only it can see.
type measurement struct {
	figure string
	params []param
	body   func(context.Context, *load) (figure, error)
	end    ending
	on     map[*runner]*load // nil: each round has a new load

	needsDatabase bool
}

// ending says what happens to the queue after the body, and what is checked. Failed calls are a problem in any case.
type ending int

const (
	emptyAndCheck ending = iota // what is left is taken out, and all jobs are checked
	check                       // the body leaves no job; all are checked
	cancelRest                  // the body leaves jobs that it does not need to end
	callsOnly                   // there are no jobs to check, or not yet
)

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
		if err := r.runScenario(ctx, s); err != nil {
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

// connect starts the runner's private server, if it is to have one, and opens the database.
func (r *runner) connect(ctx context.Context, ojsd string) error {
	if r.cfg.Private {
		server, err := startPrivateServer(ctx, ojsd, r.cfg.executable)
		if err != nil {
			return fmt.Errorf("start a private server: %w", err)
		}
		r.private = server
		r.cfg.URL, r.cfg.DatabaseURL = server.url(), server.databaseURL
	}
	var err error
	if r.target, err = parseTarget(r.cfg.URL); err != nil {
		return err
	}
	if r.cfg.DatabaseURL != "" {
		r.db, err = openDatabase(ctx, r.cfg.DatabaseURL)
	}
	return err
}

func (r *runner) close() {
	if r.db != nil {
		closeConn(r.db.conn)
	}
	if r.private != nil {
		r.private.stop()
	}
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
		byDefault := len(r.cfg.Scenarios) == 0 && (!s.needsDatabase || r.db != nil) && !s.onlyByName && (s.name != "cost" || !r.cfg.Short)
		if named || byDefault {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// printHeader prints what is measured and where, and what this machine can do at all. The latter bounds what a server can reach,
// so figures of different machines and days are compared only beside it.
func (r *runner) printHeader(ctx context.Context, chosen []scenario) error {
	var names []string
	for _, s := range chosen {
		names = append(names, s.name)
	}
	r.out.printf("ojsd-bench: %s, %s/%s, %d CPUs, %s, scenarios %s, %d round(s)", r.cfg.URL,
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), strings.Join(names, ","), r.cfg.Rounds)
	sync, err := syncTime(os.TempDir(), r.cfg.probe)
	if err != nil {
		return fmt.Errorf("measure the disk: %w", err)
	}
	side := *r
	side.cfg.Duration = r.cfg.probe
	null, err := side.measureRound(ctx, nullFigures(r.cfg)[0])
	if err != nil {
		return err
	}
	r.out.printf("machine: a synchronous write of 8 KiB to %s takes %s (median), a server that does nothing answers %s requests/s on %d connections",
		os.TempDir(), sync.Round(time.Microsecond), numberText(null.Metrics[0].Value), nullConns[0])
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

// syncTime is the median time of a write of 8 KiB, a page of PostgreSQL's log, that returns when the data is on the disk:
// the least that a commit takes. It overwrites one page of a new file in dir for the given time. The directory for temporary
// files need not be on the disk of the database; on another one the number says nothing about commits.
func syncTime(dir string, length time.Duration) (median time.Duration, err error) {
	name := filepath.Join(dir, "ojsd-bench-"+uuid.NewString())
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_DSYNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(name)) }()
	var samples []time.Duration
	page := make([]byte, 8192)
	for end := time.Now().Add(length); len(samples) == 0 || time.Now().Before(end); {
		start := time.Now()
		if _, err := file.WriteAt(page, 0); err != nil {
			return 0, err
		}
		samples = append(samples, time.Since(start))
	}
	slices.Sort(samples)
	return percentile(samples, 50), nil
}

// warmUp enqueues and drains two batches untimed. Without it the first scenario would include the server's first query
// plans, its new connections and the growth of its heap. A server that cannot do even this is not measured: the run ends with
// an error.
func (r *runner) warmUp(ctx context.Context) error {
	l := r.newLoad("warmup")
	jobs := min(2*batchSize, r.cfg.Jobs)
	for _, ack := range []ackStyle{ackSingle, ackBatch, ackFetch} {
		if err := l.preload(ctx, jobs); err != nil {
			return err
		}
		if _, err := l.drain(ctx, drainPlan{jobs: jobs, workers: 8, count: 10, ack: ack}); err != nil {
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

// runScenario passes over the other figures of its family if the scenario is only one of them.
func (r *runner) runScenario(ctx context.Context, s scenario) error {
	if s.run != nil {
		return s.run(ctx, r)
	}
	for _, m := range s.figures(r.cfg) {
		if strings.Contains(s.name, ".") && m.figure != s.name {
			continue
		}
		if err := r.measure(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// measure measures a figure once per round and side, and reports the summaries of the sides and their ratio.
// A round during which the context ended is not reported, because its figures are of a shorter run.
func (r *runner) measure(ctx context.Context, m measurement) error {
	if m.needsDatabase && r.db == nil {
		r.out.printf("%s: skipped, needs --database-url", m.figure)
		return nil
	}
	figures := map[*runner][]figure{}
	for round := range r.cfg.Rounds {
		for _, side := range r.sides(round) {
			f, err := side.measureRound(ctx, m)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
			figures[side] = append(figures[side], f)
		}
	}
	for _, side := range r.sides(0) {
		if err := r.out.report(summarize(figures[side])); err != nil {
			return err
		}
	}
	if r.other == nil {
		return nil
	}
	return r.out.report(summarize(ratios(figures[r], figures[r.other])))
}

func (r *runner) measureRound(ctx context.Context, m measurement) (figure, error) {
	l := m.on[r]
	if l == nil {
		l = r.newLoad(m.figure)
	}
	before := int(l.failures.count.Load())
	f, err := m.body(ctx, l)
	if err == nil && m.end == emptyAndCheck {
		err = l.emptyQueue(ctx)
	}
	if err != nil {
		return figure{}, err
	}
	problems := l.failures.problems(before)
	if m.end == emptyAndCheck || m.end == check {
		problems = l.problems()
	}
	f.Name, f.Params = m.figure, append(r.label(), m.params...)
	f.Errors += int(l.failures.count.Load()) - before
	f.Problems = append(problems, f.Problems...)
	if m.end == cancelRest {
		// One call purges for up to 20 s; what is left stays in a queue that no other figure uses.
		return f, l.command(opCommand, "/purge", `{"states":["available","completed","cancelled"],"confirm":true}`)
	}
	return f, nil
}

// problems is everything that makes the figures of this load unusable.
func (l *load) problems() []string {
	return append(l.jobs.problems(int(l.failures.unanswered.Load())), l.failures.problems(0)...)
}

// sides are this runner and the one of --against, in the order in which they measure a round. The order changes from round
// to round, so that neither is always the first.
func (r *runner) sides(round int) []*runner {
	switch {
	case r.other == nil:
		return []*runner{r}
	case round%2 == 0:
		return []*runner{r, r.other}
	default:
		return []*runner{r.other, r}
	}
}

// onSides calls prepare for each side before a measurement, one after the other.
func (r *runner) onSides(prepare func(*runner) error) error {
	for _, side := range r.sides(0) {
		if err := prepare(side); err != nil {
			return err
		}
	}
	return nil
}

// label tells the two sides of --against apart.
func (r *runner) label() []param {
	if r.name == "" {
		return nil
	}
	return []param{{"server", r.name}}
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
