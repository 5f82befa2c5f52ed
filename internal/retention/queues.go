package retention

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// Retention that queues set for themselves (docs/reference/queues.md, Retention). Completed and cancelled jobs go by the day, after the longest time
// in force; discarded ones by the sweep of package retention. Only what a queue wants to be gone earlier is looked for, job by job: nothing finds
// the finished jobs of a queue, because an index would cost every ack.

const (
	// walkLooked bounds what one statement looks at, in 5 to 15 ms, and walkBatches what one run does. The next run goes on.
	walkLooked  = 10_000
	walkBatches = 100
)

// kept is how long finished jobs are kept, in milliseconds; keepElse: as long as it takes without looking for them.
// SQL reads it as a JSON array, by position (JobListForRetention).
type kept [3]int64 // completed, discarded, cancelled

const keepElse = -1

// Done is how long completed and cancelled jobs are kept before their day is dropped: the longest time in force, server being that of the
// settings. Zero: for ever. It is a maximum over all queues, and 0 is the largest: one queue that keeps its jobs for ever keeps
// the days of all.
func Done(view *queueconfig.View, server time.Duration) time.Duration {
	longest, first := time.Duration(0), true
	eachDone(view, server, func(d time.Duration) {
		if first || longest != 0 && (d == 0 || d > longest) {
			longest, first = d, false
		}
	})
	return longest
}

// The retention of jobs whose queue sets nothing is among them, even if there is no such queue.
func eachDone(view *queueconfig.View, server time.Duration, f func(d time.Duration)) {
	base := standard(view)
	f(or(base.Completed, server))
	f(or(base.Cancelled, server))
	view.Each(func(q *queueconfig.Queue) {
		f(or(q.Config.Retention.Completed, server))
		f(or(q.Config.Retention.Cancelled, server))
	})
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

// Workflows is how long ended workflows are kept: as long as completed jobs of queues that set nothing.
func Workflows(view *queueconfig.View, server time.Duration) time.Duration {
	return or(standard(view).Completed, server)
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
		rows, err := p.looked(ctx, params)
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

func (p *Pruner) looked(ctx context.Context, params dbsqlc.JobListForRetentionParams) ([]dbsqlc.JobListForRetentionRow, error) {
	ctx, cancel := p.db.Bounded(ctx)
	defer cancel()
	return p.db.Q.JobListForRetention(ctx, params)
}

// keeping says what a walk looks for; looks: something at all. A time that is no shorter than that of the days needs no walk:
// the day goes first.
func (p *Pruner) keeping(view *queueconfig.View) (params dbsqlc.JobListForRetentionParams, looks bool) {
	dropped := Done(view, p.config.Completed)
	shorter := func(d, than time.Duration) int64 {
		if d == 0 && than == 0 || d != 0 && than != 0 && d >= than || d == 0 {
			return keepElse
		}
		looks = true
		return d.Milliseconds()
	}
	base := standard(view)
	keptOf := func(r queueconfig.Retention) kept {
		return kept{shorter(or(r.Completed, p.config.Completed), dropped), keepElse, shorter(or(r.Cancelled, p.config.Completed), dropped)}
	}
	k := keptOf(base)
	params.CompletedMs, params.DiscardedMs, params.CancelledMs, params.MaxLooked = k[0], k[1], k[2], walkLooked
	keeps := map[string]kept{}
	view.Each(func(q *queueconfig.Queue) {
		// Queues that set the same as the standard need no entry, so the list stays short.
		own := keptOf(q.Config.Retention)
		// The sweep of discarded jobs leaves such queues out (ownDiscarded), so the walk must take them, also if they keep
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

// ownDiscarded are the queues that set for themselves how long discarded jobs are kept.
func ownDiscarded(view *queueconfig.View) (names []string) {
	view.Each(func(q *queueconfig.Queue) {
		if q.Discarded != nil {
			names = append(names, q.Name)
		}
	})
	return pg.Strings(names)
}

// The ids were found by a statement before, so a job may have been retried or deleted since: JobDelete checks the states again.
func (p *Pruner) deleteOld(ctx context.Context, ids [][16]byte) (deleted int64, err error) {
	for len(ids) > 0 {
		part := ids[:min(len(ids), deleteBatch)]
		ids = ids[len(part):]
		bounded, cancel := p.db.Bounded(ctx)
		rows, err := p.db.Q.JobDelete(bounded, dbsqlc.JobDeleteParams{
			Ids: part, States: []string{"completed", "discarded", "cancelled"}, Node: p.commits.Node, EventType: eventlog.StateChanged, Source: "scheduler", Reason: reasonRetention,
		})
		cancel()
		if err != nil {
			return deleted, err
		}
		deleted += int64(len(rows))
		eventlog.Emit(ctx, p.commits, rows, func(changes []eventlog.Change, r *dbsqlc.JobDeleteRow) []eventlog.Change {
			return pruneChange(changes, &dbsqlc.JobDiscardedPruneRow{ID: r.ID, Type: r.Type, Queue: r.Queue, State: r.State, Now: r.Now})
		})
		if len(rows) > 0 {
			p.commits.Committed()
		}
	}
	return deleted, nil
}
