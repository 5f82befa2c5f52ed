package sweep

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/store"
)

const (
	// idlePrune is how often an idle server looks for what time alone has made old.
	idlePrune = 10 * time.Minute

	pruneTimeout = time.Minute
)

// PruneInterval is how often retention is looked at while jobs move.
const PruneInterval = time.Minute

// PrunerConfig says how long jobs are kept that are not dropped with their day. Zero: no limit.
type PrunerConfig struct {
	// Interval is how often retention is looked at while jobs move.
	Interval time.Duration

	// DeadLetterMaxAge and DeadLetterMaxCount bound the dead letters; both apply.
	DeadLetterMaxAge   time.Duration
	DeadLetterMaxCount int64

	// Discarded is for discarded jobs that are no dead letters.
	Discarded time.Duration
}

// Pruner removes jobs that retention has overtaken. Every node runs one; what one node is removing, another leaves alone. It
// looks at the database only when jobs have moved since its last look, or every ten minutes.
type Pruner struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals prunerSignals

	config  PrunerConfig
	store   *store.Store
	stirred atomic.Bool
	ranAt   atomic.Int64 // local time of the latest run in nanoseconds
}

type prunerSignals struct {
	Pruned testsignal.TestSignal[Pruned]
}

// Init prepares the signals for a test.
func (ts *prunerSignals) Init(tb testutil.TestingTB) { ts.Pruned.Init(tb) }

// Pruned counts what one run removed.
type Pruned struct{ DeadLetters, Discarded int64 }

// NewPruner returns a pruner; Start it.
func NewPruner(archetype *baseservice.Archetype, s *store.Store, config PrunerConfig) *Pruner {
	p := baseservice.Init(archetype, &Pruner{store: s, config: config})
	p.ranAt.Store(time.Now().UnixNano())
	return p
}

// Stir says that jobs move, here or on another node.
func (p *Pruner) Stir() {
	if !p.stirred.Load() {
		p.stirred.Store(true)
	}
}

// NextIn is the time until this node looks again, as far as it knows now: looks happen at ticks.
func (p *Pruner) NextIn() time.Duration {
	since := p.sinceRun()
	if p.stirred.Load() {
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
	return p.stirred.Load() || p.sinceRun() >= p.idlePause()-p.config.Interval/2
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
	p.stirred.Store(false)
	p.ranAt.Store(time.Now().UnixNano())
	limited, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	pruned, err := p.runOnce(limited)
	if err != nil && ctx.Err() == nil {
		p.stirred.Store(true) // there is more to do
		p.Logger.ErrorContext(ctx, p.Name+": prune failed", slog.Any("error", err))
	}
	if pruned != (Pruned{}) {
		p.Logger.InfoContext(ctx, p.Name+": jobs removed", slog.Int64("dead_letters", pruned.DeadLetters),
			slog.Int64("discarded", pruned.Discarded))
	}
	p.TestSignals.Pruned.Signal(pruned)
}

func (p *Pruner) runOnce(ctx context.Context) (n Pruned, err error) {
	if n.DeadLetters, err = p.store.PruneDeadLetters(ctx, p.config.DeadLetterMaxAge, p.config.DeadLetterMaxCount); err != nil {
		return n, err
	}
	if p.config.Discarded > 0 {
		n.Discarded, err = p.store.PruneDiscarded(ctx, p.config.Discarded)
	}
	return n, err
}
