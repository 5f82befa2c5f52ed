package queueadmin

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

const (
	// idlePrune is the interval of runs while no jobs move.
	idlePrune = 10 * time.Minute

	// pruneTimeout ends a run with much to delete; the next one goes on, because each batch was committed.
	pruneTimeout = time.Minute
)

// Pruner deletes discarded jobs and ended workflows whose retention time is over, dead letters included, and partitions of rate limits that
// nothing uses any more, in small statements. It must never delete a job in another state; package eventlog drops the partitions of
// completed and cancelled jobs by the day. Every node runs one; statements skip rows that another node is deleting. It reads the database
// only if jobs have moved since its previous run, or ten minutes after it.
type Pruner struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals prunerSignals

	deps PrunerDeps
	// walked is only used by the running goroutine. It is lost at a restart: the walk then begins anew.
	walked [16]byte // how far pruneQueues has come
	config config.Config
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

// PrunerDeps are the parts of a node that the pruner uses.
type PrunerDeps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Queues  *queueconfig.Cache

	// DeadLetters and Workflows delete what their domains have kept for long enough (deadletter.Store.Prune, workflow.Store.Prune).
	DeadLetters func(ctx context.Context, maxAge time.Duration, maxCount int64) (deleted int64, err error)
	Workflows   func(ctx context.Context, keep time.Duration) (deleted int64, err error)
}

// NewPruner returns a pruner.
func NewPruner(archetype *baseservice.Archetype, deps PrunerDeps, c config.Config) *Pruner {
	p := baseservice.Init(archetype, &Pruner{deps: deps, config: c})
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
		return p.config.Retention.PruneInterval - since%p.config.Retention.PruneInterval
	}
	return max(0, p.idlePause()-since)
}

func (p *Pruner) sinceRun() time.Duration { return clock.Running() - time.Duration(p.ranAt.Load()) }

// idlePause is idlePrune, rounded up to whole ticks.
func (p *Pruner) idlePause() time.Duration {
	ticks := (idlePrune + p.config.Retention.PruneInterval - 1) / p.config.Retention.PruneInterval
	return ticks * p.config.Retention.PruneInterval
}

// Start runs the loop until stopped. The first run is at once, because no server may have run for long.
func (p *Pruner) Start(ctx context.Context) error {
	loop.Run(ctx, &p.BaseStartStop, p.loop)
	return nil
}

// loop runs at once, because no server may have run for long.
func (p *Pruner) loop(ctx context.Context) {
	p.run(ctx)
	loop.Every(ctx, p.config.Retention.PruneInterval, func(ctx context.Context) {
		// Half a tick of tolerance makes up for jitter of the ticker.
		if p.moved.Load() || p.sinceRun() >= p.idlePause()-p.config.Retention.PruneInterval/2 {
			p.run(ctx)
		}
	})
}

// run clears the flag before the run and not after it, or a job that moves meanwhile would be missed.
func (p *Pruner) run(ctx context.Context) {
	p.moved.Store(false)
	p.ranAt.Store(int64(clock.Running()))
	limited, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	pruned, err := p.runOnce(limited)
	// A stop is no failure, and the next start prunes at once.
	if err != nil && ctx.Err() == nil {
		p.moved.Store(true) // run again at the next tick
		p.Logger.ErrorContext(ctx, p.Name+": deletion of old discarded jobs and workflows failed; the next run continues it",
			slog.Any("error", err))
	}
	if pruned != (Pruned{}) {
		p.Logger.InfoContext(ctx, p.Name+": old discarded jobs and workflows deleted", slog.Int64("dead_letters", pruned.DeadLetters),
			slog.Int64("discarded", pruned.Discarded), slog.Int64("workflows", pruned.Workflows), slog.Int64("early", pruned.Early),
			slog.Int64("rate_limit_partitions", pruned.Partitions))
	}
	p.TestSignals.Pruned.Signal(pruned)
}

