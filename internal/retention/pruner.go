// Package retention removes jobs that have been kept for long enough. Whole days of finished jobs are dropped by package
// eventlog's maintainer; what is left is deleted here in small statements.
package retention

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/deadletter"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

const (
	day = 24 * time.Hour

	// idlePrune is how often an idle server looks for what time alone has made old.
	idlePrune = 10 * time.Minute

	// prunePages bounds a statement over finished jobs, which reads them page by page: a few thousand rows.
	prunePages = 100

	// pruneBudget is for how long a run goes through finished jobs; the next one goes on where it stopped.
	pruneBudget  = 20 * time.Second
	pruneTimeout = time.Minute
)

// Config says how long jobs are kept (contract 20 §8.4). The zero value of a field means its default, a negative one
// that there is no limit.
type Config struct {
	// Interval is how often retention is looked at while jobs move. 60 s.
	Interval time.Duration

	// DeadLetterMaxAge and DeadLetterMaxCount bound the dead letters; both apply. 180 days and 10 000.
	DeadLetterMaxAge   time.Duration
	DeadLetterMaxCount int64

	// Discarded is for discarded jobs that are no dead letters. 30 days.
	Discarded time.Duration

	// Completed and Cancelled are for finished jobs. The maintainer drops whole days at the longer of the two; jobs of the
	// state with the shorter one are removed here, once their day is over for that long. 7 days each.
	Completed, Cancelled time.Duration
}

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	c.Interval = cmp.Or(c.Interval, time.Minute)
	c.DeadLetterMaxAge = cmp.Or(c.DeadLetterMaxAge, 180*day)
	c.DeadLetterMaxCount = cmp.Or(c.DeadLetterMaxCount, 10_000)
	c.Discarded = cmp.Or(c.Discarded, 30*day)
	c.Completed = cmp.Or(c.Completed, 7*day)
	c.Cancelled = cmp.Or(c.Cancelled, 7*day)
	return c
}

// Longest is for how long days of finished jobs are kept: the longer of the two times, negative if one has no limit.
func (c Config) Longest() time.Duration {
	if c.Completed < 0 || c.Cancelled < 0 {
		return -1
	}
	return max(c.Completed, c.Cancelled)
}

// shorter is the state whose jobs are to be removed one by one, if there is one.
func (c Config) shorter() (state ojs.JobState, keep time.Duration, ok bool) {
	longest := c.Longest()
	switch {
	case c.Completed >= 0 && (longest < 0 || c.Completed < longest):
		return ojs.StateCompleted, c.Completed, true
	case c.Cancelled >= 0 && (longest < 0 || c.Cancelled < longest):
		return ojs.StateCancelled, c.Cancelled, true
	}
	return "", 0, false
}

// Pruner removes jobs that retention has overtaken. Every node runs one; what one node is removing, another leaves alone. It
// looks at the database only when jobs have moved since its last look, or every ten minutes.
type Pruner struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals prunerSignals

	db          *pg.DB
	commits     *eventlog.Commits
	deadLetters *deadletter.Store
	config      Config
	moved       atomic.Bool
	ranAt       atomic.Int64 // local time of the latest run in nanoseconds

	// Only the running goroutine touches it: up to which page days are done. Jobs are only ever added to the latest day, so
	// a day that was gone through once stays clean.
	done map[time.Time]int64
}

type prunerSignals struct {
	Pruned testsignal.TestSignal[Pruned]
}

// Init prepares the signals for a test.
func (ts *prunerSignals) Init(tb testutil.TestingTB) { ts.Pruned.Init(tb) }

// Pruned counts what one run removed.
type Pruned struct{ DeadLetters, Discarded, Done int64 }

// Deps are what the pruner works with.
type Deps struct {
	DB          *pg.DB
	Commits     *eventlog.Commits
	DeadLetters *deadletter.Store
}

