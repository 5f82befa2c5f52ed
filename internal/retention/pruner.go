// Package retention owns the deletion of discarded jobs and of ended workflows whose retention time is over, dead letters included, and of
// partitions of rate limits that nothing uses any more, in small statements. It must never delete a job in another state; package eventlog
// drops the partitions of completed and cancelled jobs by the day.
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
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/workflow"
)

const (
	// idlePrune is the interval of runs while no jobs move.
	idlePrune = 10 * time.Minute

	// pruneTimeout ends a run with much to delete; the next one goes on, because each batch was committed.
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
	// walked is only used by the running goroutine. It is lost at a restart: the walk then begins anew.
	walked [16]byte // how far pruneQueues has come
	config Config
	// moved is set by Notify, on any goroutine, and cleared when a run begins: what moves during a run asks for another one.
	moved atomic.Bool
	ranAt atomic.Int64 // clock.Running at the latest run
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

// Notify reports that jobs moved, on this node or on another one. It is called after every commit, so it writes only if it has
// to: a write to shared memory would slow down the other cores.
func (p *Pruner) Notify() {
	if !p.moved.Load() {
		p.moved.Store(true)
	}
}

// NextIn is the time until the next run, which begins at a tick of the interval, as far as this node knows now.
// A move that comes later may shorten it.
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
	loop.Run(ctx, &p.BaseStartStop, p.loop)
	return nil
}

// loop runs at once, because no server may have run for long.
func (p *Pruner) loop(ctx context.Context) {
	p.run(ctx)
	loop.Every(ctx, p.config.Interval, func(ctx context.Context) {
		if p.due() {
			p.run(ctx)
		}
	})
}

// The flag is cleared before the run and not after it, or a job that moves meanwhile would be missed.
func (p *Pruner) run(ctx context.Context) {
	p.moved.Store(false)
	p.ranAt.Store(int64(clock.Running()))
	limited, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	pruned, err := p.runOnce(limited)
	// A stop is no failure, and the next start prunes at once.
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

// The steps do not depend on each other; an error ends the run, and what the steps before it deleted stays deleted.
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

// reasonRetention is the reason in the internal events of deleted jobs.
const reasonRetention = "retention"

// deleteBatch bounds the rows of one statement. A delete of 1 000 rows takes 20 ms.
const deleteBatch = 1000

// pruneDiscarded deletes discarded jobs older than keep that are not dead letters. It goes on behind the last row that it
// deleted, so that rows which another node has locked, or which the filters leave out, are not read again. What was skipped is
// found by a later run. Each batch is a transaction of its own.
func (p *Pruner) pruneDiscarded(ctx context.Context, keep time.Duration, view *queueconfig.View) (deleted int64, err error) {
	params := dbsqlc.JobDiscardedPruneParams{
		After: pg.Beginning, Keep: pg.Interval(keep), MaxRows: deleteBatch, Node: p.commits.Node,
		EventType: eventlog.StateChanged, Reason: reasonRetention, OtherQueues: ownDiscarded(view),
	}
	for {
		rows, err := p.pruneBatch(ctx, params)
		deleted += int64(len(rows))
		if err != nil || len(rows) < deleteBatch {
			return deleted, err
		}
		last := rows[len(rows)-1]
		params.After, params.AfterID = last.FinishedAt, last.ID
	}
}

// The deletions and their internal events are committed when it returns.
func (p *Pruner) pruneBatch(ctx context.Context, params dbsqlc.JobDiscardedPruneParams) ([]dbsqlc.JobDiscardedPruneRow, error) {
	ctx, cancel := p.db.Bounded(ctx)
	defer cancel()
	rows, err := p.db.Q.JobDiscardedPrune(ctx, params)
	if err == nil {
		eventlog.Emit(ctx, p.commits, rows, pruneChange)
	}
	if len(rows) > 0 {
		p.commits.Committed()
	}
	return rows, err
}

// partitionBatch bounds the partitions of one statement.
const partitionBatch = 200

// prunePartitions deletes the partitions of rate limits that nothing has used for a day (docs/reference/limits.md, Policies).
func (p *Pruner) prunePartitions(ctx context.Context) (deleted int64, err error) {
	for more := true; more; {
		n, again, err := p.prunePartitionBatch(ctx)
		if deleted, more = deleted+n, again; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

func (p *Pruner) prunePartitionBatch(ctx context.Context) (deleted int64, more bool, err error) {
	ctx, cancel := p.db.Bounded(ctx)
	defer cancel()
	row, err := p.db.Q.LimitPrune(ctx, partitionBatch)
	return row.Deleted, row.More, err
}

// pruneChange is the change of one deleted job, for logs and metrics: like the internal event, it has a state before and none
// after.
func pruneChange(changes []eventlog.Change, r *dbsqlc.JobDiscardedPruneRow) []eventlog.Change {
	return append(changes, eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: reasonRetention,
	})
}
