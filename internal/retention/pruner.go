// Package retention owns the deletion of discarded jobs and of ended workflows whose retention time is over, dead letters included, and of
// partitions of rate limits that nothing uses any more, in small statements. It must never delete a job in another state; package eventlog drops the partitions of completed and cancelled
// jobs by the day.
package retention

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/workflow"
)

const (
	// idlePrune is the interval of runs while no jobs move.
	idlePrune = 10 * time.Minute

	pruneTimeout = time.Minute
)

// PruneInterval is the default of Config.Interval.
const PruneInterval = time.Minute

// Config holds the retention of discarded jobs. Zero means no limit.
type Config struct {
	// Interval is the interval of runs while jobs move. Required.
	Interval time.Duration

	// DeadLetterMaxAge and DeadLetterMaxCount bound the dead letters; both apply.
	DeadLetterMaxAge   time.Duration
	DeadLetterMaxCount int64

	// Discarded bounds the age of discarded jobs that are not dead letters.
	Discarded time.Duration

	// Completed bounds the age of completed and cancelled jobs, and of ended workflows. Package eventlog drops such jobs by the day; here go
	// those that their queue keeps for a shorter time.
	Completed time.Duration
}

// Pruner deletes discarded jobs whose retention time is over. Every node runs one; statements skip rows that another node is
// deleting. It reads the database only if jobs have moved since its previous run, or ten minutes after it.
type Pruner struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals prunerSignals

	db          *pg.DB
	commits     *eventlog.Commits
	deadLetters *deadletter.Store
	workflows   *workflow.Store
	queues      *queueconfig.Cache
	walked      [16]byte // how far pruneQueues has come
	config      Config
	moved       atomic.Bool
	ranAt       atomic.Int64 // clock.Running at the latest run
}

type prunerSignals struct {
	Pruned testsignal.TestSignal[Pruned]
}

// Init prepares the signals for a test.
func (ts *prunerSignals) Init(tb testutil.TestingTB) { ts.Pruned.Init(tb) }

// Pruned counts what one run removed.
type Pruned struct{ DeadLetters, Discarded, Workflows, Early, Partitions int64 }

// Deps are the parts of a node that the pruner uses.
type Deps struct {
	DB          *pg.DB
	Commits     *eventlog.Commits
	DeadLetters *deadletter.Store
	Workflows   *workflow.Store
	Queues      *queueconfig.Cache
}

// New returns a pruner.
func New(archetype *baseservice.Archetype, deps Deps, config Config) *Pruner {
	p := baseservice.Init(archetype, &Pruner{db: deps.DB, commits: deps.Commits, deadLetters: deps.DeadLetters, workflows: deps.Workflows, queues: deps.Queues, config: config})
	p.ranAt.Store(int64(clock.Running()))
	return p
}

// Notify reports that jobs moved, on this node or on another one.
func (p *Pruner) Notify() {
	if !p.moved.Load() {
		p.moved.Store(true)
	}
}

// NextIn is the time until the next run, which begins at a tick of the interval, as far as this node knows now.
func (p *Pruner) NextIn() time.Duration {
	since := p.sinceRun()
	if p.moved.Load() {
		return p.config.Interval - since%p.config.Interval
	}
	return max(0, p.idlePause()-since)
}

func (p *Pruner) sinceRun() time.Duration { return clock.Running() - time.Duration(p.ranAt.Load()) }

// idlePause is idlePrune, rounded up to whole ticks.
func (p *Pruner) idlePause() time.Duration {
	ticks := (idlePrune + p.config.Interval - 1) / p.config.Interval
	return ticks * p.config.Interval
}

// due reports, at a tick, whether to run. Half a tick of tolerance makes up for jitter of the ticker.
func (p *Pruner) due() bool {
	return p.moved.Load() || p.sinceRun() >= p.idlePause()-p.config.Interval/2
}

// Start runs the loop until stopped. The first run is at once, because no server may have run for long.
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
	p.ranAt.Store(int64(clock.Running()))
	limited, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	pruned, err := p.runOnce(limited)
	if err != nil && ctx.Err() == nil {
		p.moved.Store(true) // run again at the next tick
		p.Logger.ErrorContext(ctx, p.Name+": deletion of old discarded jobs and workflows failed; the next run continues it", slog.Any("error", err))
	}
	if pruned != (Pruned{}) {
		p.Logger.InfoContext(ctx, p.Name+": old discarded jobs and workflows deleted", slog.Int64("dead_letters", pruned.DeadLetters),
			slog.Int64("discarded", pruned.Discarded), slog.Int64("workflows", pruned.Workflows), slog.Int64("early", pruned.Early), slog.Int64("rate_limit_partitions", pruned.Partitions))
	}
	p.TestSignals.Pruned.Signal(pruned)
}

func (p *Pruner) runOnce(ctx context.Context) (n Pruned, err error) {
	view, err := p.queues.View(ctx)
	if err != nil {
		return n, err
	}
	if n.DeadLetters, err = p.deadLetters.Prune(ctx, p.config.DeadLetterMaxAge, p.config.DeadLetterMaxCount); err != nil {
		return n, err
	}
	if keep := or(standard(view).Discarded, p.config.Discarded); keep > 0 {
		if n.Discarded, err = p.pruneDiscarded(ctx, keep, view); err != nil {
			return n, err
		}
	}
	if keep := Workflows(view, p.config.Completed); keep > 0 {
		if n.Workflows, err = p.workflows.Prune(ctx, keep); err != nil {
			return n, err
		}
	}
	if n.Early, err = p.pruneQueues(ctx, view); err != nil {
		return n, err
	}
	n.Partitions, err = p.prunePartitions(ctx)
	return n, err
}