// New returns a pruner; Start it.
func New(archetype *baseservice.Archetype, deps Deps, config Config) *Pruner {
	p := baseservice.Init(archetype, &Pruner{db: deps.DB, commits: deps.Commits, deadLetters: deps.DeadLetters, config: config.WithDefaults(), done: map[time.Time]int64{}})
	p.ranAt.Store(time.Now().UnixNano())
	return p
}

// Notify says that jobs move, here or on another node.
func (p *Pruner) Notify() {
	if !p.moved.Load() {
		p.moved.Store(true)
	}
}

// NextIn is the time until this node looks again, as far as it knows now: looks happen at ticks.
func (p *Pruner) NextIn() time.Duration {
	since := p.sinceRun()
	if p.moved.Load() {
		return p.config.Interval - since%p.config.Interval
	}
	return max(0, p.idlePause()-since)
}

func (p *Pruner) sinceRun() time.Duration { return time.Since(time.Unix(0, p.ranAt.Load())) }

// idlePause is a whole number of ticks.
func (p *Pruner) idlePause() time.Duration {
	ticks := (idlePrune + p.config.Interval - 1) / p.config.Interval
	return ticks * p.config.Interval
}

// due is asked at each tick.
func (p *Pruner) due() bool {
	return p.moved.Load() || p.sinceRun() >= p.idlePause()-p.config.Interval/2
}

// Start runs the loop until stopped. The first look is at once: a server may have been away for long.
func (p *Pruner) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := p.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		ticker := time.NewTicker(p.config.Interval)
		defer ticker.Stop()
		p.run(ctx)
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if p.due() {
					p.run(ctx)
				}
			}
		}
	}()
	return nil
}

func (p *Pruner) run(ctx context.Context) {
	p.moved.Store(false)
	p.ranAt.Store(time.Now().UnixNano())
	limited, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	pruned, err := p.runOnce(limited)
	if err != nil && ctx.Err() == nil {
		p.moved.Store(true) // there is more to do
		p.Logger.ErrorContext(ctx, p.Name+": prune failed", slog.Any("error", err))
	}
	if pruned != (Pruned{}) {
		p.Logger.InfoContext(ctx, p.Name+": jobs removed", slog.Int64("dead_letters", pruned.DeadLetters),
			slog.Int64("discarded", pruned.Discarded), slog.Int64("finished", pruned.Done))
	}
	p.TestSignals.Pruned.Signal(pruned)
}

func (p *Pruner) runOnce(ctx context.Context) (n Pruned, err error) {
	if n.DeadLetters, err = p.deadLetters.Prune(ctx, p.config.DeadLetterMaxAge, p.config.DeadLetterMaxCount); err != nil {
		return n, err
	}
	if p.config.Discarded >= 0 {
		if n.Discarded, err = p.pruneDiscarded(ctx, p.config.Discarded); err != nil {
			return n, err
		}
	}
	if state, keep, ok := p.config.shorter(); ok {
		n.Done, err = p.pruneDone(ctx, state, keep)
	}
	return n, err
}

// pruneDone goes through each day that is over for long enough, once.
func (p *Pruner) pruneDone(ctx context.Context, state ojs.JobState, keep time.Duration) (removed int64, err error) {
	days, err := p.doneDays(ctx, keep)
	if err != nil {
		return 0, err
	}
	kept := make(map[time.Time]int64, len(days)) // forgets days that were dropped
	for _, d := range days {
		kept[d.Start] = p.done[d.Start]
	}
	p.done = kept
	start := time.Now()
	for _, d := range days {
		for p.done[d.Start] < d.Pages {
			if time.Since(start) > pruneBudget {
				p.Notify()
				return removed, nil
			}
			from := p.done[d.Start]
			n, err := p.pruneDonePages(ctx, d, state, from, from+prunePages)
			if err != nil {
				return removed, err
			}
			removed += n
			p.done[d.Start] = from + prunePages
		}
	}
	return removed, nil
}