// runOnce has steps that do not depend on each other; an error ends the run, and what the steps before it deleted stays deleted.
func (p *Pruner) runOnce(ctx context.Context) (n Pruned, err error) {
	view, err := p.deps.Queues.View(ctx)
	if err != nil {
		return n, err
	}
	if n.DeadLetters, err = p.deps.DeadLetters(ctx, p.config.DeadLetter.MaxAge, p.config.DeadLetter.MaxCount); err != nil {
		return n, err
	}
	base := standard(view)
	if keep := or(base.Discarded, p.config.Retention.Discarded); keep > 0 {
		if n.Discarded, err = p.pruneDiscarded(ctx, keep, view); err != nil {
			return n, err
		}
	}
	// Ended workflows are kept as long as completed jobs of queues that set nothing.
	if keep := or(base.Completed, p.config.Retention.Completed); keep > 0 {
		if n.Workflows, err = p.deps.Workflows(ctx, keep); err != nil {
			return n, err
		}
	}
	if n.Early, err = p.pruneQueues(ctx, view); err != nil {
		return n, err
	}
	// The partitions of rate limits that nothing has used for a day (docs/reference/limits.md, Policies).
	for more := true; more; {
		bounded, cancel := p.deps.DB.Bounded(ctx)
		row, err := p.deps.DB.Q.LimitPrune(bounded, partitionBatch)
		cancel()
		if err != nil {
			return n, err
		}
		n.Partitions, more = n.Partitions+row.Deleted, row.More
	}
	return n, nil
}

// reasonRetention is the reason in the internal events of deleted jobs.
const reasonRetention = "retention"

const (
	// deleteBatch bounds the rows of one statement. A delete of 1 000 rows takes 20 ms.
	deleteBatch = 1000

	// partitionBatch bounds the partitions of one statement.
	partitionBatch = 200
)

// pruneDiscarded deletes discarded jobs older than keep that are not dead letters. It goes on behind the last row that it
// deleted, so that rows which another node has locked, or which the filters leave out, are not read again. What was skipped is
// found by a later run. Each batch is a transaction of its own, with the internal events of its jobs.
func (p *Pruner) pruneDiscarded(ctx context.Context, keep time.Duration, view *queueconfig.View) (deleted int64, err error) {
	// Queues that set for themselves how long discarded jobs are kept are left to pruneQueues.
	var own []string
	view.Each(func(q *queueconfig.Queue) {
		if q.Discarded != nil {
			own = append(own, q.Name)
		}
	})
	params := dbsqlc.JobDiscardedPruneParams{
		After: pg.Beginning, Keep: pg.Interval(keep), MaxRows: deleteBatch, Node: p.deps.Commits.Node,
		EventType: eventlog.StateChanged, Reason: reasonRetention, OtherQueues: pg.Strings(own),
	}
	for {
		bounded, cancel := p.deps.DB.Bounded(ctx)
		rows, err := p.deps.DB.Q.JobDiscardedPrune(bounded, params)
		cancel()
		if err != nil {
			return deleted, err
		}
		deleted += int64(len(rows))
		eventlog.Emit(ctx, p.deps.Commits, rows, pruneChange)
		if len(rows) > 0 {
			p.deps.Commits.Committed()
		}
		if len(rows) < deleteBatch {
			return deleted, nil
		}
		last := rows[len(rows)-1]
		params.After, params.AfterID = last.FinishedAt, last.ID
	}
}

// pruneChange is the change of one deleted job, for logs and metrics: like the internal event, it has a state before and none
// after.
func pruneChange(changes []eventlog.Change, r *dbsqlc.JobDiscardedPruneRow) []eventlog.Change {
	return append(changes, eventlog.Change{
		Type: eventlog.StateChanged, JobID: r.ID, JobType: r.Type, Queue: r.Queue, From: r.State, At: r.Now.Time, Reason: reasonRetention,
	})
}

// Retention that queues set for themselves (docs/reference/queues.md, Retention). Completed and cancelled jobs go by the day, after the
// longest time in force; discarded ones by the sweep (pruneDiscarded). Only what a queue wants to be gone earlier is looked for, job by
// job: nothing finds the finished jobs of a queue, because an index would cost every ack.

const (
	// walkLooked bounds what one statement looks at, in 5 to 15 ms, and walkBatches what one run does. The next run goes on.
	walkLooked  = 10_000
	walkBatches = 100
)

// kept is how long finished jobs are kept, in milliseconds; keepElse: as long as it takes without looking for them.
// SQL reads it as a JSON array, by position (JobListForRetention).
type kept [3]int64 // completed, discarded, cancelled

const keepElse = -1

// KeepDone is how long completed and cancelled jobs are kept before their day is dropped: the longest time in force, server being that of
// the settings. Zero: for ever. It is a maximum over all queues, and 0 is the largest: one queue that keeps its jobs for ever keeps the
// days of all.
func KeepDone(view *queueconfig.View, server time.Duration) time.Duration {
	// The retention of jobs whose queue sets nothing is among them, even if there is no such queue.
	base := standard(view)
	longest := or(base.Completed, server)
	compare := func(set *queueconfig.Duration) {
		if d := or(set, server); longest != 0 && (d == 0 || d > longest) {
			longest = d
		}
	}
	compare(base.Cancelled)
	view.Each(func(q *queueconfig.Queue) {
		compare(q.Config.Retention.Completed)
		compare(q.Config.Retention.Cancelled)
	})
	return longest
}

// standard is the retention of queues that set none.
func standard(view *queueconfig.View) queueconfig.Retention {
	if q := view.Queue(queueconfig.Default); q != nil {
		return q.Config.Retention
	}
	return queueconfig.Retention{}
}

func or(set *queueconfig.Duration, otherwise time.Duration) time.Duration {
	if set != nil {
		return set.Duration
	}
	return otherwise
}

// pruneQueues deletes what queues keep for a shorter time than all others. Without such queues it sends no statement.
// It looks at a million jobs a run at most and remembers where it was, so a large database takes several runs for one walk.
func (p *Pruner) pruneQueues(ctx context.Context, view *queueconfig.View) (deleted int64, err error) {
	params, looks := p.keeping(view)
	if !looks {
		return 0, nil
	}
	for range walkBatches {
		params.After = p.walked
		bounded, cancel := p.deps.DB.Bounded(ctx)
		rows, err := p.deps.DB.Q.JobListForRetention(bounded, params)
		cancel()
		if err != nil {
			return deleted, err
		}
		var old [][16]byte
		for _, r := range rows {
			if r.Old {
				old = append(old, r.ID)
			}
		}
		n, err := p.deleteOld(ctx, old)
		if deleted += n; err != nil {
			return deleted, err
		}
		if len(rows) == 0 || !rows[len(rows)-1].More {
			p.walked = [16]byte{}
			return deleted, nil
		}
		p.walked = rows[len(rows)-1].ID
	}
	return deleted, nil
}

// keeping says what a walk looks for; looks: something at all. A time that is no shorter than that of the days needs no walk:
// the day goes first.
func (p *Pruner) keeping(view *queueconfig.View) (params dbsqlc.JobListForRetentionParams, looks bool) {
	dropped := KeepDone(view, p.config.Retention.Completed)
	shorter := func(d, than time.Duration) int64 {
		if d == 0 || than != 0 && d >= than {
			return keepElse
		}
		looks = true
		return d.Milliseconds()
	}
	base := standard(view)
	keptOf := func(r queueconfig.Retention) kept {
		return kept{shorter(or(r.Completed, p.config.Retention.Completed), dropped), keepElse,
			shorter(or(r.Cancelled, p.config.Retention.Completed), dropped)}
	}
	k := keptOf(base)
	params.CompletedMs, params.DiscardedMs, params.CancelledMs, params.MaxLooked = k[0], k[1], k[2], walkLooked
	keeps := map[string]kept{}
	view.Each(func(q *queueconfig.Queue) {
		// Queues that set the same as the standard need no entry, so the list stays short.
		own := keptOf(q.Config.Retention)
		// The sweep of discarded jobs leaves such queues out (pruneDiscarded), so the walk must take them, also if they keep
		// longer than others.
		if q.Discarded != nil {
			looks, own[1] = true, q.Discarded.Milliseconds()
		}
		if own != k {
			keeps[q.Name] = own
		}
	})
	params.Keeps, _ = json.Marshal(keeps) // strings and numbers always marshal
	return params, looks
}

// deleteOld gets ids that a statement has found before, so a job may have been retried or deleted since: JobDelete checks the states again.
func (p *Pruner) deleteOld(ctx context.Context, ids [][16]byte) (deleted int64, err error) {
	for len(ids) > 0 {
		part := ids[:min(len(ids), deleteBatch)]
		ids = ids[len(part):]
		bounded, cancel := p.deps.DB.Bounded(ctx)
		rows, err := p.deps.DB.Q.JobDelete(bounded, dbsqlc.JobDeleteParams{
			Ids: part, States: []string{"completed", "discarded", "cancelled"}, Node: p.deps.Commits.Node, EventType: eventlog.StateChanged,
			Source: "scheduler", Reason: reasonRetention,
		})
		cancel()
		if err != nil {
			return deleted, err
		}
		deleted += int64(len(rows))
		eventlog.Emit(ctx, p.deps.Commits, rows, func(changes []eventlog.Change, r *dbsqlc.JobDeleteRow) []eventlog.Change {
			return pruneChange(changes, &dbsqlc.JobDiscardedPruneRow{ID: r.ID, Type: r.Type, Queue: r.Queue, State: r.State, Now: r.Now})
		})
		if len(rows) > 0 {
			p.deps.Commits.Committed()
		}
	}
	return deleted, nil
}
